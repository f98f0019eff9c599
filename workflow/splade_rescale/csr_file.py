"""Writing a sparse matrix of any number of rows with the memory of a few."""

import shutil
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
from scipy import sparse

from splade_rescale.files import atomic_file, naming

_COPIED = 1 << 20  # bytes or entries copied at a time


class CsrFile:
    """Rows of a CSR matrix [rows, columns] of float32, kept on the disk until they are saved.

    The file is the one that `scipy.sparse.save_npz(compressed=False)` writes of the whole array,
    byte by byte. Not compressed: float weights hardly shrink, and zlib would take a good part of
    the time that a GPU encodes in.

    Attributes:
        path: the .npz.
        shape: rows so far, and columns.
        nnz: entries so far.
    """

    def __init__(self, path: Path, columns: int, data: IO[bytes], indices: IO[bytes]) -> None:
        self.path = path
        self.shape = (0, columns)
        self.nnz = 0
        self._data, self._indices = data, indices
        self._counts: list[np.ndarray] = []  # entries of each row: 4 bytes a row

    def append(self, rows: sparse.csr_array) -> None:
        """Add rows; their indices must be sorted.

        Raises:
            OSError: names the .npz.
        """
        with naming(self.path):
            self._data.write(np.ascontiguousarray(rows.data, np.float32))
            self._indices.write(np.ascontiguousarray(rows.indices, np.int32))
        self._counts.append(np.diff(rows.indptr).astype(np.int32))
        self.shape = self.shape[0] + rows.shape[0], self.shape[1]
        self.nnz += rows.nnz

    def save(self) -> None:
        """Write the .npz, under a temporary name until it is whole.

        Raises:
            OSError: names the .npz.
        """
        # as scipy chooses it; indices and row starts are of one type
        wide = max(self.nnz, *self.shape) > np.iinfo(np.int32).max
        index = np.dtype(np.int64 if wide else np.int32)
        real = np.dtype(np.float32)
        starts = np.zeros(self.shape[0] + 1, index)
        np.cumsum(np.concatenate([np.zeros(0, np.int32), *self._counts]), out=starts[1:])
        with (
            atomic_file(self.path) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
        ):
            _write_entries(archive, "indices", self._indices, np.dtype(np.int32), index, self.nnz)
            _write_array(archive, "indptr", starts)
            _write_array(archive, "format", np.array(b"csr"))
            _write_array(archive, "shape", np.array(self.shape))
            _write_entries(archive, "data", self._data, real, real, self.nnz)
            _write_array(archive, "_is_array", np.array(True))


@contextmanager
def csr_file(path: Path, columns: int) -> Iterator[CsrFile]:
    """A matrix to be written to `path` by its method `save`.

    Until then its entries lie in files without a name beside `path`, which the system removes
    whatever becomes of the process.

    Raises:
        OSError: names `path`.
    """
    with ExitStack() as stack:
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            data, indices = (
                stack.enter_context(TemporaryFile(dir=path.parent)) for _ in ("data", "indices")
            )
        yield CsrFile(path, columns, data, indices)


def _write_array(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


def _write_entries(
    archive: zipfile.ZipFile,
    name: str,
    source: IO[bytes],
    found: np.dtype,
    wanted: np.dtype,
    number: int,
) -> None:
    """Copy `number` entries of type `found` as entries of type `wanted`."""
    source.seek(0)
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        header = {
            "descr": np.lib.format.dtype_to_descr(wanted),
            "fortran_order": False,
            "shape": (number,),
        }
        np.lib.format.write_array_header_1_0(file, header)
        if wanted == found:
            shutil.copyfileobj(source, file, _COPIED)
            return
        while block := source.read(_COPIED * found.itemsize):
            file.write(np.frombuffer(block, found).astype(wanted).tobytes())
