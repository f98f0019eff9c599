import numpy as np
import pytest
from scipy import sparse
from splade_rescale.errors import UserError
from splade_rescale.sparsity import expected_flops, sparsity

QUERIES = np.array([[1, 0, 2, 0], [0.004, 0, 1, 0]], dtype=np.float32)
DOCUMENTS = np.array([[1, 0, 1, 0], [0, 0, 3, 1], [0, 0, 0, 0], [0.001, 0, 1, 0]], dtype=np.float32)


def save(folder, name, dense):
    sparse.save_npz(folder / name, sparse.csr_array(dense))
    return folder / name


def test_flops_is_the_mean_overlap_of_all_pairs():
    overlaps = [((q > 0) & (d > 0)).sum() for q in QUERIES for d in DOCUMENTS]
    flops = expected_flops(sparse.csr_array(QUERIES), sparse.csr_array(DOCUMENTS))
    assert flops == pytest.approx(np.mean(overlaps))


def test_flops_ignores_stored_zeros():
    stored = sparse.csr_array(QUERIES)
    stored.data[0] = 0
    expected = expected_flops(sparse.csr_array(stored.toarray()), sparse.csr_array(DOCUMENTS))
    assert expected_flops(stored, sparse.csr_array(DOCUMENTS)) == expected


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_shards_add_up(tmp_path, cut):
    queries = save(tmp_path, "queries.npz", QUERIES)
    shards = [save(tmp_path, "a.npz", DOCUMENTS[:cut]), save(tmp_path, "b.npz", DOCUMENTS[cut:])]
    assert sparsity(queries, shards) == {
        "queries": 2,
        "documents": 4,
        "active_terms_q": 2.0,
        "active_terms_d": 1.5,
        "empty_queries": 0,
        "empty_documents": 1,
        "flops": pytest.approx(1 * 0.5 + 1 * 0.75),
        "quantization": None,
    }


def test_weights_that_round_to_nothing_are_not_active(tmp_path):
    queries = save(tmp_path, "queries.npz", QUERIES)
    found = sparsity(queries, [save(tmp_path, "a.npz", DOCUMENTS)], 100)
    assert found["active_terms_q"] == 1.5
    assert found["active_terms_d"] == 1.25
    assert found["flops"] == pytest.approx(0.5 * 0.25 + 1 * 0.75)


def test_a_text_whose_weights_all_round_to_nothing_is_empty(tmp_path):
    queries = save(tmp_path, "queries.npz", QUERIES)
    found = sparsity(queries, [save(tmp_path, "a.npz", DOCUMENTS * 0.001)], 100)
    assert found["empty_documents"] == 4
    assert found["flops"] == 0


def test_bad_files_are_named(tmp_path):
    queries = save(tmp_path, "queries.npz", QUERIES)
    corpus = save(tmp_path, "corpus.npz", DOCUMENTS)
    with pytest.raises(UserError, match=r"absent\.npz"):
        sparsity(queries, [tmp_path / "absent.npz"])
    corpus.write_bytes(corpus.read_bytes()[:-40])
    with pytest.raises(UserError, match=r"corpus\.npz"):
        sparsity(queries, [corpus])
    narrow = save(tmp_path, "narrow.npz", DOCUMENTS[:, :3])
    with pytest.raises(UserError, match=r"narrow\.npz: has 3 terms"):
        sparsity(queries, [narrow])


def test_no_texts_is_an_error(tmp_path):
    queries = save(tmp_path, "queries.npz", QUERIES)
    none = save(tmp_path, "none.npz", QUERIES[:0])
    with pytest.raises(UserError, match=r"none\.npz"):
        sparsity(none, [queries])
    with pytest.raises(UserError, match="no documents"):
        sparsity(queries, [none])
    with pytest.raises(ValueError):
        expected_flops(sparse.csr_array(QUERIES[:0]), sparse.csr_array(QUERIES))


def test_active_terms_are_those_that_the_index_stores(tmp_path):
    from splade_rescale.index import quantise

    halves = np.arange(0, 40, dtype=np.float32)[None] / 200  # every second one is a tie
    queries = save(tmp_path, "queries.npz", halves)
    stored = quantise(sparse.csr_matrix(halves), 100, "queries.npz").nnz
    assert sparsity(queries, [queries], 100)["active_terms_q"] == stored == 38
