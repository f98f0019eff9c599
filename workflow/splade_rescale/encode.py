"""Encode a corpus shard, or the queries, into sparse term weights.

Texts are read in a stream, sorted by length inside windows of fixed size, and encoded in batches
of a bounded number of tokens, one on each thread; rows are written in the order of the input as
soon as their window is complete. So neither memory nor the files depend on the size of the
corpus or the number of threads.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy import sparse
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from splade_rescale.batches import (
    BatchEncoder,
    Encoded,
    Tokens,
    in_order_of_texts,
    split,
    tokenize,
)
from splade_rescale.csr_file import csr_file
from splade_rescale.errors import UserError
from splade_rescale.files import atomic_file, write_json
from splade_rescale.head import load_tokenizer
from splade_rescale.memory import give_back
from splade_rescale.parquet_files import ERRORS, read_batches
from splade_rescale.positions import check_length
from splade_rescale.settings import EncodeSettings
from splade_rescale.splade import Splade
from splade_rescale.text import document_texts
from splade_rescale.threads import map_in_order, one_ahead

WINDOW = 8192  # texts read, tokenized and sorted together: bounds memory and padding


_IDS = pa.schema([("id", pa.string())])


class _Rows(NamedTuple):
    ids: pa.Array
    texts: list[str]


class _Window(NamedTuple):
    ids: pa.Array
    tokens: Tokens
    batches: list[list[int]]


def ids_path(vectors: Path) -> Path:
    """Where the ids of the rows of `vectors` (a .npz) lie: column `id` of a parquet beside it."""
    return vectors.with_suffix(".ids.parquet")


def stats_path(vectors: Path) -> Path:
    """Where the statistics of `vectors` (a .npz) lie: a JSON file beside it."""
    return vectors.with_suffix(".json")


def encode_corpus(
    model: Path,
    corpus_parquet: Path,
    out: Path,
    settings: EncodeSettings,
    *,
    shard: int = 0,
    shards: int = 1,
    device: str | torch.device | None = None,
    threads: int = 1,
    progress: bool = False,
) -> dict[str, Any]:
    """Encode rows [shard * N // shards, (shard + 1) * N // shards) of a corpus of N documents.

    Args:
        model: trained checkpoint folder.
        corpus_parquet: columns doc_id, title, text.
        out: the .npz to write, a CSR matrix [texts, vocab] of float32 with sorted indices and no
            explicit zeros; `ids_path(out)` and `stats_path(out)` are written first, so that a
            .npz never stands without them.
        settings: lengths, batching and precision.
        shard: number of the shard, from 0.
        shards: how many there are.
        device: where to compute; else as `settings.gpus` says.
        threads: CPU threads; without effect on the files.
        progress: show a progress bar.

    Returns:
        The statistics, as written to `stats_path(out)`.

    Raises:
        UserError: bad input, no GPU where one is asked for, or a weight that is not finite.
    """
    if not 0 <= shard < shards:
        raise UserError(f"shard {shard} of {shards}: the shard must be from 0 to {shards - 1}")
    return _encode_file(
        model,
        corpus_parquet,
        out,
        settings,
        columns=["doc_id", "title", "text"],
        join=lambda batch: document_texts(*(batch[c].to_pylist() for c in ("title", "text"))),
        length=settings.document_length,
        shard=shard,
        shards=shards,
        device=device,
        threads=threads,
        progress=progress,
    )


def encode_queries(
    model: Path,
    queries_parquet: Path,
    out: Path,
    settings: EncodeSettings,
    *,
    device: str | torch.device | None = None,
    threads: int = 1,
    progress: bool = False,
) -> dict[str, Any]:
    """Encode all queries (columns query_id, text); the rest as `encode_corpus`."""
    return _encode_file(
        model,
        queries_parquet,
        out,
        settings,
        columns=["query_id", "text"],
        join=lambda batch: batch["text"].to_pylist(),
        length=settings.query_length,
        shard=0,
        shards=1,
        device=device,
        threads=threads,
        progress=progress,
    )


def _encode_file(
    model_folder: Path,
    parquet: Path,
    out: Path,
    settings: EncodeSettings,
    *,
    columns: list[str],
    join: Callable[[pa.RecordBatch], list[str]],
    length: int,
    shard: int,
    shards: int,
    device: str | torch.device | None,
    threads: int,
    progress: bool,
) -> dict[str, Any]:
    if out.suffix != ".npz":
        raise UserError(f"{out}: the name of a vector file must end in .npz")
    device = choose_device(settings.gpus) if device is None else torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device}: torch finds no CUDA device")
    source = _open_parquet(parquet, columns)
    total = source.metadata.num_rows
    first, last = shard * total // shards, (shard + 1) * total // shards
    tokenizer = load_tokenizer(model_folder)
    model = Splade.load(model_folder).to(device).eval()
    check_length(model_folder, model.model.config.to_dict(), length)

    windows = (
        _tokenized(rows, tokenizer, length, settings, device)
        for rows in _windows(source, parquet, columns, join, first, last)
    )
    counts = _Counts()
    started = time.perf_counter()
    with csr_file(out, model.vocabulary) as vectors:
        with (
            atomic_file(ids_path(out)) as temporary,
            pq.ParquetWriter(temporary, _IDS, write_page_checksum=True) as ids,
            tqdm(total=last - first, unit="text", desc=out.stem, disable=not progress) as bar,
            closing(
                _encode_windows(
                    windows,
                    [model, *(model.replica() for _ in range(1, _workers(threads, device)))],
                    tokenizer,
                    settings,
                    partial(_row_name, model_folder, parquet, columns[0]),
                    bar.update,
                )
            ) as encoded,
        ):
            for window, parts in encoded:
                rows = in_order_of_texts(parts, model.vocabulary)
                vectors.append(rows)
                ids.write_table(pa.table([window.ids], _IDS))
                counts.add(rows, window.tokens.lengths, sum(part.cut for part in parts))
                del rows, parts  # not held while the next window is encoded
                give_back()
            seconds = time.perf_counter() - started
        statistics = {
            **counts.statistics(),
            "vocabulary": model.vocabulary,
            "seconds": seconds,
            "texts_per_second": counts.texts / seconds,
            "shard": shard,
            "shards": shards,
            "model": str(model_folder),
            "source": str(parquet),
            "device": str(device),
            "settings": settings.model_dump(),
        }
        write_json(stats_path(out), statistics)
        vectors.save()
    return statistics


@dataclass
class _Counts:
    """What the statistics say of the vectors."""

    texts: int = 0
    tokens: int = 0
    terms: int = 0
    fewest: int | None = None
    most: int = 0
    empty: int = 0
    cut: int = 0

    def add(self, vectors: sparse.csr_array, lengths: list[int], cut: int) -> None:
        active = np.diff(vectors.indptr)
        self.texts += len(lengths)
        self.tokens += sum(lengths)
        self.terms += vectors.nnz
        fewest = int(active.min())
        self.fewest = fewest if self.fewest is None else min(self.fewest, fewest)
        self.most = max(self.most, int(active.max()))
        self.empty += int((active == 0).sum())
        self.cut += cut

    def statistics(self) -> dict[str, Any]:
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "active_terms": {
                "mean": self.terms / self.texts if self.texts else 0.0,
                "min": self.fewest or 0,
                "max": self.most,
            },
            "empty": self.empty,
            "cut": self.cut,
        }


def _workers(threads: int, device: torch.device) -> int:
    """Batches encoded at a time: one for each thread of a CPU; a GPU is used best by one."""
    return threads if device.type == "cpu" else 1


def _encode_windows(
    windows: Iterator[_Window],
    models: list[Splade],
    tokenizer: PreTrainedTokenizerBase,
    settings: EncodeSettings,
    name: Callable[[pa.Array, int], str],
    done: Callable[[int], object],
) -> Iterator[tuple[_Window, list[Encoded]]]:
    """Each window, in order, with all of its batches, in order.

    Args:
        windows: the next one is made in a thread of its own while one is encoded.
        models: one for each batch encoded at a time.
        tokenizer: pads batches.
        settings: token budget, precision and most terms per text.
        name: what an error calls the text of an id.
        done: called with the number of texts after each batch.
    """
    free: SimpleQueue[BatchEncoder] = SimpleQueue()
    for model in models:
        free.put(BatchEncoder(model, tokenizer, settings))

    def encode(job: tuple[_Window, list[int]]) -> tuple[_Window, Encoded]:
        window, batch = job
        encoder = free.get()
        try:
            return window, encoder.encode(window.tokens, batch, partial(name, window.ids))
        finally:
            free.put(encoder)

    parts: list[Encoded] = []
    with _one_torch_thread() as start, closing(one_ahead(windows)) as ahead:
        jobs = ((window, batch) for window in ahead for batch in window.batches)
        with closing(map_in_order(encode, jobs, len(models), start=start)) as results:
            for window, part in results:
                parts.append(part)
                done(len(part.places))
                if len(parts) == len(window.batches):
                    yield window, parts
                    parts = []


@contextmanager
def _one_torch_thread() -> Iterator[Callable[[], None]]:
    """Within the block an operation of torch is one thread's; yields what a new thread calls.

    Batches side by side use cores better than operations split among them, and a result that is
    always one thread's does not depend on how many there are.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield partial(torch.set_num_threads, 1)
    finally:
        torch.set_num_threads(threads)


def choose_device(gpus: int) -> torch.device:
    """The CPU for 0 GPUs, else the current CUDA device.

    Raises:
        UserError: a GPU is asked for and torch sees none.
    """
    if gpus == 0:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(f"encode.gpus is {gpus}, but torch finds no CUDA device; set it to 0")
    return torch.device("cuda")


def _open_parquet(path: Path, columns: list[str]) -> pq.ParquetFile:
    try:
        # buffered, so that a column of a row group is not read in one piece
        source = pq.ParquetFile(path, buffer_size=1 << 20, page_checksum_verification=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except ERRORS as error:
        raise UserError(f"{path}: not a parquet file ({error})") from None
    missing = [c for c in columns if c not in source.schema_arrow.names]
    if missing:
        raise UserError(
            f"{path}: columns {missing} are missing; found {source.schema_arrow.names}, "
            f"expected {columns}"
        )
    for column in columns:
        kind = source.schema_arrow.field(column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise UserError(f"{path}: column {column} is of type {kind}, expected string")
    return source


def _tokenized(
    rows: _Rows,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    settings: EncodeSettings,
    device: torch.device,
) -> _Window:
    tokens = tokenize(tokenizer, rows.texts, length)
    return _Window(rows.ids, tokens, split(tokens.lengths, settings, device.type))


def _row_name(model: Path, parquet: Path, column: str, ids: pa.Array, row: int) -> str:
    return f"{model}: {column} {ids[row].as_py()!r} of {parquet}"


def _windows(
    source: pq.ParquetFile,
    path: Path,
    columns: list[str],
    join: Callable[[pa.RecordBatch], list[str]],
    first: int,
    last: int,
) -> Iterator[_Rows]:
    """Rows [first, last) in order, at most WINDOW at a time; other row groups are not read."""
    groups, start, end = [], 0, 0
    for group in range(source.num_row_groups):
        rows = source.metadata.row_group(group).num_rows
        if end + rows > first and end < last:
            start = start if groups else end
            groups.append(group)
        end += rows
    if not groups:
        return
    wanted_rows = {"batch_size": WINDOW, "row_groups": groups, "columns": columns}
    for batch in read_batches(source, path, **wanted_rows):
        skip = max(first - start, 0)
        wanted = batch.slice(skip, max(min(last - start, batch.num_rows) - skip, 0))
        start += batch.num_rows
        if not wanted.num_rows:
            continue
        for column in columns:
            if wanted[column].null_count:
                raise UserError(f"{path}: column {column} has a null, expected strings only")
        yield _Rows(wanted[columns[0]].cast(pa.string()), join(wanted))
