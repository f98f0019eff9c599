import errno

import numpy as np
import pytest
from scipy import sparse
from splade_rescale import csr_file as module
from splade_rescale.csr_file import csr_file


def matrix(rows, seed=0):
    found = sparse.random_array((rows, 30), density=0.2, rng=seed, format="csr", dtype=np.float32)
    found.sort_indices()
    return found


@pytest.mark.parametrize("cuts", [[], [0], [3], [1, 1, 7, 20]])
def test_the_file_is_that_of_scipy(cuts, tmp_path):
    whole = matrix(20)
    sparse.save_npz(tmp_path / "scipy.npz", whole, compressed=False)
    with csr_file(tmp_path / "deep" / "ours.npz", 30) as file:
        for start, end in zip([0, *cuts], [*cuts, 20], strict=True):
            file.append(whole[start:end])
        assert file.shape == (20, 30) and file.nnz == whole.nnz
        assert not list((tmp_path / "deep").iterdir())
        file.save()
    assert (tmp_path / "deep" / "ours.npz").read_bytes() == (tmp_path / "scipy.npz").read_bytes()


def test_a_matrix_without_rows(tmp_path):
    with csr_file(tmp_path / "c.npz", 30) as file:
        file.save()
    found = sparse.load_npz(tmp_path / "c.npz")
    assert found.shape == (0, 30) and found.dtype == np.float32


def test_more_entries_than_32_bits_count_are_indexed_by_64(tmp_path, monkeypatch):
    class Small:
        max = 50

    whole = matrix(20)
    monkeypatch.setattr(module.np, "iinfo", lambda kind: Small)
    monkeypatch.setattr(module, "_COPIED", 7)
    with csr_file(tmp_path / "c.npz", 30) as file:
        file.append(whole)
        file.save()
    monkeypatch.undo()
    with np.load(tmp_path / "c.npz") as found:
        assert found["indices"].dtype == found["indptr"].dtype == np.int64
    assert (sparse.load_npz(tmp_path / "c.npz") != whole).nnz == 0


def test_an_error_of_the_disk_names_the_file(tmp_path):
    class Full:
        def write(self, content):
            raise OSError(errno.ENOSPC, "no space")

    with csr_file(tmp_path / "c.npz", 30) as file:
        file._data = Full()
        with pytest.raises(OSError, match="No space left") as caught:
            file.append(matrix(3))
    assert caught.value.filename == str(tmp_path / "c.npz")
    assert not list(tmp_path.iterdir())
