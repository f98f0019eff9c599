"""The engine `seismic`: clustered inverted lists that are searched approximately.

Bruch, Nardini, Rulli and Venturini, SIGIR 2024. The package holds weights in 16-bit floats, in
which whole numbers up to 2,048 are exact. Clusters are drawn at random, and the package takes no
seed: two builds may differ in a few hits.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from splade_rescale.engines import Corpus, Documents, Found, rows_of
from splade_rescale.errors import UserError
from splade_rescale.settings import IndexSettings, SearchSettings

_FILE = "seismic"
_SUFFIX = ".index.seismic"  # the package adds it
_LARGEST = 65_504  # of 16-bit floats
_NARROW = 1 << 16  # terms that the ordinary index can tell apart
_CHUNK = 64


def _index(vocabulary: int) -> type:
    import seismic

    return seismic.SeismicIndex if vocabulary <= _NARROW else seismic.SeismicIndexLV


def build(
    folder: Path, corpus: Corpus, settings: IndexSettings, *, threads: int, memory_mb: int | None
) -> tuple[int, int]:
    """Cluster the documents; see `engines.Engine`."""
    import seismic

    ids: list[str] = []
    data, vocabulary = None, 0
    for weights, names in corpus:
        if data is None:
            vocabulary = weights.shape[1]
            kind = seismic.SeismicDataset if vocabulary <= _NARROW else seismic.SeismicDatasetLV
            data = kind(vocabulary)
        if (largest := weights.data.max()) > _LARGEST:
            raise UserError(
                f"a weight is {largest} after multiplication by index.quantization; the engine "
                f"seismic holds {_LARGEST} at most: choose a smaller index.quantization"
            )
        data.add_documents_by_id(
            [str(n) for n in range(len(ids), len(ids) + len(names))],
            weights.indices.astype(np.int64),
            weights.data.astype(np.float32),
            weights.indptr.astype(np.int64),
        )
        ids += names
    Documents(ids).write(folder)
    if data is None:
        return 0, 0
    own = settings.seismic
    index = _index(vocabulary).build_from_dataset(
        data,
        n_postings=own.n_postings,
        centroid_fraction=own.centroid_fraction,
        min_cluster_size=own.min_cluster_size,
        summary_energy=own.summary_energy,
        max_fraction=own.max_fraction,
        doc_cut=own.doc_cut,
        batched_indexing=own.batched_indexing,
        num_threads=threads,
    )
    index.save(str(folder / _FILE))
    return index.len, index.nnz


def search(
    folder: Path,
    queries: sp.csr_matrix,
    settings: SearchSettings,
    *,
    most: int,
    threads: int,
    memory_mb: int | None,
) -> Iterator[Found]:
    """Search; see `engines.Engine`. With several threads a query's time is that of its chunk."""
    import seismic

    documents = Documents.read(folder / Documents.FILE)
    path = folder / f"{_FILE}{_SUFFIX}"
    try:
        index = _index(queries.shape[1]).load(str(path))
    except OSError as error:
        raise UserError(
            f"{path}: not a readable Seismic index ({error}); delete the index and index again"
        ) from None
    text = seismic.get_seismic_string()
    names = np.array([str(term) for term in range(queries.shape[1])], dtype=text)
    options = settings.seismic.query_cut, settings.seismic.heap_factor
    most = min(most, len(documents.ids))
    chunk = 1 if threads == 1 else _CHUNK * threads
    for start in range(0, queries.shape[0], chunk):
        rows = [*rows_of(queries[start : start + chunk])]
        began = time.perf_counter()
        terms = [names[which] for which, _ in rows]
        weights = [values.astype(np.float32) for _, values in rows]
        hits: list[list] = [[] for _ in rows]
        if threads == 1:
            hits[0] = index.search("0", terms[0], weights[0], most, *options)
        else:
            places = np.array([str(n) for n in range(len(rows))], dtype=text)
            # the package answers queries in an order of its own
            for found in index.batch_search(
                places, terms, weights, most, *options, num_threads=threads
            ):
                if found:
                    hits[int(found[0][0])] = found
        seconds = (time.perf_counter() - began) * min(threads, len(rows)) / len(rows)
        for each in hits:
            numbers = [int(document) for _, _, document in each]
            yield Found(documents.hits(numbers, [score for _, score, _ in each]), seconds)
