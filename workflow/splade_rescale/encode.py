"""Encode a corpus shard, or the queries, into sparse term weights.

Texts are read in a stream, sorted by length inside windows of fixed size, and encoded in batches
of a bounded number of tokens; rows come back in the order of the input. What is kept is sparse, so
memory does not grow with [texts, vocab].
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy import sparse
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from splade_rescale.errors import UserError
from splade_rescale.files import atomic_file, write_json
from splade_rescale.head import load_tokenizer
from splade_rescale.parquet_files import ERRORS, read_batches
from splade_rescale.positions import check_length
from splade_rescale.settings import EncodeSettings
from splade_rescale.splade import Splade
from splade_rescale.text import document_texts

WINDOW = 8192  # texts read, tokenized and sorted together: bounds memory and padding
BATCH_TEXTS = 512  # most texts in a batch, so that [batch, vocab] stays small for short texts


class _Rows(NamedTuple):
    ids: pa.Array
    texts: list[str]


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
        progress=progress,
    )


def encode_queries(
    model: Path,
    queries_parquet: Path,
    out: Path,
    settings: EncodeSettings,
    *,
    device: str | torch.device | None = None,
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
        progress=progress,
    )


def encode_texts(
    model: Splade,
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    settings: EncodeSettings,
    length: int,
    *,
    name: Callable[[int], str] = "text {}".format,
    done: Callable[[int], object] = lambda count: None,
) -> tuple[sparse.csr_array, int, int]:
    """Encode texts held in memory, on the model's device.

    Args:
        model: in evaluation mode.
        tokenizer: cuts texts to `length` tokens, specials included.
        texts: what to encode.
        settings: token budget, precision and most terms per text.
        length: most tokens per text.
        name: what an error calls the text of a number.
        done: called with the number of texts after each batch.

    Returns:
        The weights [texts, vocab] as CSR float32 in the order of `texts`, the number of tokens
        (specials included, padding not), and the number of texts cut to `settings.max_terms`.

    Raises:
        UserError: a weight is not finite, or a GPU's memory does not suffice for a single text (a
            batch that it does not suffice for is halved, as are those that follow).
    """
    if not texts:
        return sparse.csr_array((0, model.vocabulary), dtype=np.float32), 0, 0
    tokens = tokenizer(texts, truncation=True, max_length=length, return_attention_mask=True)
    lengths = [len(ids) for ids in tokens["input_ids"]]
    order: list[int] = []
    parts: list[sparse.csr_array] = []
    cut = 0
    todo = deque(_batches(lengths, settings.token_budget))
    while todo:
        batch = todo.popleft()
        try:
            part, part_cut = _encode_batch(model, tokenizer, tokens, batch, settings, name)
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                raise UserError(
                    f"CUDA ran out of memory with a single text of {lengths[batch[0]]} tokens; "
                    "lower encode.document_length or query_length, or take a GPU with more memory"
                ) from None
            todo = deque(half for one in (batch, *todo) for half in _halves(one))
            continue
        parts.append(part)
        cut += part_cut
        order += batch
        done(len(batch))
    # Row i of the result is the row of the stacked batches at which text i was put.
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return sparse.vstack(parts, format="csr")[place], sum(lengths), cut


def _encode_batch(
    model: Splade,
    tokenizer: PreTrainedTokenizerBase,
    tokens: Mapping[str, list[list[int]]],
    batch: list[int],
    settings: EncodeSettings,
    name: Callable[[int], str],
) -> tuple[sparse.csr_array, int]:
    """Weights [batch, vocab] of the texts that `batch` numbers, and how many of them were cut."""
    device = next(model.parameters()).device
    inputs = tokenizer.pad(
        {key: [rows[i] for i in batch] for key, rows in tokens.items()},
        padding_side="right",  # else absolute positions would depend on the batch
        return_tensors="pt",
    ).to(device)
    bf16 = settings.precision == "bf16"
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        weights = model(**inputs).float()
        finite = torch.isfinite(weights).all(dim=1)
        if not finite.all():
            row = batch[int(finite.logical_not().nonzero()[0, 0])]
            raise UserError(
                f"{name(row)}: term weights are not finite, expected finite numbers; "
                "the model is broken"
            )
        over = (weights > 0).sum(dim=1) > settings.max_terms
        if over.any():
            weights[over] = _keep_largest(weights[over], settings.max_terms)
        return _to_csr(weights), int(over.sum())


def _halves(batch: list[int]) -> list[list[int]]:
    middle = (len(batch) + 1) // 2
    return [half for half in (batch[:middle], batch[middle:]) if half]


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

    ids: list[pa.Array] = []
    parts = [sparse.csr_array((0, model.vocabulary), dtype=np.float32)]
    tokens = cut = 0
    started = time.perf_counter()
    with tqdm(total=last - first, unit="text", desc=out.stem, disable=not progress) as bar:
        for rows in _windows(source, parquet, columns, join, first, last):
            part, part_tokens, part_cut = encode_texts(
                model,
                tokenizer,
                rows.texts,
                settings,
                length,
                name=partial(_row_name, model_folder, parquet, columns[0], rows.ids),
                done=bar.update,
            )
            parts.append(part)
            ids.append(rows.ids)
            tokens += part_tokens
            cut += part_cut
    seconds = time.perf_counter() - started
    vectors = sparse.vstack(parts, format="csr")
    parts.clear()
    texts = vectors.shape[0]
    active = np.diff(vectors.indptr)
    statistics = {
        "texts": texts,
        "tokens": tokens,
        "vocabulary": vectors.shape[1],
        "seconds": seconds,
        "texts_per_second": texts / seconds,
        "active_terms": {
            "mean": float(active.mean()) if texts else 0.0,
            "min": int(active.min(initial=vectors.shape[1])) if texts else 0,
            "max": int(active.max(initial=0)),
        },
        "empty": int((active == 0).sum()),
        "cut": cut,
        "shard": shard,
        "shards": shards,
        "model": str(model_folder),
        "source": str(parquet),
        "device": str(device),
        "settings": settings.model_dump(),
    }
    with atomic_file(ids_path(out)) as temporary:
        table = pa.table({"id": pa.chunked_array(ids, pa.string())})
        pq.write_table(table, temporary, write_page_checksum=True)
    write_json(stats_path(out), statistics)
    # An open file, because save_npz would add .npz to the temporary name. Not compressed: float
    # weights hardly shrink, and zlib would take a good part of the time that a GPU encodes in.
    with atomic_file(out) as temporary, temporary.open("wb") as file:
        sparse.save_npz(file, vectors, compressed=False)
    return statistics


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


def _batches(lengths: list[int], budget: int) -> Iterator[list[int]]:
    """Split texts, longest first, so that a batch has at most `budget` tokens with its padding.

    A text that is longer than the budget is a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        longest = max(lengths[order[start]], 1)
        size = min(max(budget // longest, 1), BATCH_TEXTS)
        yield order[start : start + size]
        start += size


def _keep_largest(weights: torch.Tensor, terms: int) -> torch.Tensor:
    """Zero all but the `terms` largest weights of each row [rows, vocab]; lower ids win ties."""
    threshold = weights.topk(terms, dim=1).values[:, -1:]
    above = weights > threshold
    tied = weights == threshold
    room = terms - above.sum(dim=1, keepdim=True)
    return weights.where(above | (tied & (tied.cumsum(dim=1) <= room)), 0)


def _to_csr(weights: torch.Tensor) -> sparse.csr_array:
    """Dense non-negative weights [batch, vocab] -> CSR float32 with sorted indices, no zeros."""
    rows, terms = weights.nonzero(as_tuple=True)
    counts = torch.bincount(rows, minlength=len(weights)).cpu().numpy()
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return sparse.csr_array(
        (weights[rows, terms].cpu().numpy(), terms.cpu().numpy(), indptr),
        shape=tuple(weights.shape),
        dtype=np.float32,
    )
