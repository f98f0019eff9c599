"""Indexes: of quantised vectors, by the engine that is chosen, and BM25's over text.

`index.json` in the folder says what is inside.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from splade_rescale.engines import Batch, engine
from splade_rescale.errors import UserError
from splade_rescale.files import atomic_folder, write_json
from splade_rescale.settings import IndexSettings
from splade_rescale.text import document_text
from splade_rescale.vectors import ids_file, open_parquet, quantise, read_vectors, string_rows

STATISTICS = "index.json"
EMPTY_EXAMPLES = 10
_CORPUS_COLUMNS = ["doc_id", "title", "text"]
_ROWS = 1000


class _Tally:
    """What went by on the way into the index."""

    def __init__(self) -> None:
        self.documents = self.empty = self.postings = 0
        self.empty_examples: list[str] = []

    def note(self, ids: list[str], full: np.ndarray) -> None:
        """Note documents, and which of them have anything to index."""
        self.documents += len(ids)
        for place in np.flatnonzero(~full):
            self.empty += 1
            if len(self.empty_examples) < EMPTY_EXAMPLES:
                self.empty_examples.append(ids[place])


class _Vectors:
    """The quantised vectors of a corpus, shard by shard; see `engines.Corpus`."""

    def __init__(self, shards: list[Path], quantization: int, bar: tqdm) -> None:
        self.shards = shards
        self.quantization = quantization
        self.bar = bar
        self.tally = _Tally()
        self.vocabulary: int | None = None

    def __iter__(self) -> Iterator[Batch]:
        """The documents, counted anew each time."""
        self.tally = _Tally()
        self.bar.reset()
        for npz in self.shards:
            vectors, ids = read_vectors(npz)
            if self.vocabulary not in (None, vectors.shape[1]):
                raise UserError(
                    f"{npz}: has {vectors.shape[1]} terms, the shards before it {self.vocabulary}"
                )
            self.vocabulary = vectors.shape[1]
            quantised = quantise(vectors, self.quantization, npz)
            quantised.sort_indices()
            self.tally.postings += quantised.nnz
            for start in range(0, len(ids), _ROWS):
                weights, names = quantised[start : start + _ROWS], ids[start : start + _ROWS]
                full = np.diff(weights.indptr) > 0
                self.tally.note(names, full)
                if not full.all():
                    weights = weights[full]
                    names = [names[place] for place in np.flatnonzero(full)]
                if names:
                    yield Batch(weights, names)
                self.bar.update(len(full))


def _text_documents(corpus: Path, tally: _Tally, bar: tqdm) -> Iterator[tuple[str, str]]:
    for doc_id, title, body in string_rows(corpus, _CORPUS_COLUMNS, _ROWS):
        bar.update()
        text = document_text(title, body)
        tally.note([doc_id], np.array([bool(text)]))
        if text:
            yield doc_id, text


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


@contextmanager
def _building(out: Path, total: int, progress: bool) -> Iterator[tuple[Path, tqdm]]:
    """The folder to write to and a bar; a failure inside names `out`."""
    with (
        atomic_folder(out, mark=STATISTICS, sums=True) as folder,
        tqdm(total=total, desc=out.name, unit="document", disable=not progress) as bar,
    ):
        try:
            yield folder, bar
        except RuntimeError as error:
            raise RuntimeError(f"{out}: {error}") from None


def _finish(
    folder: Path, kind: str, tally: _Tally, counts: tuple[int, int], began: float, **more: Any
) -> dict[str, Any]:
    """Compare with the engine's own counts and write index.json."""
    indexed, postings = counts
    if indexed + tally.empty != tally.documents:
        raise RuntimeError(
            f"the index holds {indexed} documents and {tally.empty} were empty, but the corpus has "
            f"{tally.documents}"
        )
    if kind == "impact" and postings != tally.postings:
        raise RuntimeError(f"the index holds {postings} postings; expected {tally.postings}")
    statistics = {
        "kind": kind,
        "documents": tally.documents,
        "indexed": indexed,
        "empty": tally.empty,
        "empty_examples": tally.empty_examples,
        "postings": postings,
        "bytes": _bytes(folder),
        "seconds": round(time.perf_counter() - began, 3),
        **more,
    }
    write_json(folder / STATISTICS, statistics)
    return statistics


def build_impact_index(
    vectors: list[Path],
    out: Path,
    settings: IndexSettings,
    *,
    threads: int = 1,
    memory_mb: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Index quantised document vectors, so that a score is their dot product.

    Documents whose vector is empty after quantisation are left out and counted; a corpus of
    nothing else gives an index without documents.

    Args:
        vectors: the shards, `.npz` with the ids in `.ids.parquet` beside (see `read_vectors`).
        out: folder of the index and its index.json, replaced as a whole when all is written.
        settings: engine and quantisation.
        threads: processors to use.
        memory_mb: largest Java heap in MiB.
        progress: show a bar.

    Returns:
        What index.json holds: kind, engine, documents, indexed, empty, empty_examples (the first
        ids), postings, bytes, seconds, quantization, vocabulary (terms that a vector has room for).

    Raises:
        UserError: the engine's package is not installed, or it cannot hold these vectors; a shard
            is missing, damaged, given twice, of another vocabulary than the others or holds a
            weight that is negative or not finite.
        RuntimeError: the engine failed, or its counts differ from ours.
    """
    began = time.perf_counter()
    chosen = engine(settings.engine)
    places = [npz.resolve() for npz in vectors]
    if twice := [
        npz for npz, place in zip(vectors, places, strict=True) if places.count(place) > 1
    ]:
        raise UserError(f"{twice[0]}: given more than once; expected each shard once")
    total = sum(open_parquet(ids_file(npz), ["id"]).metadata.num_rows for npz in vectors)
    with _building(out, total, progress) as (folder, bar):
        corpus = _Vectors(vectors, settings.quantization, bar)
        counts = chosen.build(folder, corpus, settings, threads=threads, memory_mb=memory_mb)
        return _finish(
            folder,
            "impact",
            corpus.tally,
            counts,
            began,
            engine=settings.engine,
            quantization=settings.quantization,
            vocabulary=corpus.vocabulary,
        )


def build_bm25_index(
    corpus: Path,
    out: Path,
    *,
    threads: int = 1,
    memory_mb: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Index title and text for BM25, with Anserini's default analysis (Porter stems, stop words).

    Documents without any text are left out and counted, as Anserini does.

    Args:
        corpus: corpus.parquet (doc_id, title, text), read in batches.
        out: folder of the index and its index.json, replaced as a whole when all is written.
        threads: processors to use; from two on, Lucene works while documents are read.
        memory_mb: largest Java heap in MiB.
        progress: show a bar.

    Returns:
        What index.json holds: kind, documents, indexed, empty, empty_examples, postings, bytes,
        seconds.

    Raises:
        UserError: the corpus is missing, damaged, lacks a column or holds a null.
        RuntimeError: Java failed, or Lucene's counts differ from ours.
    """
    from splade_rescale.java import java_class, java_errors, start_jvm
    from splade_rescale.lucene import lucene_counts, write_lucene

    began = time.perf_counter()
    start_jvm(threads=threads, memory_mb=memory_mb)
    tally = _Tally()
    analyzer = java_class("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    total = open_parquet(corpus, _CORPUS_COLUMNS).metadata.num_rows
    with _building(out, total, progress) as (folder, bar), java_errors("indexing failed"):
        documents = _text_documents(corpus, tally, bar)
        write_lucene(folder, analyzer, None, documents, threads)
        indexed, postings, _ = lucene_counts(folder)
        return _finish(folder, "bm25", tally, (indexed, postings), began)
