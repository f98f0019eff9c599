"""Search engines for quantised vectors, behind one small interface.

An engine is a module `engine_NAME` with the functions of `Engine`. All of them get the same
integer weights and give hits of the same kind: document ids with scores, in trec_eval's order.
"""

import itertools
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy.sparse as sp

from splade_rescale.engine_packages import check_engine
from splade_rescale.errors import UserError
from splade_rescale.parquet_files import ERRORS
from splade_rescale.runs import Hits
from splade_rescale.settings import IndexSettings, SearchSettings
from splade_rescale.vectors import open_parquet


class Batch(NamedTuple):
    """Documents on their way into an index.

    `weights` are int32 [documents, vocab], all above 0 where stored, columns in order within a
    row; no row is empty. `ids` has the document id of each row.
    """

    weights: sp.csr_matrix
    ids: list[str]


class Corpus(Protocol):
    """The documents to index; may be iterated more than once."""

    def __iter__(self) -> Iterator[Batch]:
        """The documents in corpus order, without those whose vector is empty."""
        ...


class Found(NamedTuple):
    """What a search found: hits best first, and the seconds that the query took."""

    hits: Hits
    seconds: float


class Engine(Protocol):
    """What an engine's module has."""

    def build(
        self,
        folder: Path,
        corpus: Corpus,
        settings: IndexSettings,
        *,
        threads: int,
        memory_mb: int | None,
    ) -> tuple[int, int]:
        """Write an index of the corpus into an empty folder.

        Returns:
            The documents and the postings in the index, as the engine counts them.

        Raises:
            UserError: the engine cannot hold these weights.
        """
        ...

    def search(
        self,
        folder: Path,
        queries: sp.csr_matrix,
        settings: SearchSettings,
        *,
        most: int,
        threads: int,
        memory_mb: int | None,
    ) -> Iterator[Found]:
        """The best documents for each query, in the order of the queries.

        Args:
            folder: that `build` wrote, with at least one document in it.
            queries: int32 [queries, vocab].
            settings: options of the engine's own.
            most: hits wanted per query.
            threads: processors to use.
            memory_mb: memory of the Java heap in MiB, where there is one.

        Raises:
            UserError: a file of the index is missing or damaged.
        """
        ...


def engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        UserError: its package is not installed.
    """
    check_engine(name)
    return cast(Engine, import_module(f"splade_rescale.engine_{name}"))


class Documents:
    """The ids of an index whose documents are numbered, and the order of equal scores.

    Args:
        ids: the id of each document.
    """

    FILE = "ids.parquet"

    def __init__(self, ids: pa.Array | list[str]) -> None:
        self.ids = pa.array(ids, pa.large_string())

    def write(self, folder: Path) -> None:
        """Write `ids.parquet`, column `id`."""
        pq.write_table(pa.table({"id": self.ids}), folder / self.FILE)

    @classmethod
    def read(cls, *files: Path) -> "Documents":
        """Read the ids of one file or of several, one after another.

        Raises:
            UserError: as `open_parquet`.
        """
        parts: list[Any] = []
        for path in files:
            with open_parquet(path, ["id"]) as file:
                try:
                    parts += file.read(["id"])["id"].cast(pa.large_string()).chunks
                except ERRORS as error:
                    raise UserError(f"{path}: not a readable parquet file ({error})") from None
        return cls(pa.chunked_array(parts, pa.large_string()).combine_chunks())

    @cached_property
    def ranks(self) -> np.ndarray:
        """The place of each document among equal scores, int64 [documents]: 0 comes first.

        Greater ids come first, by code point, as trec_eval orders them.
        """
        order = pc.sort_indices(self.ids, sort_keys=[("", "descending")]).to_numpy()
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        return ranks

    def hits(self, rows: np.ndarray, scores: np.ndarray) -> Hits:
        """Documents with their scores (held as float32), best first."""
        rows, scores = np.asarray(rows, np.int64), np.asarray(scores, np.float32)
        order = np.lexsort((self.ranks[rows], -scores))
        names = self.ids.take(pa.array(rows[order])).to_pylist()
        return [*zip(names, scores[order].tolist(), strict=True)]


def rows_of(queries: sp.csr_matrix) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The terms and the weights of each row."""
    for start, end in itertools.pairwise(queries.indptr.tolist()):
        yield queries.indices[start:end], queries.data[start:end]
