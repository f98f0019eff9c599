"""Lucene indexes: written, counted and searched.

They have the layout that pyserini and Anserini read (fields `id` and `contents`).

Lucene sorts by score and id itself, in trec_eval's order (score descending, then document id
descending), so the order holds at the cut too: of documents with equal scores it keeps the right
ones.
"""

import base64
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from splade_rescale.engines import Found
from splade_rescale.errors import UserError
from splade_rescale.java import java_cast, java_class, java_errors, java_map
from splade_rescale.runs import Hits

_CHUNK = 1000
_QUERIES = 32
_BUFFER_MB = 256
_ANY_NUMBER_OF_TERMS = 2**31 - 1  # Lucene's default is 1,024 and an exception

Document = tuple[str, str]
Parser = Callable[[str], Any]


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


def write_lucene(
    folder: Path, analyzer: Any, similarity: Any, documents: Iterable[Document], threads: int
) -> None:
    """Write an index of (id, contents) into an empty folder.

    Args:
        folder: of the index.
        analyzer: makes terms of the contents.
        similarity: its encoding of lengths; None for Lucene's default.
        documents: ids with contents.
        threads: from two on, Lucene works while documents are read.
    """
    writer = _index_writer(folder, analyzer, similarity)
    try:
        for _ in java_map(_Adder(writer), _chunks(documents, _CHUNK), threads):
            pass
        writer.commit()
    finally:
        writer.rollback()  # closes it; what was committed stays

    (folder / "write.lock").unlink(missing_ok=True)


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
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


def lucene_counts(folder: Path) -> tuple[int, int, int]:
    """Documents, postings, and the sum of all weights (term frequencies), as Lucene has them."""
    reader = open_reader(folder)
    try:
        terms = java_class("org.apache.lucene.index.MultiTerms").getTerms(reader, "contents")
        if terms is None:
            return reader.numDocs(), 0, 0
        return reader.numDocs(), terms.getSumDocFreq(), terms.getSumTotalTermFreq()
    finally:
        reader.close()


class _Searcher:
    """Searches chunks of queries.

    Args:
        reader: of the index.
        similarity: how to score.
        parse: makes a Lucene query of a text that is not empty.
        most: hits to fetch per query.
        executor: Java threads for parts of the index, if any.
    """

    def __init__(
        self, reader: Any, similarity: Any, parse: Parser, most: int, executor: Any
    ) -> None:
        searcher = java_class("org.apache.lucene.search.IndexSearcher")
        searcher.setMaxClauseCount(_ANY_NUMBER_OF_TERMS)
        self.searcher = searcher(
            reader,
            executor,
            signature="(Lorg/apache/lucene/index/IndexReader;Ljava/util/concurrent/Executor;)V",
        )
        self.searcher.setSimilarity(similarity)
        field = java_class("org.apache.lucene.search.SortField")
        kind = java_class("org.apache.lucene.search.SortField$Type")
        # bytes of UTF-8 sort as code points do, and as trec_eval's strcmp does
        by_id = field("id", kind.STRING_VAL, True)
        self.order = java_class("org.apache.lucene.search.Sort")(field.FIELD_SCORE, by_id)
        self.json = java_class("com.fasterxml.jackson.databind.ObjectMapper")()
        self.parse = parse
        # Lucene takes no larger number than a Java int
        self.most = min(most, reader.maxDoc() + 1)

    def __call__(self, queries: list[str]) -> list[tuple[str | None, float]]:
        """Lucene's hits as JSON, None for a query without terms; and seconds."""
        results = []
        for text in queries:
            began = time.perf_counter()
            results.append((self._search(text), time.perf_counter() - began))
        return results

    def _search(self, text: str) -> str | None:
        if not text.strip():  # Lucene's query parser refuses it
            return None
        top = self.searcher.search(self.parse(text), self.most, self.order)
        # All hits in one call: reading fields of Java objects one by one takes longer than the
        # search.
        return self.json.writeValueAsString(top)


def _read_hits(found: str | None) -> Hits:
    """Hits from Lucene's JSON: the values sorted by, which are the score and the id's bytes."""
    hits = []
    for hit in json.loads(found)["scoreDocs"] if found else []:
        score, value = hit["fields"]
        start = value["offset"]  # the bytes may stand in a larger buffer
        doc_id = base64.b64decode(value["bytes"])[start : start + value["length"]].decode()
        hits.append((doc_id, float(score)))
    return hits


def search_lucene(
    folder: Path, queries: list[str], similarity: Any, parse: Parser, *, most: int, threads: int
) -> Iterator[Found]:
    """The best documents for each query text, in the order of the queries.

    Args:
        folder: of the index.
        queries: texts.
        similarity: how to score.
        parse: makes a Lucene query of a text that is not empty.
        most: hits wanted per query.
        threads: processors to use; parts of a large index are searched side by side.

    Raises:
        UserError: a file of the index is missing or damaged.
        RuntimeError: Java failed.
    """
    with java_errors(f"{folder}: search failed"), ExitStack() as after:
        reader = open_reader(folder)
        after.callback(reader.close)
        executor = None
        if threads > 1:
            executor = java_class("java.util.concurrent.Executors").newFixedThreadPool(threads)
            after.callback(executor.shutdown)
        search = _Searcher(reader, similarity, parse, most, executor)
        found = after.enter_context(closing(java_map(search, _chunks(queries, _QUERIES), threads)))
        for text, seconds in itertools.chain.from_iterable(found):
            yield Found(_read_hits(text), seconds)
