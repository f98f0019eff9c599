"""Encoded texts as the indexes take them: read from files, checked, and quantised to integers."""

import itertools
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from splade_rescale.errors import UserError
from splade_rescale.parquet_files import ERRORS, read_batches

# weights, and the sum of a text's, are 32-bit integers in Lucene
_LARGEST = 2**31 - 1
# what scipy.sparse.load_npz raises on files cut short, overwritten or of another kind
_DAMAGE = (OSError, ValueError, KeyError, EOFError, TypeError, IndexError, NotImplementedError)
_DAMAGE += (zipfile.BadZipFile, zlib.error)


def open_parquet(path: Path, columns: list[str]) -> pq.ParquetFile:
    """Open a parquet file that must have these columns, all of them strings.

    Raises:
        UserError: the file is missing or not parquet, or lacks a column or its type.
    """
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except ERRORS as error:
        raise UserError(f"{path}: not a readable parquet file ({error})") from None
    found = {field.name: field.type for field in file.schema_arrow}
    for name in columns:
        kind = found.get(name)
        if kind is None or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            columns_found = ", ".join(f"{key}: {value}" for key, value in found.items())
            raise UserError(f"{path}: expected a string column {name!r}; found {columns_found}")
    return file


def string_rows(path: Path, columns: list[str], batch_size: int) -> Iterator[tuple[str, ...]]:
    """The rows of string columns of a parquet file, read in batches.

    Raises:
        UserError: as `open_parquet` and `read_batches`, or a value is null.
    """
    with open_parquet(path, columns) as file:
        for batch in read_batches(file, path, batch_size=batch_size, columns=columns):
            for name in columns:
                if batch[name].null_count:
                    raise UserError(f"{path}: column {name} has a null, expected strings only")
            yield from zip(*(batch[name].to_pylist() for name in columns), strict=True)


def ids_file(npz: Path) -> Path:
    """The file with the ids of the rows of `X.npz`: column `id` of `X.ids.parquet` beside it."""
    return npz.with_suffix(".ids.parquet")


def read_vectors(npz: Path) -> tuple[sp.csr_matrix, list[str]]:
    """Read encoded texts: the vectors, float32 [texts, vocab], and the id of each row.

    Raises:
        UserError: a file is missing or damaged, or there are more ids than rows or fewer.
    """
    try:
        vectors = sp.csr_matrix(sp.load_npz(npz))
    except FileNotFoundError:
        raise UserError(f"{npz}: no such file") from None
    except _DAMAGE as error:
        raise UserError(f"{npz}: not a readable sparse matrix ({error})") from None
    ids = [row[0] for row in string_rows(ids_file(npz), ["id"], 1 << 16)]
    if len(ids) != vectors.shape[0]:
        raise UserError(
            f"{ids_file(npz)}: {len(ids)} ids for the {vectors.shape[0]} rows of {npz.name}"
        )
    return vectors, ids


def quantise(vectors: sp.csr_matrix, quantization: int, where: str | Path) -> sp.csr_matrix:
    """round(quantization x weight) as int32 [texts, vocab], without the zeros that this makes.

    Rounding is numpy.rint's in float64: to the nearest integer, halves to the even one.

    Args:
        vectors: weights, finite and not negative.
        quantization: the factor.
        where: the file they come from, for the message.

    Raises:
        UserError: a weight is negative, not finite or too large; names file and row.
    """
    weights = np.rint(vectors.data.astype(np.float64) * quantization)
    wrong = np.flatnonzero(~(vectors.data >= 0) | ~(weights <= _LARGEST))
    if len(wrong):
        row = int(np.searchsorted(vectors.indptr, wrong[0], side="right")) - 1
        raise UserError(
            f"{where}: row {row} (counted from 0), term {vectors.indices[wrong[0]]}: weight "
            f"{vectors.data[wrong[0]]}; expected finite weights >= 0 that stay below 2^31 after "
            f"multiplication by {quantization}"
        )
    sums = np.diff(np.concatenate([[0], np.cumsum(weights)])[vectors.indptr])
    if sums.max(initial=0) > _LARGEST:
        raise UserError(
            f"{where}: row {sums.argmax()} (counted from 0): weights sum to {sums.max():.0f} after "
            f"multiplication by {quantization}; expected less than 2^31"
        )
    quantised = sp.csr_matrix(
        (weights.astype(np.int32), vectors.indices.copy(), vectors.indptr.copy()), vectors.shape
    )
    quantised.eliminate_zeros()
    return quantised


def weighted_terms(quantised: sp.csr_matrix, separator: str) -> Iterator[str]:
    """Each row as text, `t123|57 t7|4` with separator `|`; terms are vocabulary ids."""
    for start, end in itertools.pairwise(quantised.indptr.tolist()):
        terms = quantised.indices[start:end].tolist()
        weights = quantised.data[start:end].tolist()
        yield " ".join([f"t{t}{separator}{w}" for t, w in zip(terms, weights, strict=True)])
