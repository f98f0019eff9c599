"""Lucene indexes: the impact index over quantised vectors, and BM25's over text.

Both have the layout that pyserini and Anserini read (fields `id` and `contents`); `index.json`
in the folder says what is inside.
"""

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from splade_rescale.errors import UserError
from splade_rescale.files import atomic_folder, write_json
from splade_rescale.java import java_cast, java_class, java_errors, java_map, start_jvm
from splade_rescale.settings import IndexSettings
from splade_rescale.text import document_text
from splade_rescale.vectors import (
    ids_file,
    open_parquet,
    quantise,
    read_vectors,
    string_rows,
    weighted_terms,
)

STATISTICS = "index.json"
EMPTY_EXAMPLES = 10
_CORPUS_COLUMNS = ["doc_id", "title", "text"]
_CHUNK = 1000
_BUFFER_MB = 256

Document = tuple[str, str]


def _index_writer(folder: Path, analyzer: Any, similarity: Any) -> Any:
    config = java_class("org.apache.lucene.index.IndexWriterConfig")(
        analyzer, signature="(Lorg/apache/lucene/analysis/Analyzer;)V"
    )
    if similarity is not None:
        config.setSimilarity(similarity)
    heap_mb = java_class("java.lang.Runtime").getRuntime().maxMemory() / 2**20
    config.setRAMBufferSizeMB(float(min(_BUFFER_MB, heap_mb / 4)))
    paths = java_class("java.nio.file.Paths")
    directory = java_class("org.apache.lucene.store.FSDirectory").open(paths.get(str(folder)))
    return java_class("org.apache.lucene.index.IndexWriter")(directory, config)


class _Adder:
    """Adds chunks of documents to a Lucene index, as Anserini's generator lays them out."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self.document = java_class("org.apache.lucene.document.Document")
        self.field = java_class("org.apache.lucene.document.Field")
        self.id_field = java_class("org.apache.lucene.document.StringField")
        self.id_values = java_class("org.apache.lucene.document.BinaryDocValuesField")
        self.bytes = java_class("org.apache.lucene.util.BytesRef")
        self.store = java_class("org.apache.lucene.document.Field$Store").YES
        self.contents_type = java_class("org.apache.lucene.document.FieldType")()
        self.contents_type.setIndexOptions(
            java_class("org.apache.lucene.index.IndexOptions").DOCS_AND_FREQS
        )
        self.contents_type.freeze()

    def __call__(self, documents: list[Document]) -> None:
        # one document whose fields change, as Lucene advises; the signatures spare pyjnius a
        # search among the constructors
        id_field = self.id_field(
            "id",
            "",
            self.store,
            signature="(Ljava/lang/String;Ljava/lang/String;"
            "Lorg/apache/lucene/document/Field$Store;)V",
        )
        contents = self.field(
            "contents",
            "",
            self.contents_type,
            signature="(Ljava/lang/String;Ljava/lang/CharSequence;"
            "Lorg/apache/lucene/index/IndexableFieldType;)V",
        )
        id_values = self.id_values("id", self.bytes())
        document = self.document()
        for field in (id_field, id_values, contents):
            document.add(field)
        for doc_id, text in documents:
            id_field.setStringValue(doc_id)
            id_values.setBytesValue(self.bytes(doc_id, signature="(Ljava/lang/CharSequence;)V"))
            contents.setStringValue(text)
            self.writer.addDocument(document)


def _write_lucene(
    folder: Path, analyzer: Any, similarity: Any, documents: Iterable[Document], threads: int
) -> None:
    writer = _index_writer(folder, analyzer, similarity)
    try:
        for _ in java_map(_Adder(writer), _chunks(documents), threads):
            pass
        writer.commit()
    finally:
        writer.rollback()  # closes it; what was committed stays


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    iterator = iter(documents)
    while chunk := list(itertools.islice(iterator, _CHUNK)):
        yield chunk


def open_reader(folder: Path) -> Any:
    """Lucene's IndexReader on an index.

    Raises:
        UserError: a file of the index is missing or damaged.
    """
    from jnius import JavaException

    paths = java_class("java.nio.file.Paths")
    try:
        directory = java_class("org.apache.lucene.store.FSDirectory").open(paths.get(str(folder)))
        reader = java_class("org.apache.lucene.index.DirectoryReader").open(directory)
    except JavaException as error:
        raise UserError(
            f"{folder}: not a readable Lucene index ({error.classname}: {error.innermessage}); "
            "delete it and index again"
        ) from None
    # pyjnius picks overloads by a Java object's nominal class
    return java_cast("org.apache.lucene.index.IndexReader", reader)


def _lucene_counts(folder: Path) -> tuple[int, int, int]:
    """Documents, postings, and the sum of all weights (term frequencies), as Lucene has them."""
    reader = open_reader(folder)
    try:
        terms = java_class("org.apache.lucene.index.MultiTerms").getTerms(reader, "contents")
        if terms is None:
            return reader.numDocs(), 0, 0
        return reader.numDocs(), terms.getSumDocFreq(), terms.getSumTotalTermFreq()
    finally:
        reader.close()


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


class _Tally:
    """What went by on the way into the index."""

    def __init__(self) -> None:
        self.documents = self.empty = self.postings = self.weight = 0
        self.empty_examples: list[str] = []
        self.vocabulary: int | None = None

    def note_document(self, doc_id: str, text: str) -> bool:
        """Whether the document has anything to index."""
        self.documents += 1
        if text:
            return True
        self.empty += 1
        if len(self.empty_examples) < EMPTY_EXAMPLES:
            self.empty_examples.append(doc_id)
        return False

    def note_vocabulary(self, terms: int, npz: Path) -> None:
        if self.vocabulary not in (None, terms):
            raise UserError(f"{npz}: has {terms} terms, the shards before it {self.vocabulary}")
        self.vocabulary = terms


def _impact_documents(
    shards: list[Path], quantization: int, tally: _Tally, bar: tqdm
) -> Iterator[Document]:
    for npz in shards:
        vectors, ids = read_vectors(npz)
        tally.note_vocabulary(vectors.shape[1], npz)
        quantised = quantise(vectors, quantization, npz)
        tally.postings += quantised.nnz
        tally.weight += int(quantised.data.sum(dtype=np.int64))
        for doc_id, text in zip(ids, weighted_terms(quantised, "|"), strict=True):
            bar.update()
            if tally.note_document(doc_id, text):
                yield doc_id, text


def _text_documents(corpus: Path, tally: _Tally, bar: tqdm) -> Iterator[Document]:
    for doc_id, title, body in string_rows(corpus, _CORPUS_COLUMNS, _CHUNK):
        bar.update()
        text = document_text(title, body)
        if tally.note_document(doc_id, text):
            yield doc_id, text


def _finish(
    folder: Path, out: Path, kind: str, tally: _Tally, began: float, more: dict[str, Any]
) -> dict[str, Any]:
    """Compare with Lucene's own counts and write index.json."""
    indexed, postings, weight = _lucene_counts(folder)
    if indexed + tally.empty != tally.documents:
        raise RuntimeError(
            f"{out}: Lucene holds {indexed} documents and {tally.empty} were empty, but the corpus "
            f"has {tally.documents}"
        )
    if kind == "impact" and (postings, weight) != (tally.postings, tally.weight):
        raise RuntimeError(
            f"{out}: Lucene holds {postings} postings with weights that sum to {weight}; expected "
            f"{tally.postings} and {tally.weight}"
        )
    (folder / "write.lock").unlink(missing_ok=True)
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


@contextmanager
def _building(out: Path, total: int, progress: bool) -> Iterator[tuple[Path, tqdm]]:
    """The folder to write to and a bar; an error of Java's names `out`."""
    with (
        java_errors(f"{out}: indexing failed"),
        atomic_folder(out, mark=STATISTICS) as folder,
        tqdm(total=total, desc=out.name, unit="document", disable=not progress) as bar,
    ):
        yield folder, bar


def build_impact_index(
    vectors: list[Path],
    out: Path,
    settings: IndexSettings,
    *,
    threads: int = 1,
    memory_mb: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Index quantised document vectors, so that Lucene's score is their dot product.

    A term is `t` and its vocabulary id; its frequency is the quantised weight. Documents whose
    vector is empty after quantisation are left out and counted; a corpus of nothing else gives an
    index without documents.

    Args:
        vectors: the shards, `.npz` with the ids in `.ids.parquet` beside (see `read_vectors`).
        out: folder of the index and its index.json, replaced as a whole when all is written.
        settings: quantisation.
        threads: processors to use; from two on, Lucene works while documents are read.
        memory_mb: largest Java heap in MiB.
        progress: show a bar.

    Returns:
        What index.json holds: kind, documents, indexed, empty, empty_examples (the first ids),
        postings, bytes, seconds, quantization, vocabulary (terms that a vector has room for).

    Raises:
        UserError: a shard is missing, damaged, given twice, of another vocabulary than the others
            or holds a weight that is negative or not finite.
        RuntimeError: Java failed, or Lucene's counts differ from ours.
    """
    began = time.perf_counter()
    places = [npz.resolve() for npz in vectors]
    if twice := [
        npz for npz, place in zip(vectors, places, strict=True) if places.count(place) > 1
    ]:
        raise UserError(f"{twice[0]}: given more than once; expected each shard once")
    start_jvm(threads=threads, memory_mb=memory_mb)
    tally = _Tally()
    analyzer = (
        java_class("org.apache.lucene.analysis.custom.CustomAnalyzer")
        .builder()
        .withTokenizer("whitespace")
        .addTokenFilter("delimitedTermFrequency")
        .build()
    )
    similarity = java_class("io.anserini.search.similarity.ImpactSimilarity")()
    total = sum(open_parquet(ids_file(npz), ["id"]).metadata.num_rows for npz in vectors)
    with _building(out, total, progress) as (folder, bar):
        documents = _impact_documents(vectors, settings.quantization, tally, bar)
        _write_lucene(folder, analyzer, similarity, documents, threads)
        more = {"quantization": settings.quantization, "vocabulary": tally.vocabulary}
        return _finish(folder, out, "impact", tally, began, more)


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
    began = time.perf_counter()
    start_jvm(threads=threads, memory_mb=memory_mb)
    tally = _Tally()
    analyzer = java_class("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    total = open_parquet(corpus, _CORPUS_COLUMNS).metadata.num_rows
    with _building(out, total, progress) as (folder, bar):
        _write_lucene(folder, analyzer, None, _text_documents(corpus, tally, bar), threads)
        return _finish(folder, out, "bm25", tally, began, {})
