import math

import numpy as np
import pandas as pd
import pytest
import torch
from splade_rescale.errors import UserError
from splade_rescale.head import output_projection, scale_head, untie
from splade_rescale.norms import activation_statistics, format_norms, measure
from splade_rescale.row_norms import head_norms
from splade_rescale.settings import NormsSettings, RescaleSettings
from torch import nn

QUERIES = ["red cat", "slow river", "blue bird sees", "the index", "one tree", "quick xyz"]
DOCUMENTS = [
    "the red cat runs",
    "a slow river in the old city",
    "one blue bird sees a fish",
    "index and query of paper",
    "tree over house",
    "the quick dog",
]


def with_projection(model, weight, bias=None):
    untie(model)
    projection = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    projection.weight = nn.Parameter(weight)
    if bias is not None:
        projection.bias = nn.Parameter(bias)
    model.cls.predictions.decoder = projection
    return model


def test_norms_of_a_matrix_made_by_hand(tiny_masked_lm):
    # Norms 5, 0, 1, 13; directions (.6, .8), none, (0, -1), (5, 12) / 13.
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, -1.0], [5.0, 12.0]])
    bias = torch.tensor([1.0, -1.0, 2.0, -4.0])
    found = head_norms(with_projection(tiny_masked_lm("bert"), weight, bias))
    assert found["V"] == 4 and found["d"] == 2 and found["tied"] is False
    assert found["architecture"] == "BertForMaskedLM"
    assert found["projection"] == "cls.predictions.decoder"
    assert (found["mean"], found["min"], found["max"]) == (4.75, 0, 13)
    assert found["std"] == pytest.approx(math.sqrt((25 + 0 + 1 + 169) / 4 - 4.75**2))
    assert found["p50"] == 3 and found["p25"] == 0.75 and found["p99"] == pytest.approx(12.76)
    assert found["zero_rows"] == 1
    cosines = [-0.8, (3 * 5 + 4 * 12) / (5 * 13), -12 / 13]
    assert found["anisotropy"] == pytest.approx(sum(cosines) / 3)
    assert found["bias_mean"] == -0.5 and found["bias_min"] == -4 and found["bias_max"] == 2
    assert found["bias_std"] == pytest.approx(math.sqrt((1 + 1 + 4 + 16) / 4 - 0.25))


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_anisotropy_is_the_mean_over_all_pairs(shift, tiny_masked_lm, monkeypatch):
    monkeypatch.setattr("splade_rescale.row_norms._BLOCK", 7)
    weight = torch.randn(50, 9, generator=torch.Generator().manual_seed(1)) + shift
    found = head_norms(with_projection(tiny_masked_lm("bert"), weight))
    unit = nn.functional.normalize(weight.double())
    cosine = unit @ unit.T
    expected = cosine[~torch.eye(50, dtype=bool)].mean().item()
    assert found["anisotropy"] == pytest.approx(expected, abs=1e-12)
    assert found["mean"] == pytest.approx(weight.double().norm(dim=1).mean().item(), rel=1e-12)
    assert found["bias_mean"] is None


def test_no_pair_of_rows_has_no_anisotropy(tiny_masked_lm):
    weight = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    found = head_norms(with_projection(tiny_masked_lm("bert"), weight))
    assert found["anisotropy"] is None and found["zero_rows"] == 1


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta", "albert", "modernbert"])
def test_norms_divide_by_k(architecture, tiny_masked_lm):
    model = tiny_masked_lm(architecture)
    before = head_norms(model)
    assert before["tied"] and before["d"] == (16 if architecture == "albert" else 32)
    scale_head(model, 8, tying="untied", bias="scale")
    after = head_norms(model)
    assert after["tied"] is False
    for key in ("mean", "std", "min", "max", "p5", "p95", "bias_mean", "bias_std"):
        assert after[key] == pytest.approx(before[key] / 8, rel=1e-12)
    assert after["anisotropy"] == pytest.approx(before["anisotropy"], rel=1e-9)


def test_values_that_are_not_finite_are_refused(tiny_masked_lm):
    model = tiny_masked_lm("bert")
    with torch.no_grad():
        output_projection(model)[1].weight[3, 2] = math.nan
    with pytest.raises(UserError, match=r"BertForMaskedLM: .*cls\.predictions\.decoder.*finite"):
        head_norms(model)


def statistics(model, tokenizer, ks, *, tying="untied", bias="scale", batch_size=3, **lengths):
    return activation_statistics(
        model,
        tokenizer,
        QUERIES,
        DOCUMENTS,
        ks,
        NormsSettings(batch_size=batch_size),
        RescaleSettings(tying=tying, bias=bias),
        **{"query_length": 16, "document_length": 16, **lengths},
    )


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta", "modernbert"])
def test_one_pass_for_all_k_equals_a_pass_per_k(
    architecture, tiny_masked_lm, tiny_tokenizer, monkeypatch
):
    model = tiny_masked_lm(architecture)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    once = statistics(model, tiny_tokenizer, [1, 4, 0.5])
    monkeypatch.setattr("splade_rescale.norms._commutes", lambda *_: False)
    each = statistics(model, tiny_tokenizer, [1, 4, 0.5])
    assert [row["k"] for row in once] == [1, 4, 0.5]
    for left, right in zip(once, each, strict=True):
        assert left == pytest.approx(right, rel=1e-5)
    assert once[0]["first_loss"] != pytest.approx(once[1]["first_loss"])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name])


@pytest.mark.parametrize(("tying", "bias"), [("shared", "scale"), ("untied", "keep")])
def test_statistics_where_k_does_not_commute(tying, bias, tiny_masked_lm, tiny_tokenizer):
    model = tiny_masked_lm("bert")
    rows = statistics(model, tiny_tokenizer, [1, 4], tying=tying, bias=bias)
    plain = statistics(model, tiny_tokenizer, [1, 4])
    assert rows[0] == pytest.approx(plain[0], rel=1e-5)
    assert rows[1]["active_terms_d"] != plain[1]["active_terms_d"]
    scale_head(model, 4, tying=tying, bias=bias)
    (scaled,) = statistics(model, tiny_tokenizer, [1])
    assert rows[1] == pytest.approx({**scaled, "k": 4}, rel=1e-5)


def test_statistics_follow_their_definitions(tiny_masked_lm, tiny_tokenizer):
    model = tiny_masked_lm("bert")
    (row,) = statistics(model, tiny_tokenizer, [2.0], batch_size=4)

    def vectors(texts):
        batch = tiny_tokenizer(texts, padding=True, truncation=True, max_length=16)
        ids, mask = torch.tensor(batch["input_ids"]), torch.tensor(batch["attention_mask"])
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask).logits / 2
        return logits.masked_fill(mask[:, :, None] == 0, -math.inf).amax(1).relu().log1p().numpy()

    # Six pairs in batches of four: the last two pairs are left out.
    queries, documents = vectors(QUERIES[:4]), vectors(DOCUMENTS[:4])
    scores = queries @ documents.T
    size = model.config.vocab_size
    assert row["pairs"] == 4 and row["batch_size"] == 4
    assert 0 < row["active_terms_d"] < size
    for side, values in (("q", queries), ("d", documents)):
        active = values[values > 0]
        assert row[f"active_terms_{side}"] == len(active) / 4
        assert row[f"active_part_{side}"] == pytest.approx(len(active) / 4 / size)
        assert row[f"weight_mean_{side}"] == pytest.approx(active.mean(), rel=1e-5)
        assert row[f"weight_max_{side}"] == pytest.approx(active.max(), rel=1e-5)
    assert row["score_mean"] == pytest.approx(scores.mean(), rel=1e-5)
    assert row["score_std"] == pytest.approx(scores.std(), rel=1e-5)
    loss = np.mean(np.log(np.exp(scores).sum(axis=1)) - np.diag(scores))
    assert row["first_loss"] == pytest.approx(loss, rel=1e-4)


def test_a_head_that_lights_up_nothing(tiny_masked_lm, tiny_tokenizer):
    model = tiny_masked_lm("bert")
    projection = output_projection(model)[1]
    with torch.no_grad():
        projection.weight.zero_()
        projection.bias.fill_(-1)
    (row,) = statistics(model, tiny_tokenizer, [1])
    assert row["active_terms_q"] == row["active_terms_d"] == row["weight_max_d"] == 0
    assert row["weight_mean_q"] is None and row["score_std"] == 0
    assert row["first_loss"] == pytest.approx(math.log(3))


def test_texts_are_cut_at_the_lengths(tiny_masked_lm, tiny_tokenizer, monkeypatch):
    model = tiny_masked_lm("bert")
    (cut,) = statistics(model, tiny_tokenizer, [1], query_length=3, document_length=4)
    (whole,) = statistics(model, tiny_tokenizer, [1])
    assert cut["weight_mean_d"] != whole["weight_mean_d"]
    for name, texts, words in (("QUERIES", QUERIES, 1), ("DOCUMENTS", DOCUMENTS, 2)):
        short = [" ".join(text.split()[:words]) for text in texts]
        monkeypatch.setitem(globals(), name, short)
    (by_hand,) = statistics(model, tiny_tokenizer, [1])
    assert cut == by_hand


def test_texts_are_cut_where_the_model_s_positions_end(tiny_masked_lm, tiny_tokenizer, monkeypatch):
    tiny_tokenizer.model_max_length = 10**30  # as transformers has it where no file says
    model = tiny_masked_lm("roberta")  # 80 positions, the first behind the padding's
    monkeypatch.setitem(globals(), "DOCUMENTS", [text + " cat" * 200 for text in DOCUMENTS])
    (long,) = statistics(model, tiny_tokenizer, [1], document_length=500)
    (fitting,) = statistics(model, tiny_tokenizer, [1], document_length=79)
    assert long == fitting


def test_bad_input_of_the_statistics(tiny_masked_lm, tiny_tokenizer):
    arguments = [NormsSettings(), RescaleSettings()]
    lengths = {"query_length": 8, "document_length": 8}
    model = tiny_masked_lm("bert")
    with pytest.raises(UserError, match="1 queries and 1 documents"):
        activation_statistics(model, tiny_tokenizer, ["cat"], ["dog"], [1], *arguments, **lengths)
    tiny_tokenizer.add_tokens(["newword"])
    with pytest.raises(UserError, match="they do not belong together"):
        statistics(model, tiny_tokenizer, [1])


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.parquet"
    pd.DataFrame({"query": QUERIES, "positive": DOCUMENTS}).to_parquet(path)
    return path


def test_measure_writes_both_files(tiny_checkpoint, train, tmp_path):
    out, activation = tmp_path / "norms.json", tmp_path / "activation.csv"
    options = {"out": out, "activation": activation, "train": train, "scales": ["1", "16", "0.5"]}
    norms = measure(tiny_checkpoint("bert"), NormsSettings(texts=4, batch_size=2), **options)
    assert pd.read_json(out, typ="series")["mean"] == pytest.approx(norms["mean"])
    table = pd.read_csv(activation, dtype={"k": str})
    assert list(table["k"]) == ["1", "16", "0.5"]
    assert list(table["pairs"]) == [4, 4, 4]
    first = activation.read_bytes()
    measure(tiny_checkpoint("bert"), NormsSettings(texts=4, batch_size=2), **options)
    assert activation.read_bytes() == first
    measure(tiny_checkpoint("bert"), NormsSettings(texts=4, batch_size=2, seed=5), **options)
    assert activation.read_bytes() != first


def test_measure_refuses_bad_training_rows(tiny_checkpoint, tmp_path):
    folder, activation = tiny_checkpoint("bert"), tmp_path / "activation.csv"
    for frame, message in (
        (pd.DataFrame({"query": ["a"], "text": ["b"]}), "columns query and positive"),
        (pd.DataFrame({"query": ["a"], "positive": ["b"]}), "1 rows"),
    ):
        frame.to_parquet(tmp_path / "bad.parquet")
        with pytest.raises(UserError, match=message):
            measure(folder, NormsSettings(), activation=activation, train=tmp_path / "bad.parquet")
    with pytest.raises(UserError, match=r"none\.parquet: no such file"):
        measure(folder, NormsSettings(), activation=activation, train=tmp_path / "none.parquet")
    assert not activation.exists()


def test_the_table_says_on_which_side_of_the_threshold_a_head_is(tiny_masked_lm):
    model = tiny_masked_lm("bert")
    norms = head_norms(model)
    assert norms["mean"] < 2
    text = format_norms("some/model", norms)
    assert text.startswith("some/model (BertForMaskedLM)")
    assert f"mean {norms['mean']:.4f}" in text and "tied to the input embeddings" in text
    assert "train at k = 1" in text
    scale_head(model, 1 / 16, tying="untied", bias="scale")
    text = format_norms("some/model", head_norms(model))
    assert "fail at k = 1" in text and "not tied" in text
    text = format_norms("x", head_norms(with_projection(model, torch.ones(3, 2))))
    assert "  bias               none\n" in text
