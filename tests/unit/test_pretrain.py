import json
import os
import random
import subprocess
import sys

import pandas as pd
import pytest
import torch
from splade_rescale.errors import UserError
from splade_rescale.files import read_json
from splade_rescale.head import is_tied, load_masked_lm, load_tokenizer
from splade_rescale.pretrain import (
    SPECIALS,
    batches,
    build_model,
    encode,
    logits_at,
    pretrain,
    read_texts,
    select,
    set_output_bias,
    train_loop,
    train_tokenizer,
    z_loss,
)
from splade_rescale.settings import PretrainBackbone
from transformers import AutoModelForMaskedLM, AutoTokenizer

ARCHITECTURES = pytest.mark.parametrize("architecture", ["bert", "modernbert"])

SYLLABLES = ["ka", "lo", "mi", "ru", "te", "sa", "no", "vi", "pe", "du", "bra", "sto", "gno", "é"]


def entry(architecture="bert", **keys):
    sizes = {"vocabulary": 200, "layers": 2, "hidden": 16, "heads": 2, "max_positions": 24}
    run = {"steps": 8, "batch_size": 8, "length": 16, "learning_rate": 1e-2}
    return PretrainBackbone(
        source="pretrain", architecture=architecture, dataset="docs", **(sizes | run | keys)
    )


@pytest.fixture(scope="module")
def texts():
    """Texts of 1 to 30 made-up words; frequencies repeat, so that merges of word pieces tie."""
    rng = random.Random(0)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(300)]
    return [" ".join(rng.choices(words, k=rng.randint(1, 30))).capitalize() for _ in range(200)]


@pytest.fixture(scope="module")
def train(texts, tmp_path_factory):
    path = tmp_path_factory.mktemp("train") / "train.parquet"
    pd.DataFrame({"query": texts[:100], "positive": texts[100:]}).to_parquet(path)
    return path


@pytest.fixture
def prepared(texts):
    """A function: entry -> tokenizer, token ids of all texts, untrained model."""

    def make(entry):
        tokenizer = train_tokenizer(texts, entry)
        return tokenizer, encode(tokenizer, texts, entry.length), build_model(entry, tokenizer)

    return make


def without_seconds(folder):
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    report = json.loads(files["pretrain.json"])
    assert report.pop("seconds") >= 0
    return files | {"pretrain.json": report}


@ARCHITECTURES
def test_the_same_seed_gives_the_same_files(train, tmp_path, architecture):
    for number in (1, 2):
        torch.manual_seed(number)
        state = torch.get_rng_state()
        pretrain(entry(architecture), train, tmp_path / str(number))
        assert torch.equal(torch.get_rng_state(), state)
    first, second = (without_seconds(tmp_path / name) for name in "12")
    assert {"model.safetensors", "config.json", "tokenizer.json"} < first.keys()
    assert first == second
    pretrain(entry(architecture, seed=1), train, tmp_path / "3")
    other = without_seconds(tmp_path / "3")
    assert other["model.safetensors"] != first["model.safetensors"]
    assert other["tokenizer.json"] == first["tokenizer.json"]


@ARCHITECTURES
def test_the_saved_folder_is_the_trained_model_everywhere(
    train, texts, tmp_path, prepared, architecture
):
    wanted = entry(architecture)
    out = tmp_path / "out"
    pretrain(wanted, train, out)
    tokenizer, sequences, model = prepared(wanted)
    set_output_bias(model, sequences, wanted.z_target)
    train_loop(model, tokenizer, sequences, wanted)
    for loaded in (AutoModelForMaskedLM.from_pretrained(out), load_masked_lm(out)):
        assert type(loaded) is type(model)
        assert is_tied(loaded)
        assert not loaded.training
        state = loaded.state_dict()
        assert state.keys() == model.state_dict().keys()
        for name, value in model.state_dict().items():
            assert torch.equal(state[name], value), name
    for loaded in (AutoTokenizer.from_pretrained(out), load_tokenizer(out)):
        assert encode(loaded, texts, 16) == sequences
        assert loaded.model_max_length == 24
        batch = loaded(texts[:3], padding=True, truncation=True, return_tensors="pt")
        assert ("token_type_ids" in batch) is (architecture == "bert")
        with torch.no_grad():
            assert model(**batch).logits.shape[2] == len(loaded)


def test_the_report(train, texts, tmp_path):
    wanted = entry(steps=25)
    pretrain(wanted, train, tmp_path / "out")
    report = read_json(tmp_path / "out/pretrain.json")
    assert PretrainBackbone.model_validate(report["settings"]) == wanted
    assert report["texts"] == len(texts)
    assert report["vocabulary"] == len(AutoTokenizer.from_pretrained(tmp_path / "out"))
    assert [line["step"] for line in report["trace"]] == list(range(1, 26, 2))
    names = {"loss", "loss_masked", "loss_visible", "logsumexp"}
    assert all(line.keys() == names | {"step"} for line in report["trace"])
    # The last tenth of 25 steps is 2, of which the trace shows the second.
    assert report["final"].keys() == names
    assert report["final"] != {name: report["trace"][-1][name] for name in names}


def test_vocabulary_holds_specials_frequent_characters_and_words(texts):
    tokenizer = train_tokenizer([*texts, *["Straße 線"] * 2, "x"], entry(vocabulary=150))
    vocabulary = tokenizer.get_vocab()
    assert len(vocabulary) == 150
    assert sorted(vocabulary.values()) == list(range(150))
    assert [vocabulary[token] for token in SPECIALS] == [0, 1, 2, 3, 4]
    characters = {char for text in texts for char in text.lower().replace("é", "e")} - {" "}
    assert len(characters) <= 150 // 8
    assert characters <= vocabulary.keys()
    assert {f"##{char}" for char in characters} <= vocabulary.keys()
    assert any(len(token) > 4 for token in vocabulary.keys() - set(SPECIALS))
    assert tokenizer.tokenize("KA lo") == tokenizer.tokenize("ka lo")
    # Of 150 tokens 18 are characters that begin words: 線 and x come last and are left out.
    assert tokenizer.tokenize("線") == ["[UNK]"]


def test_vocabulary_is_the_same_in_another_process(train):
    program = (
        "import sys; from pathlib import Path; from splade_rescale import pretrain, settings\n"
        "entry = settings.PretrainBackbone.model_validate_json(sys.argv[1])\n"
        "tokenizer = pretrain.train_tokenizer(pretrain.read_texts(Path(sys.argv[2])), entry)\n"
        "print(tokenizer.backend_tokenizer.to_str())"
    )
    wanted = entry()
    there = subprocess.run(
        [sys.executable, "-c", program, wanted.model_dump_json(), str(train)],
        # This process has another seed: a random one, unless the variable is set.
        env={**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") else "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    here = train_tokenizer(read_texts(train), wanted).backend_tokenizer.to_str()
    assert there == here


@pytest.mark.parametrize("length", [8, 24])
def test_sequences_are_cls_text_sep_within_the_length(texts, length):
    tokenizer = train_tokenizer(texts, entry())
    sequences = encode(tokenizer, [*texts, ""], length)
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert sequences[-1] == [cls, sep]
    assert max(map(len, sequences)) == length
    for text, sequence in zip(texts, sequences, strict=False):
        assert (sequence[0], sequence[-1]) == (cls, sep)
        inner = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
        assert sequence[1:-1] == inner[: length - 2]


@ARCHITECTURES
def test_logits_at_positions_are_those_of_the_model(prepared, architecture):
    tokenizer, sequences, model = prepared(entry(architecture, length=24))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    ids = next(batches(sequences, entry(architecture), tokenizer.pad_token_id, generator))
    attend = ids != tokenizer.pad_token_id
    assert not attend.all()
    used = attend & (torch.rand(ids.shape, generator=generator) < 0.5)
    ours = logits_at(model, ids, attend, used)
    theirs = model(input_ids=ids, attention_mask=attend.long()).logits[used]
    assert ours.shape == (used.sum(), len(tokenizer))
    torch.testing.assert_close(ours, theirs)


def test_batches_show_every_text_once_before_any_twice():
    sequences = [[2, 10 + i] + [7] * (i % 3) + [3] for i in range(10)]
    wanted = entry(batch_size=4, steps=7)
    generator = torch.Generator().manual_seed(0)
    found = list(batches(sequences, wanted, 0, generator))
    assert len(found) == 7
    for ids in found:
        assert ids.shape == (4, max(len(sequences[row[1] - 10]) for row in ids))
        for row in ids.tolist():
            text = sequences[row[1] - 10]
            assert row == text + [0] * (len(row) - len(text))
    shown = [row[1] - 10 for ids in found for row in ids.tolist()]
    for start in (0, 10):
        assert sorted(shown[start : start + 10]) == list(range(10))
    assert shown[:10] != shown[10:20]


@pytest.mark.parametrize(("mask", "keep"), [(0.3, 0.5), (0.15, 0.1), (0.5, 0.0), (0.5, 1.0)])
def test_tokens_are_selected_and_hidden_in_the_parts_asked_for(mask, keep):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(8, (200, 500), generator=generator)
    specials = torch.arange(5)
    selected, masked = select(ids, specials, entry(mask=mask, keep=keep), generator)
    ordinary = ids > 4
    assert not (selected & ~ordinary).any()
    assert not (masked & ~selected).any()
    part = selected.sum() / ordinary.sum()
    hidden = masked.sum() / selected.sum()
    assert part.item() == pytest.approx(mask, abs=0.01)
    assert hidden.item() == pytest.approx(1 - keep, abs=0.02 if 0 < keep < 1 else 0)


def test_the_z_loss_is_the_squared_distance_of_the_logsumexp_from_its_target():
    logits = torch.tensor([[0.0, 0.0], [3.0, -50.0]], requires_grad=True)
    loss = z_loss(logits.logsumexp(-1), 1.0)
    assert loss.item() == pytest.approx(((1 - 0.693147) ** 2 + (3 - 1) ** 2) / 2, rel=1e-4)
    loss.backward()
    assert logits.grad[0, 0] < 0 < logits.grad[1, 0]


@ARCHITECTURES
def test_training_draws_the_logsumexp_to_its_target(prepared, architecture):
    traces = {}
    for weight in (0.0, 1.0):
        wanted = entry(architecture, steps=60, z_loss=weight, z_target=0.0)
        tokenizer, sequences, model = prepared(wanted)
        traces[weight] = train_loop(model, tokenizer, sequences, wanted)
        assert not model.training
    ends = {weight: pd.DataFrame(trace[-6:]).mean() for weight, trace in traces.items()}
    # Untrained logits are near 0, so their logsumexp is near the logarithm of 200 terms.
    assert traces[1.0][0]["logsumexp"] == pytest.approx(5.3, abs=0.3)
    assert abs(ends[1.0]["logsumexp"]) < 1 < 4 < ends[0.0]["logsumexp"]


@ARCHITECTURES
def test_visible_tokens_are_learned_in_a_few_steps(prepared, architecture):
    wanted = entry(architecture, steps=80, hidden=32, learning_rate=2e-2)
    tokenizer, sequences, model = prepared(wanted)
    set_output_bias(model, sequences, wanted.z_target)
    trace = train_loop(model, tokenizer, sequences, wanted)
    end = pd.DataFrame(trace[-8:]).mean()
    assert trace[0]["loss_visible"] > 4
    assert end["loss_visible"] < 2
    assert end["loss_masked"] > 4  # the words are random, so there is nothing to be learned
    assert all(abs(line["logsumexp"] - 4) < 1 for line in trace)


def test_specials_are_in_the_z_loss_but_never_predicted(prepared):
    """Texts without a word give no prediction loss, and their logsumexp is trained all the same."""
    wanted = entry(steps=60, z_target=0.0)
    tokenizer, _, model = prepared(wanted)
    trace = train_loop(model, tokenizer, encode(tokenizer, [""] * 8, 16), wanted)
    for line in trace:
        assert line["loss_masked"] == line["loss_visible"] == 0
        assert line["loss"] == pytest.approx(wanted.z_loss * line["logsumexp"] ** 2, rel=0.05)
    assert abs(trace[-1]["logsumexp"]) < 1 < 4 < trace[0]["logsumexp"]


@ARCHITECTURES
def test_output_bias_starts_at_log_frequencies_plus_the_constant(prepared, architecture):
    tokenizer, sequences, model = prepared(entry(architecture))
    set_output_bias(model, sequences, 4.0)
    bias = model.get_output_embeddings().bias.detach()
    flat = [token for sequence in sequences for token in sequence]
    assert bias.logsumexp(0).item() == pytest.approx(4, abs=1e-5)
    cls, pad = tokenizer.cls_token_id, tokenizer.pad_token_id
    ratio = (flat.count(cls) + 1) / (flat.count(pad) + 1)
    assert (bias[cls] - bias[pad]).exp().item() == pytest.approx(ratio, rel=1e-4)


@ARCHITECTURES
def test_the_model_has_the_sizes_asked_for(prepared, architecture):
    wanted = entry(architecture, layers=1, heads=4, max_positions=32)
    tokenizer, _, model = prepared(wanted)
    config = model.config
    assert config.model_type == architecture
    assert config.vocab_size == len(tokenizer) == model.get_output_embeddings().out_features
    assert (config.num_hidden_layers, config.hidden_size) == (1, 16)
    assert (config.num_attention_heads, config.max_position_embeddings) == (4, 32)
    assert is_tied(model)
    assert model.get_output_embeddings().bias is not None
    first, second = (build_model(wanted, tokenizer) for _ in range(2))
    model.train()
    batch = tokenizer(["ka lo", "mi"], padding=True, return_tensors="pt")
    assert torch.equal(model(**batch).logits, model(**batch).logits)  # no dropout
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden": 18, "heads": 2}, r"hidden is 18; expected a multiple of twice the heads \(4\)"),
        ({"hidden": 16, "heads": 3}, r"hidden is 16; expected a multiple of twice the heads \(6\)"),
        ({"length": 25}, r"length is 25; expected at most max_positions \(24\)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(train, tmp_path, keys, message):
    with pytest.raises(UserError, match=message):
        pretrain(entry(**keys), train, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (None, r"train\.parquet: expected a parquet file with the columns query and positive"),
        ({"query": ["x"]}, r"train\.parquet: expected a parquet file with the columns query and"),
        ({"query": [], "positive": []}, r"train\.parquet: no rows to pretrain on"),
        ({"query": [" "], "positive": ["\n"]}, r"the training text is empty"),
    ],
)
def test_text_that_cannot_be_used_is_refused(tmp_path, frame, message):
    path = tmp_path / "train.parquet"
    if frame is not None:
        pd.DataFrame(frame).to_parquet(path)
    with pytest.raises(UserError, match=message):
        pretrain(entry(), path, tmp_path / "out")
    path.write_bytes(b"not parquet")
    with pytest.raises(UserError, match=r"train\.parquet: expected a parquet file"):
        read_texts(path)
    assert [p.name for p in tmp_path.iterdir()] == ["train.parquet"]


def test_an_interrupted_run_leaves_nothing(train, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pretrain(entry(), train, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
