"""The engine `lucene`: an impact index, whose scores are the dot products.

A term is `t` and its vocabulary id; its frequency is the quantised weight.
"""

from collections.abc import Iterator
from pathlib import Path

import scipy.sparse as sp

from splade_rescale.engines import Corpus, Found
from splade_rescale.java import java_class, java_errors, start_jvm
from splade_rescale.lucene import Document, lucene_counts, search_lucene, write_lucene
from splade_rescale.settings import IndexSettings, SearchSettings
from splade_rescale.vectors import weighted_terms


def build(
    folder: Path, corpus: Corpus, settings: IndexSettings, *, threads: int, memory_mb: int | None
) -> tuple[int, int]:
    """Write an impact index; see `engines.Engine`.

    Raises:
        RuntimeError: Java failed, or Lucene's sum of weights differs from ours.
    """
    start_jvm(threads=threads, memory_mb=memory_mb)
    expected = 0

    def documents() -> Iterator[Document]:
        nonlocal expected
        for weights, ids in corpus:
            expected += int(weights.data.sum(dtype="int64"))
            yield from zip(ids, weighted_terms(weights, "|"), strict=True)

    with java_errors("indexing failed"):
        analyzer = (
            java_class("org.apache.lucene.analysis.custom.CustomAnalyzer")
            .builder()
            .withTokenizer("whitespace")
            .addTokenFilter("delimitedTermFrequency")
            .build()
        )
        similarity = java_class("io.anserini.search.similarity.ImpactSimilarity")()
        write_lucene(folder, analyzer, similarity, documents(), threads)
        indexed, postings, weight = lucene_counts(folder)
    if weight != expected:
        raise RuntimeError(f"Lucene holds weights that sum to {weight}; expected {expected}")
    return indexed, postings


def search(
    folder: Path,
    queries: sp.csr_matrix,
    settings: SearchSettings,
    *,
    most: int,
    threads: int,
    memory_mb: int | None,
) -> Iterator[Found]:
    """Search; see `engines.Engine`. No term is dropped, however frequent.

    A score is the integer dot product, exact below 2^24 and rounded to float32 above (Lucene and
    trec_eval hold scores so).
    """
    start_jvm(threads=threads, memory_mb=memory_mb)
    analyzer = java_class("org.apache.lucene.analysis.core.WhitespaceAnalyzer")()
    # the classic parser reads `t12^57 t7^3`: weighted terms in one call, whatever their number
    parser = java_class("org.apache.lucene.queryparser.classic.QueryParser")("contents", analyzer)
    return search_lucene(
        folder,
        [*weighted_terms(queries, "^")],
        java_class("io.anserini.search.similarity.ImpactSimilarity")(),
        lambda text: parser.parse(text),
        most=most,
        threads=threads,
    )
