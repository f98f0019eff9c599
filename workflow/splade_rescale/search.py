"""Search in the indexes of `index`: dot products of quantised vectors, and BM25.

Hits stand in trec_eval's order: score descending, then document id descending.
"""

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from splade_rescale.agreement import DEPTH, exact_recall
from splade_rescale.checksums import check_sums
from splade_rescale.engines import Found, engine
from splade_rescale.errors import UserError
from splade_rescale.files import read_json
from splade_rescale.index import STATISTICS
from splade_rescale.runs import Hits, write_run
from splade_rescale.settings import Bm25Settings, SearchSettings, for_engine
from splade_rescale.vectors import quantise, read_vectors, string_rows

TAG = "splade-rescale"


def _kept(query_id: str, found: Hits, hits: int, own: bool) -> Hits:
    """The best `hits` of those found; without the query itself if `own` hits are removed."""
    kept = (hit for hit in found if not (own and hit[0] == query_id))
    return [*itertools.islice(kept, hits)]


def statistics_of(index: Path, kind: str) -> dict[str, Any]:
    """What index.json of a whole index says.

    Raises:
        UserError: the index is missing, damaged, or not of this kind (impact, bm25).
    """
    check_sums(index)
    statistics = read_json(index / STATISTICS)
    if statistics.get("kind") != kind:
        raise UserError(
            f"{index / STATISTICS}: expected an index of kind {kind!r}, found "
            f"{statistics.get('kind')!r}"
        )
    return statistics


class _Counter:
    """Counts hits on their way to the run file.

    Args:
        sample: places of the queries whose first hits are kept.
    """

    def __init__(self, sample: Iterable[int] = ()) -> None:
        self.queries = self.hits = self.without_hits = 0
        self.seconds: list[float] = []
        self.first: dict[int, list[str]] = {place: [] for place in sample}

    def note(self, hits: Hits, seconds: float) -> None:
        """Note the hits of the next query."""
        if self.queries in self.first:
            self.first[self.queries] = [doc_id for doc_id, _ in hits[:DEPTH]]
        self.queries += 1
        self.hits += len(hits)
        self.without_hits += not hits
        self.seconds.append(seconds)


def _write(
    out_run: Path,
    query_ids: Sequence[str],
    found: Iterable[Found],
    counter: _Counter,
    began: float,
    *,
    hits: int,
    remove_self_hits: bool,
    progress: bool,
) -> dict[str, Any]:
    """Write the run; returns the statistics of a search."""

    def results() -> Iterator[tuple[str, Hits]]:
        for query_id, (each, seconds) in zip(query_ids, found, strict=True):
            kept = _kept(query_id, each, hits, remove_self_hits)
            counter.note(kept, seconds)
            yield query_id, kept

    bar = tqdm(
        results(), total=len(query_ids), desc=out_run.name, unit="query", disable=not progress
    )
    write_run(out_run, bar, TAG)
    seconds = time.perf_counter() - began
    latencies = 1000 * np.array(counter.seconds) if counter.seconds else np.zeros(1)
    return {
        "queries": counter.queries,
        "queries_without_hits": counter.without_hits,
        "mean_hits": counter.hits / counter.queries if counter.queries else 0.0,
        "seconds": round(seconds, 3),
        "queries_per_second": round(counter.queries / seconds, 1),
        "ms_per_query": round(float(latencies.mean()), 4),
        "ms_per_query_median": round(float(np.median(latencies)), 4),
        "ms_per_query_p95": round(float(np.quantile(latencies, 0.95)), 4),
    }


def search_impact(
    index: Path,
    queries_npz: Path,
    out_run: Path,
    settings: SearchSettings,
    *,
    remove_self_hits: bool,
    corpus: Sequence[Path] = (),
    threads: int = 1,
    memory_mb: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Rank the documents of an impact index by dot product with each query.

    Queries are quantised as the index was. Documents that share no term with the query are no
    hits. With the vectors of the corpus at hand, the first hits of a sample of the queries are
    compared with those of exact search.

    Args:
        index: folder that `build_impact_index` wrote.
        queries_npz: encoded queries, with their ids in `.ids.parquet` beside.
        out_run: the run file, `.trec.gz`.
        settings: hits kept per query, queries in the sample, options of the engines.
        remove_self_hits: drop hits whose document id is the query id, before the cut.
        corpus: the shards that were indexed; without them nothing is compared.
        threads: processors to use.
        memory_mb: largest Java heap in MiB.
        progress: show a bar.

    Returns:
        engine, settings (without the options of other engines), queries, queries_without_hits,
        queries_empty (no term after quantisation), mean_hits, seconds, queries_per_second;
        ms_per_query, its median and its 95th percentile (the search alone, without opening the
        index and without writing the run); exact_queries (queries compared that have hits) and
        exact_recall@10 (see `agreement.exact_recall`; None if there are none).

    Raises:
        UserError: the index, the queries or the corpus are missing, damaged or of another kind.
        RuntimeError: the engine failed.
    """
    built = statistics_of(index, "impact")
    name = built.get("engine", "lucene")
    chosen = engine(name)
    vectors, ids = read_vectors(queries_npz)
    if vectors.shape[1] != built["vocabulary"]:
        raise UserError(
            f"{queries_npz}: has {vectors.shape[1]} terms, the documents in {index} have "
            f"{built['vocabulary']}"
        )
    quantised = quantise(vectors, built["quantization"], queries_npz)
    sample = _spread(len(ids), settings.exact_queries if corpus else 0)
    counter = _Counter(sample)
    began = time.perf_counter()
    found: Iterable[Found] = (Found([], 0.0) for _ in ids)
    if built["indexed"]:
        # one more hit than is kept, in case that it is the query itself
        found = chosen.search(
            index,
            quantised,
            settings,
            most=settings.hits + 1,
            threads=threads,
            memory_mb=memory_mb,
        )
    statistics = _write(
        out_run,
        ids,
        found,
        counter,
        began,
        hits=settings.hits,
        remove_self_hits=remove_self_hits,
        progress=progress,
    )
    recall, compared = exact_recall(
        [counter.first[place] for place in sample],
        quantised[sample],
        [ids[place] for place in sample],
        corpus,
        built["quantization"],
        remove_self_hits=remove_self_hits,
    )
    return {
        **statistics,
        "engine": name,
        "settings": for_engine(settings, name),
        "queries_empty": int((quantised.indptr[1:] == quantised.indptr[:-1]).sum()),
        "exact_queries": compared,
        f"exact_recall@{DEPTH}": recall,
    }


def _spread(total: int, wanted: int) -> list[int]:
    """At most `wanted` of the numbers below `total`, evenly spread, the first among them."""
    count = min(total, wanted)
    return [place * total // count for place in range(count)]


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
        queries, queries_without_hits, mean_hits, seconds, queries_per_second, ms_per_query, its
        median and its 95th percentile.

    Raises:
        UserError: the index or the queries are missing, damaged or of another kind.
        RuntimeError: Java failed.
    """
    from splade_rescale.java import java_class, start_jvm
    from splade_rescale.lucene import search_lucene

    statistics_of(index, "bm25")
    queries = [*string_rows(queries_parquet, ["query_id", "text"], 1 << 16)]
    start_jvm(threads=threads, memory_mb=memory_mb)
    analyzer = java_class("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    generator = java_class("io.anserini.search.query.BagOfWordsQueryGenerator")()
    began = time.perf_counter()
    found = search_lucene(
        index,
        [text for _, text in queries],
        java_class("org.apache.lucene.search.similarities.BM25Similarity")(bm25.k1, bm25.b),
        lambda text: generator.buildQuery("contents", analyzer, text),
        most=settings.hits + 1,
        threads=threads,
    )
    return _write(
        out_run,
        [query_id for query_id, _ in queries],
        found,
        _Counter(),
        began,
        hits=settings.hits,
        remove_self_hits=remove_self_hits,
        progress=progress,
    )
