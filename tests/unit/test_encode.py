import errno
import itertools
import json
import os
import random
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import WORDS
from scipy import sparse
from splade_rescale import batches, csr_file, encode
from splade_rescale.batches import BATCH_TEXTS, CPU_TOKENS, keep_largest, split
from splade_rescale.encode import choose_device, encode_corpus, encode_queries
from splade_rescale.errors import UserError
from splade_rescale.files import naming
from splade_rescale.head import load_masked_lm, load_tokenizer, output_projection, untie
from splade_rescale.settings import EncodeSettings
from splade_rescale.splade import Splade

SETTINGS = EncodeSettings(query_length=16, document_length=32, token_budget=128)


def write_corpus(path, texts, row_group_size=7):
    columns = {
        "doc_id": [f"d {i:03d}" for i in range(len(texts))],
        "title": [title for title, _ in texts],
        "text": [text for _, text in texts],
    }
    schema = pa.schema([(name, pa.string()) for name in columns])
    pq.write_table(pa.table(columns, schema=schema), path, row_group_size=row_group_size)
    return path


@pytest.fixture
def texts():
    rng = random.Random(0)
    texts = [
        (
            " ".join(rng.choices(WORDS, k=rng.randrange(4))),
            " ".join(rng.choices(WORDS, k=rng.choice([0, 1, 3, 10, 20, 60]))),
        )
        for _ in range(40)
    ]
    return [*texts, ("", ""), ("title only", "")]


@pytest.fixture
def corpus(tmp_path, texts):
    return write_corpus(tmp_path / "corpus.parquet", texts)


@pytest.fixture
def model(tiny_checkpoint):
    return tiny_checkpoint("bert")


def read(out):
    ids = pq.read_table(out.with_suffix(".ids.parquet"))["id"].to_pylist()
    return sparse.load_npz(out), ids, json.loads(out.with_suffix(".json").read_text())


@torch.inference_mode()
def plain(folder, text, length):
    """The formula, one text at a time: no padding, no batches, whole logits."""
    tokens = load_tokenizer(folder)(text, truncation=True, max_length=length, return_tensors="pt")
    logits = load_masked_lm(folder)(**tokens).logits[0]
    return logits.relu().log1p().amax(dim=0).numpy()


def test_vectors_are_the_formula_in_corpus_order(model, corpus, texts, tmp_path):
    out = tmp_path / "vectors" / "corpus-00000-of-00001.npz"
    returned = encode_corpus(model, corpus, out, SETTINGS)
    vectors, ids, statistics = read(out)
    assert ids == [f"d {i:03d}" for i in range(len(texts))]
    expected = np.stack([plain(model, f"{a} {b}".strip(), 32) for a, b in texts])
    np.testing.assert_allclose(vectors.toarray(), expected, rtol=1e-4, atol=1e-5)
    assert vectors.format == "csr" and vectors.dtype == np.float32
    assert vectors.has_sorted_indices and vectors.data.min() > 0

    tokenizer = load_tokenizer(model)
    active = (expected > 0).sum(axis=1)
    assert statistics == returned
    assert statistics["texts"] == len(texts)
    assert statistics["tokens"] == sum(
        min(len(tokenizer(f"{a} {b}".strip())["input_ids"]), 32) for a, b in texts
    )
    assert statistics["active_terms"] == {
        "mean": pytest.approx(active.mean()),
        "min": active.min(),
        "max": active.max(),
    }
    assert statistics["empty"] == statistics["cut"] == 0
    assert statistics["vocabulary"] == vectors.shape[1]
    assert statistics["seconds"] > 0
    assert statistics["texts_per_second"] == statistics["texts"] / statistics["seconds"]
    assert EncodeSettings(**statistics["settings"]) == SETTINGS


def test_nothing_else_is_left_in_the_folder(model, corpus, tmp_path):
    encode_corpus(model, corpus, tmp_path / "vectors" / "c.npz", SETTINGS)
    names = sorted(path.name for path in (tmp_path / "vectors").iterdir())
    assert names == ["c.ids.parquet", "c.json", "c.npz"]


@pytest.mark.parametrize("architecture", ["bert", "roberta", "modernbert"])
def test_batches_do_not_change_the_result(architecture, tiny_checkpoint, corpus, tmp_path):
    model = tiny_checkpoint(architecture)
    found = []
    for budget in (1, 100, 100_000):
        settings = SETTINGS.model_copy(update={"token_budget": budget})
        encode_corpus(model, corpus, tmp_path / "c.npz", settings)
        found.append(read(tmp_path / "c.npz")[0].toarray())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[0], found[2], rtol=1e-3, atol=1e-4)


def test_a_tokenizer_that_pads_left_changes_nothing(model, corpus, tmp_path, monkeypatch):
    encode_corpus(model, corpus, tmp_path / "right.npz", SETTINGS)
    tokenizer = load_tokenizer(model)
    tokenizer.padding_side = "left"
    monkeypatch.setattr(encode, "load_tokenizer", lambda folder: tokenizer)
    encode_corpus(model, corpus, tmp_path / "left.npz", SETTINGS)
    left, right = (read(tmp_path / f"{side}.npz")[0].toarray() for side in ("left", "right"))
    np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("shards", [2, 5, 43])
@pytest.mark.parametrize("window", [4, 8192])
def test_shards_together_are_the_corpus(shards, window, model, corpus, tmp_path, monkeypatch):
    encode_corpus(model, corpus, tmp_path / "whole.npz", SETTINGS)
    whole, ids, statistics = read(tmp_path / "whole.npz")
    monkeypatch.setattr(encode, "WINDOW", window)
    parts = []
    for shard in range(shards):
        out = tmp_path / f"{shard}.npz"
        encode_corpus(model, corpus, out, SETTINGS, shard=shard, shards=shards)
        parts.append(read(out))
    assert [i for part in parts for i in part[1]] == ids
    assert max(len(p[1]) for p in parts) - min(len(p[1]) for p in parts) <= 1
    together = sparse.vstack([part[0] for part in parts])
    np.testing.assert_allclose(together.toarray(), whole.toarray(), rtol=1e-4, atol=1e-5)
    assert sum(part[2]["tokens"] for part in parts) == statistics["tokens"]


def test_reading_a_shard_skips_other_row_groups(corpus, texts, monkeypatch):
    source = encode._open_parquet(corpus, ["doc_id"])
    asked = []
    real = pq.ParquetFile.iter_batches

    def spy(self, *args, row_groups, **other):
        asked.append(row_groups)
        return real(self, *args, row_groups=row_groups, **other)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    rows = encode._windows(source, corpus, ["doc_id"], lambda batch: [], 15, 22)
    assert [i for row in rows for i in row.ids.to_pylist()] == [f"d {i:03d}" for i in range(15, 22)]
    assert asked == [[2, 3]]


def test_queries_are_encoded_at_their_own_length(model, texts, tmp_path):
    queries = [text for _, text in texts]
    table = pa.table({"query_id": [f"{i:03d}" for i in range(len(queries))], "text": queries})
    pq.write_table(table, tmp_path / "queries.parquet")
    out = tmp_path / "vectors" / "queries.npz"
    encode_queries(model, tmp_path / "queries.parquet", out, SETTINGS)
    vectors, ids, statistics = read(out)
    assert ids[:2] == ["000", "001"]
    assert statistics["texts"] == len(queries)
    expected = np.stack([plain(model, text, 16) for text in queries])
    np.testing.assert_allclose(vectors.toarray(), expected, rtol=1e-4, atol=1e-5)


def test_a_corpus_of_nothing(model, tmp_path):
    corpus = write_corpus(tmp_path / "corpus.parquet", [])
    encode_corpus(model, corpus, tmp_path / "c.npz", SETTINGS)
    vectors, ids, statistics = read(tmp_path / "c.npz")
    assert vectors.shape[0] == 0 and vectors.shape[1] > 0 and ids == []
    assert statistics["texts"] == statistics["tokens"] == 0


def set_bias(folder, value):
    model = load_masked_lm(folder)
    with torch.no_grad():
        output_projection(model)[1].bias.add_(value)
    model.save_pretrained(folder)


def test_a_dead_model_gives_empty_vectors(model, corpus, texts, tmp_path):
    set_bias(model, -1e4)
    encode_corpus(model, corpus, tmp_path / "c.npz", SETTINGS)
    vectors, _, statistics = read(tmp_path / "c.npz")
    assert vectors.nnz == 0 and vectors.shape[0] == len(texts)
    assert statistics["empty"] == len(texts)
    assert statistics["active_terms"] == {"mean": 0, "min": 0, "max": 0}


def test_a_dense_model_is_cut_to_the_largest_weights(model, corpus, texts, tmp_path):
    set_bias(model, 50)
    encode_corpus(model, corpus, tmp_path / "all.npz", SETTINGS)
    full, _, statistics = read(tmp_path / "all.npz")
    assert statistics["active_terms"]["min"] == full.shape[1]
    encode_corpus(model, corpus, tmp_path / "c.npz", SETTINGS.model_copy(update={"max_terms": 5}))
    vectors, _, statistics = read(tmp_path / "c.npz")
    assert statistics["cut"] == len(texts)
    assert statistics["active_terms"] == {"mean": 5, "min": 5, "max": 5}
    for cut, whole in zip(vectors.toarray(), full.toarray(), strict=True):
        expected = np.zeros_like(whole)
        order = np.argsort(-whole, kind="stable")[:5]
        expected[order] = whole[order]
        np.testing.assert_array_equal(cut, expected)


def test_ties_at_the_cut_go_to_the_lower_term():
    weights = torch.tensor([[1.0, 3, 2, 2, 2], [5, 5, 5, 5, 5], [0, 0, 1, 0, 2]])
    assert keep_largest(weights, 3).tolist() == [
        [0, 3, 2, 2, 0],
        [5, 5, 5, 0, 0],
        [0, 0, 1, 0, 2],
    ]


def test_only_texts_over_the_bound_are_cut(model, corpus, tmp_path):
    encode_corpus(model, corpus, tmp_path / "all.npz", SETTINGS)
    active = np.diff(read(tmp_path / "all.npz")[0].indptr)
    bound = int(np.median(active))
    assert active.min() < bound < active.max()
    settings = SETTINGS.model_copy(update={"max_terms": bound})
    assert encode_corpus(model, corpus, tmp_path / "c.npz", settings)["cut"] == sum(active > bound)
    kept = np.diff(read(tmp_path / "c.npz")[0].indptr)
    np.testing.assert_array_equal(kept, np.minimum(active, bound))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_stay_in_the_budget(device):
    rng = random.Random(1)
    lengths = [rng.choice([2, 3, 9, 40, 200]) for _ in range(3000)]
    batches = split(lengths, SETTINGS, device)
    assert sorted(i for batch in batches for i in batch) == list(range(3000))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= 128
    # nearly no padding, and no more batches than needed
    assert sum(len(b) * max(lengths[i] for i in b) for b in batches) < 1.02 * sum(lengths)
    wide = SETTINGS.model_copy(update={"token_budget": 10**6})
    assert max(map(len, split([1] * 3000, wide, device))) == BATCH_TEXTS[device]


def test_batches_on_a_cpu_are_small_whatever_the_budget():
    wide = SETTINGS.model_copy(update={"token_budget": 10**6})
    assert max(map(len, split([100] * 3000, wide, "cpu"))) == CPU_TOKENS // 100
    assert max(map(len, split([100] * 3000, wide, "cuda"))) == BATCH_TEXTS["cuda"]


def with_memory_for(monkeypatch, tokens):
    """The model on a device whose memory takes `tokens` tokens, padding included."""
    real = Splade.forward

    def forward(self, input_ids, **other):
        if input_ids.numel() > tokens:
            raise torch.OutOfMemoryError
        return real(self, input_ids, **other)

    monkeypatch.setattr(Splade, "forward", forward)


def test_a_batch_that_does_not_fit_is_halved(model, corpus, tmp_path, monkeypatch):
    encode_corpus(model, corpus, tmp_path / "plain.npz", SETTINGS)
    with_memory_for(monkeypatch, 40)
    encode_corpus(model, corpus, tmp_path / "halved.npz", SETTINGS)
    plain, halved = (read(tmp_path / f"{name}.npz") for name in ("plain", "halved"))
    assert plain[1] == halved[1]
    np.testing.assert_allclose(plain[0].toarray(), halved[0].toarray(), rtol=1e-3, atol=1e-4)


def test_a_text_that_does_not_fit_is_an_error(model, corpus, tmp_path, monkeypatch):
    with_memory_for(monkeypatch, 20)
    with pytest.raises(UserError, match=r"a single text of 32 tokens; lower encode\.document_len"):
        encode_corpus(model, corpus, tmp_path / "out.npz", SETTINGS)


def test_a_batch_of_a_size_that_did_not_fit_is_not_tried_again(
    model, corpus, tmp_path, monkeypatch
):
    with_memory_for(monkeypatch, 70)
    failed = []
    real = batches.BatchEncoder._encode

    def spy(self, tokens, batch, name):
        try:
            return real(self, tokens, batch, name)
        except torch.OutOfMemoryError:
            failed.append(len(batch) * max(tokens.lengths[i] for i in batch))
            raise

    monkeypatch.setattr(batches.BatchEncoder, "_encode", spy)
    encode_corpus(model, corpus, tmp_path / "c.npz", SETTINGS)
    assert failed and all(b <= 3 / 4 * a for a, b in itertools.pairwise(failed))


@pytest.mark.parametrize("architecture", ["bert", "modernbert"])
def test_the_number_of_threads_changes_no_byte(
    architecture, tiny_checkpoint, corpus, tmp_path, monkeypatch
):
    model = tiny_checkpoint(architecture)
    monkeypatch.setattr(encode, "WINDOW", 16)
    before = torch.get_num_threads()
    files = []
    for number in (1, 2, 5):
        out = tmp_path / f"{number}" / "c.npz"
        encode_corpus(model, corpus, out, SETTINGS, threads=number)
        files.append([out.read_bytes(), out.with_suffix(".ids.parquet").read_bytes()])
    assert files[0] == files[1] == files[2]
    assert torch.get_num_threads() == before


def test_every_thread_encodes(model, corpus, tmp_path, monkeypatch):
    """Each waits for the others, which would never end if one of them did not come."""
    everybody = threading.Barrier(3, timeout=60)
    real = batches.BatchEncoder._encode
    seen = {}

    def meet(self, tokens, batch, name):
        thread = threading.get_ident()
        if thread not in seen:
            seen[thread] = torch.get_num_threads()
            everybody.wait()
        return real(self, tokens, batch, name)

    monkeypatch.setattr(batches.BatchEncoder, "_encode", meet)
    encode_corpus(model, corpus, tmp_path / "c.npz", SETTINGS, threads=3)
    assert list(seen.values()) == [1, 1, 1]
    assert threading.get_ident() not in seen


def test_replicas_share_their_tensors(model):
    one = Splade.load(model)
    other = one.replica()
    assert [p.data_ptr() for p in one.parameters()] == [p.data_ptr() for p in other.parameters()]
    assert [b.data_ptr() for b in one.buffers()] == [b.data_ptr() for b in other.buffers()]
    assert not {id(m) for m in one.modules()} & {id(m) for m in other.modules()}


@pytest.mark.parametrize("number", [1, 2])
def test_few_texts_are_held_at_once(number, model, texts, tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus.parquet", texts * 10, row_group_size=100)
    monkeypatch.setattr(encode, "WINDOW", 10)
    read_rows, most = 0, 0
    real_read, real_append = encode.read_batches, csr_file.CsrFile.append

    def reading(source, *args, **options):
        nonlocal read_rows
        for batch in real_read(source, *args, **options):
            assert batch.num_rows <= 10
            read_rows += batch.num_rows
            yield batch

    def append(self, rows):
        nonlocal most
        most = max(most, read_rows - self.shape[0])
        real_append(self, rows)

    monkeypatch.setattr(encode, "read_batches", reading)
    monkeypatch.setattr(csr_file.CsrFile, "append", append)
    settings = SETTINGS.model_copy(update={"token_budget": 32})  # 4 batches a window and more
    encode_corpus(model, corpus, tmp_path / "c.npz", settings, threads=number)
    assert read_rows == len(texts) * 10
    # the window that is written, the next ones as far as batches are taken in advance, and one
    # that is read ahead
    assert most <= 10 * (2 + -(-4 * number // 4) + 1)


@pytest.mark.parametrize("number", [1, 3])
def test_an_error_in_a_thread_ends_all_and_leaves_nothing(
    number, model, corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(encode, "WINDOW", 8)
    real = Splade.forward
    begun = []

    def forward(self, input_ids, **other):
        begun.append(len(input_ids))
        weights = real(self, input_ids, **other)
        return weights * float("nan") if sum(begun) > 20 else weights

    monkeypatch.setattr(Splade, "forward", forward)
    out = tmp_path / "vectors" / "c.npz"
    running = threading.active_count()
    with pytest.raises(UserError, match=r"doc_id 'd 0\d\d' of .*: term weights are not finite"):
        encode_corpus(model, corpus, out, SETTINGS, threads=number)
    assert not list(out.parent.iterdir())
    assert threading.active_count() == running


def test_a_damaged_row_group_ends_all_and_leaves_nothing(model, texts, tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus.parquet", [*texts[:30], ("", None)])
    monkeypatch.setattr(encode, "WINDOW", 8)
    out = tmp_path / "vectors" / "c.npz"
    with pytest.raises(UserError, match="column text has a null"):
        encode_corpus(model, corpus, out, SETTINGS, threads=2)
    assert not list(out.parent.iterdir())


def test_a_full_disk_names_the_vectors(model, corpus, tmp_path, monkeypatch):
    def append(self, rows):
        with naming(self.path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(csr_file.CsrFile, "append", append)
    out = tmp_path / "vectors" / "c.npz"
    with pytest.raises(OSError, match="No space left") as caught:
        encode_corpus(model, corpus, out, SETTINGS)
    assert caught.value.filename == str(out)
    assert not list(out.parent.iterdir())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_name_model_and_document(value, model, tmp_path):
    corpus = write_corpus(tmp_path / "corpus.parquet", [("", "dog"), ("", "the cat"), ("", "dog")])
    weights = load_masked_lm(model)
    untie(weights)
    cat = load_tokenizer(model).convert_tokens_to_ids("cat")
    weights.get_input_embeddings().weight.data[cat] = value
    weights.save_pretrained(model)
    with pytest.raises(UserError) as caught:
        encode_corpus(model, corpus, tmp_path / "c.npz", SETTINGS)
    assert str(caught.value).startswith(
        f"{model}: doc_id 'd 001' of {corpus}: term weights are not"
    )
    assert not list(tmp_path.glob("*c.*npz*"))


def test_bfloat16_is_close(model, corpus, tmp_path):
    encode_corpus(model, corpus, tmp_path / "full.npz", SETTINGS)
    settings = SETTINGS.model_copy(update={"precision": "bf16"})
    encode_corpus(model, corpus, tmp_path / "half.npz", settings)
    full, half = (read(tmp_path / f"{name}.npz")[0].toarray() for name in ("full", "half"))
    assert half.dtype == np.float32
    assert not np.array_equal(full, half)
    assert np.abs(full - half).mean() < 0.02


def test_progress_is_shown_only_when_asked(model, corpus, texts, tmp_path, capfd):
    encode_corpus(model, corpus, tmp_path / "c.npz", SETTINGS)
    assert "text/s" not in capfd.readouterr().err
    encode_corpus(model, corpus, tmp_path / "c.npz", SETTINGS, progress=True)
    assert f"{len(texts)}/{len(texts)}" in capfd.readouterr().err


def test_bad_input_is_named(model, corpus, tmp_path, monkeypatch):
    out = tmp_path / "c.npz"
    with pytest.raises(UserError, match=r"absent\.parquet: no such file"):
        encode_corpus(model, tmp_path / "absent.parquet", out, SETTINGS)
    with pytest.raises(UserError, match="shard 2 of 2"):
        encode_corpus(model, corpus, out, SETTINGS, shard=2, shards=2)
    with pytest.raises(UserError, match=r"must end in \.npz"):
        encode_corpus(model, corpus, tmp_path / "c", SETTINGS)
    with pytest.raises(UserError, match=r"corpus\.parquet: columns \['query_id'\] are missing"):
        encode_queries(model, corpus, out, SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(UserError, match="device cuda: torch finds no CUDA device"):
            encode_corpus(model, corpus, out, SETTINGS, device="cuda")
    too_long = SETTINGS.model_copy(update={"document_length": 81})
    with pytest.raises(UserError, match="takes 80 tokens at most, settings say 81"):
        encode_corpus(model, corpus, out, too_long)

    numbers = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"query_id": [1, 2], "text": ["a", "b"]}), numbers)
    with pytest.raises(UserError, match="column query_id is of type int64, expected string"):
        encode_queries(model, numbers, out, SETTINGS)
    nulls = tmp_path / "nulls.parquet"
    pq.write_table(pa.table({"query_id": ["1", "2"], "text": ["a", None]}), nulls)
    with pytest.raises(UserError, match=r"nulls\.parquet: column text has a null"):
        encode_queries(model, nulls, out, SETTINGS)
    (tmp_path / "text.parquet").write_text("not parquet at all")
    with pytest.raises(UserError, match=r"text\.parquet: not a parquet file"):
        encode_queries(model, tmp_path / "text.parquet", out, SETTINGS)
    assert not out.exists()


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch):
    assert choose_device(0) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device"):
        choose_device(1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device(1) == torch.device("cuda")
