"""Search in the indexes of `index`: dot products of quantised vectors, and BM25.

Hits stand in trec_eval's order: score descending, then document id descending. Lucene sorts by
both itself, so the order holds at the cut too: of documents with equal scores it keeps the right
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

from tqdm import tqdm

from splade_rescale.errors import UserError
from splade_rescale.files import read_json
from splade_rescale.index import STATISTICS, open_reader
from splade_rescale.java import java_class, java_errors, java_map, start_jvm
from splade_rescale.runs import Hits, write_run
from splade_rescale.settings import Bm25Settings, SearchSettings
from splade_rescale.vectors import quantise, read_vectors, string_rows, weighted_terms

TAG = "splade-rescale"
_CHUNK = 32
_ANY_NUMBER_OF_TERMS = 2**31 - 1  # Lucene's default is 1,024 and an exception

Query = tuple[str, str]
Parser = Callable[[str], Any]


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

    def __call__(self, queries: list[Query]) -> list[tuple[str, str | None]]:
        """Query ids with Lucene's hits as JSON; None for a query without terms."""
        return [(query_id, self._search(text)) for query_id, text in queries]

    def _search(self, text: str) -> str | None:
        if not text.strip():  # Lucene's query parser refuses it
            return None
        top = self.searcher.search(self.parse(text), self.most, self.order)
        # All hits in one call: reading fields of Java objects one by one takes longer than the
        # search.
        return self.json.writeValueAsString(top)


def _read_hits(found: str | None) -> Iterator[tuple[str, float]]:
    """Hits from Lucene's JSON: the values sorted by, which are the score and the id's bytes."""
    for hit in json.loads(found)["scoreDocs"] if found else []:
        score, value = hit["fields"]
        start = value["offset"]  # the bytes may stand in a larger buffer
        doc_id = base64.b64decode(value["bytes"])[start : start + value["length"]].decode()
        yield doc_id, float(score)


def _kept(query_id: str, found: Iterable[tuple[str, float]], hits: int, own: bool) -> Hits:
    """The best `hits` of those found; without the query itself if `own` hits are removed."""
    kept = (hit for hit in found if not (own and hit[0] == query_id))
    return [*itertools.islice(kept, hits)]


def _impact_parser() -> Parser:
    analyzer = java_class("org.apache.lucene.analysis.core.WhitespaceAnalyzer")()
    # the classic parser reads `t12^57 t7^3`: weighted terms in one call, whatever their number
    parser = java_class("org.apache.lucene.queryparser.classic.QueryParser")("contents", analyzer)
    return lambda text: parser.parse(text)


def _bm25_parser() -> Parser:
    analyzer = java_class("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    generator = java_class("io.anserini.search.query.BagOfWordsQueryGenerator")()
    return lambda text: generator.buildQuery("contents", analyzer, text)


def _statistics_of(index: Path, kind: str) -> dict[str, Any]:
    statistics = read_json(index / STATISTICS)
    if statistics.get("kind") != kind:
        raise UserError(
            f"{index / STATISTICS}: expected an index of kind {kind!r}, found "
            f"{statistics.get('kind')!r}"
        )
    return statistics


class _Counter:
    """Counts hits on their way to the run file."""

    def __init__(self) -> None:
        self.queries = self.hits = self.without_hits = 0

    def __call__(self, results: Iterable[tuple[str, Hits]]) -> Iterator[tuple[str, Hits]]:
        for query_id, hits in results:
            self.queries += 1
            self.hits += len(hits)
            self.without_hits += not hits
            yield query_id, hits


def _search(
    index: Path,
    queries: list[Query],
    out_run: Path,
    similarity: Any,
    parse: Parser,
    *,
    hits: int,
    remove_self_hits: bool,
    threads: int,
    progress: bool,
) -> dict[str, Any]:
    began = time.perf_counter()
    counter = _Counter()
    with java_errors(f"{index}: search failed"), ExitStack() as after:
        reader = open_reader(index)
        after.callback(reader.close)
        executor = None
        if threads > 1:
            executor = java_class("java.util.concurrent.Executors").newFixedThreadPool(threads)
            after.callback(executor.shutdown)
        # one more hit than is kept, in case that it is the query itself
        search = _Searcher(reader, similarity, parse, hits + 1, executor)
        found = after.enter_context(closing(java_map(search, _chunks(queries), threads)))
        results = (
            (query_id, _kept(query_id, _read_hits(text), hits, remove_self_hits))
            for query_id, text in itertools.chain.from_iterable(found)
        )
        bar = tqdm(
            counter(results),
            total=len(queries),
            desc=out_run.name,
            unit="query",
            disable=not progress,
        )
        write_run(out_run, bar, TAG)
    seconds = time.perf_counter() - began
    return {
        "queries": counter.queries,
        "queries_without_hits": counter.without_hits,
        "mean_hits": counter.hits / counter.queries if counter.queries else 0.0,
        "seconds": round(seconds, 3),
        "queries_per_second": round(counter.queries / seconds, 1),
    }


def _chunks(queries: Iterable[Query]) -> Iterator[list[Query]]:
    iterator = iter(queries)
    while chunk := list(itertools.islice(iterator, _CHUNK)):
        yield chunk


def search_impact(
    index: Path,
    queries_npz: Path,
    out_run: Path,
    settings: SearchSettings,
    *,
    remove_self_hits: bool,
    threads: int = 1,
    memory_mb: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Rank the documents of an impact index by dot product with each query.

    Queries are quantised as the index was; no term is dropped, however frequent. A score is the
    integer dot product of the quantised vectors, exact below 2^24 and rounded to float32 above
    (Lucene and trec_eval hold scores so). Documents that share no term with the query are no hits.

    Args:
        index: folder that `build_impact_index` wrote.
        queries_npz: encoded queries, with their ids in `.ids.parquet` beside.
        out_run: the run file, `.trec.gz`.
        settings: hits kept per query.
        remove_self_hits: drop hits whose document id is the query id, before the cut.
        threads: processors to use; parts of a large index are searched side by side.
        memory_mb: largest Java heap in MiB.
        progress: show a bar.

    Returns:
        queries, queries_without_hits, queries_empty (no term after quantisation), mean_hits,
        seconds, queries_per_second.

    Raises:
        UserError: the index or the queries are missing, damaged or of another kind.
        RuntimeError: Java failed.
    """
    built = _statistics_of(index, "impact")
    vectors, ids = read_vectors(queries_npz)
    if vectors.shape[1] != built["vocabulary"]:
        raise UserError(
            f"{queries_npz}: has {vectors.shape[1]} terms, the documents in {index} have "
            f"{built['vocabulary']}"
        )
    quantised = quantise(vectors, built["quantization"], queries_npz)
    start_jvm(threads=threads, memory_mb=memory_mb)
    statistics = _search(
        index,
        [*zip(ids, weighted_terms(quantised, "^"), strict=True)],
        out_run,
        java_class("io.anserini.search.similarity.ImpactSimilarity")(),
        _impact_parser(),
        hits=settings.hits,
        remove_self_hits=remove_self_hits,
        threads=threads,
        progress=progress,
    )
    empty = int((quantised.indptr[1:] == quantised.indptr[:-1]).sum())
    return {**statistics, "queries_empty": empty}


def search_bm25(
    index: Path,
    queries_parquet: Path,
    out_run: Path,
    settings: SearchSettings,
    bm25: Bm25Settings,
    *,
    remove_self_hits: bool,
    threads: int = 1,
    memory_mb: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Rank the documents of a BM25 index for each query text; arguments as `search_impact`.

    Args:
        index: folder that `build_bm25_index` wrote.
        queries_parquet: queries.parquet (query_id, text).
        out_run: the run file, `.trec.gz`.
        settings: hits kept per query.
        bm25: k1 and b.
        remove_self_hits: drop hits whose document id is the query id, before the cut.
        threads: processors to use; parts of a large index are searched side by side.
        memory_mb: largest Java heap in MiB.
        progress: show a bar.

    Returns:
        queries, queries_without_hits, mean_hits, seconds, queries_per_second.

    Raises:
        UserError: the index or the queries are missing, damaged or of another kind.
        RuntimeError: Java failed.
    """
    _statistics_of(index, "bm25")
    queries = [*string_rows(queries_parquet, ["query_id", "text"], 1 << 16)]
    start_jvm(threads=threads, memory_mb=memory_mb)
    return _search(
        index,
        queries,
        out_run,
        java_class("org.apache.lucene.search.similarities.BM25Similarity")(bm25.k1, bm25.b),
        _bm25_parser(),
        hits=settings.hits,
        remove_self_hits=remove_self_hits,
        threads=threads,
        progress=progress,
    )
