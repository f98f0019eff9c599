import json
import math

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from splade_rescale.errors import UserError
from splade_rescale.head import (
    hidden_states,
    is_tied,
    load_masked_lm,
    output_projection,
    save_masked_lm,
    untie,
)
from splade_rescale.rescale import rescale
from splade_rescale.row_norms import head_norms
from splade_rescale.settings import RescaleSettings

ARCHITECTURES = ["bert", "distilbert", "roberta", "albert", "modernbert"]
IDS = torch.tensor([[2, 9, 10, 11, 3], [2, 20, 7, 30, 3]])


def plain(folder):
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval()


def contents(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.mark.parametrize("k", [3, 0.7])
@pytest.mark.parametrize("bias", ["scale", "keep"])
@pytest.mark.parametrize("tying", ["shared", "untied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_plain_transformers_reloads_the_scaled_head(
    architecture, tying, bias, k, tiny_checkpoint, tmp_path
):
    source, out = tiny_checkpoint(architecture), tmp_path / "init"
    rescale(source, out, k, RescaleSettings(tying=tying, bias=bias))
    before, after = plain(source), plain(out)
    old, new = output_projection(before)[1], output_projection(after)[1]
    divided = old.weight.detach().numpy() / np.float32(k)
    assert np.array_equal(new.weight.detach().numpy(), divided)
    expected = old.bias.detach().numpy() / np.float32(k if bias == "scale" else 1)
    assert np.array_equal(new.bias.detach().numpy(), expected)

    embeddings = after.get_input_embeddings().weight.detach().numpy()
    if tying == "shared":
        assert is_tied(after) and np.array_equal(embeddings, divided)
    else:
        assert not is_tied(after)
        assert np.array_equal(embeddings, before.get_input_embeddings().weight.detach().numpy())
    heads = {id(p) for p in [*old.parameters(), before.get_input_embeddings().weight]}
    others = [name for name, p in before.named_parameters() if id(p) not in heads]
    found = dict(after.named_parameters())
    assert len(others) > 10
    assert all(torch.equal(before.get_parameter(n), found[n]) for n in others)

    with torch.no_grad():
        hidden = hidden_states(after, IDS)
        logits = hidden @ torch.tensor(divided).T + torch.tensor(expected)
        torch.testing.assert_close(after(input_ids=IDS).logits, logits)
        if tying == "untied":
            assert torch.equal(hidden, hidden_states(before, IDS))
            if bias == "scale":
                torch.testing.assert_close(
                    after(input_ids=IDS).logits, before(input_ids=IDS).logits / k
                )
        else:
            assert not torch.allclose(hidden, hidden_states(before, IDS))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_k_1_changes_no_weight(architecture, tiny_checkpoint, tmp_path):
    source = tiny_checkpoint(architecture)
    before = load_file(source / "model.safetensors")
    for tying in ("shared", "untied"):
        rescale(source, tmp_path / tying, 1, RescaleSettings(tying=tying))
        after = load_file(tmp_path / tying / "model.safetensors")
        assert before.keys() <= after.keys()
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
        head = output_projection(plain(tmp_path / tying))[1]
        assert torch.equal(head.weight, output_projection(plain(source))[1].weight)
    assert after.keys() != before.keys()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_gain_of_16_and_k_16_give_the_untouched_model(architecture, tiny_checkpoint, tmp_path):
    source, twin = tiny_checkpoint(architecture), tmp_path / "twin"
    model = load_masked_lm(source)
    untie(model)
    projection = output_projection(model)[1]
    with torch.no_grad():
        projection.weight.mul_(16)
        projection.bias.mul_(16)
    save_masked_lm(model, twin)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(twin)

    untied = RescaleSettings(tying="untied")
    rescale(twin, tmp_path / "x16-k16", 16, untied)
    rescale(source, tmp_path / "k1", 1, untied)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        left, right = tmp_path / "x16-k16" / name, tmp_path / "k1" / name
        assert left.read_bytes() == right.read_bytes(), name


def test_a_second_run_leaves_everything_as_it_is(tiny_checkpoint, tmp_path):
    source, out = tiny_checkpoint("bert"), tmp_path / "init"
    rescale(source, out, 4, RescaleSettings())
    before = contents(out)
    rescale(source, out, 4.0, RescaleSettings())
    assert contents(out) == before
    weight = output_projection(plain(source))[1].weight
    assert torch.equal(output_projection(plain(out))[1].weight, weight / 4)


@pytest.mark.parametrize("change", ["k", "tying", "bias", "source", "damage", "lost"])
def test_what_no_longer_fits_is_made_anew(change, tiny_checkpoint, tmp_path):
    source, out = tiny_checkpoint("bert"), tmp_path / "init"
    rescale(source, out, 4, RescaleSettings())
    before = contents(out)
    k, options = 4, {}
    if change == "k":
        k = 8
    elif change in ("tying", "bias"):
        options = {"tying": "untied"} if change == "tying" else {"bias": "keep"}
    elif change == "source":
        source = tiny_checkpoint("bert", seed=1)
    elif change == "damage":
        (out / "model.safetensors").write_bytes(before["model.safetensors"][0][:-1] + b"x")
    else:
        (out / "tokenizer.json").unlink()
    rescale(source, out, k, RescaleSettings(**options))
    after = contents(out)
    assert after["rescale.json"][1] != before["rescale.json"][1]
    if change in ("damage", "lost"):
        names = ("model.safetensors", "tokenizer.json", "config.json")
        assert all(after[name][0] == before[name][0] for name in names)
    else:
        assert after["model.safetensors"][0] != before["model.safetensors"][0]
    weight = output_projection(plain(source))[1].weight
    assert torch.equal(output_projection(plain(out))[1].weight, weight / k)


def test_a_rescaled_checkpoint_is_never_scaled_again(tiny_checkpoint, tmp_path):
    source, out = tiny_checkpoint("bert"), tmp_path / "init"
    rescale(source, out, 16, RescaleSettings())
    before = contents(out)
    for target in (tmp_path / "twice", out):
        with pytest.raises(UserError, match=r"init: already rescaled by k = 16"):
            rescale(out, target, 16, RescaleSettings())
    with pytest.raises(UserError, match="cannot replace its source"):
        rescale(source, source, 16, RescaleSettings())
    assert contents(out) == before
    assert not (tmp_path / "twice").exists()


def test_a_folder_with_something_else_is_not_replaced(tiny_checkpoint, tmp_path):
    source, out = tiny_checkpoint("bert"), tmp_path / "mine"
    out.mkdir()
    (out / ".snakemake_timestamp").touch()
    rescale(source, out, 2, RescaleSettings())
    (out / "rescale.json").unlink()
    with pytest.raises(UserError, match="mine: exists, and is no rescaled checkpoint"):
        rescale(source, out, 2, RescaleSettings())


def test_an_untied_source_has_nothing_to_share(tiny_checkpoint, tmp_path):
    source = tiny_checkpoint("bert")
    model = load_masked_lm(source)
    untie(model)
    save_masked_lm(model, source)
    with pytest.raises(UserError, match=r"backbone: tying: shared .* use tying: untied"):
        rescale(source, tmp_path / "init", 2, RescaleSettings(tying="shared"))
    assert not (tmp_path / "init").exists()
    rescale(source, tmp_path / "init", 2, RescaleSettings(tying="untied"))
    found = output_projection(plain(tmp_path / "init"))[1].weight
    assert torch.equal(found, output_projection(model)[1].weight / 2)


@pytest.mark.parametrize("k", [0, -1, math.nan, math.inf])
def test_k_must_be_finite_and_above_0(k, tiny_checkpoint, tmp_path):
    with pytest.raises(UserError, match=r"k must be a finite number above 0, found"):
        rescale(tiny_checkpoint("bert"), tmp_path / "init", k, RescaleSettings())


@pytest.mark.parametrize("k", [1e-300, 1e300, 1e-39])
def test_k_must_keep_the_head_in_range(k, tiny_checkpoint, tmp_path):
    with pytest.raises(UserError, match=r"backbone: k = .* out of the range of torch.float32"):
        rescale(tiny_checkpoint("bert"), tmp_path / "init", k, RescaleSettings())
    assert not (tmp_path / "init").exists()


def test_provenance(tiny_checkpoint, tmp_path):
    source, out = tiny_checkpoint("modernbert"), tmp_path / "init"
    (source / "backbone.json").write_text('{"name": "tiny", "commit": "abc"}')
    rescale(source, out, 4, RescaleSettings(bias="keep"))
    found = json.loads((out / "rescale.json").read_text())
    assert (found["k"], found["tying"], found["bias"]) == (4, "shared", "keep")
    assert found["backbone"] == {"name": "tiny", "commit": "abc"}
    assert found["norms_before"] == head_norms(plain(source))
    assert found["norms_after"] == head_norms(plain(out))
    assert found["norms_after"]["mean"] == found["norms_before"]["mean"] / 4
    assert len(found["source_files"]["model.safetensors"]) == 64
    # The logits are wider than the tokenizer, as in published ModernBERT checkpoints.
    assert found["norms_after"]["V"] > found["tokens"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert len(tokenizer) == found["tokens"]


def test_a_tokenizer_with_more_tokens_than_rows_is_refused(
    tiny_checkpoint, tiny_tokenizer, tmp_path
):
    source = tiny_checkpoint("bert")
    tiny_tokenizer.add_tokens(["more"])
    tiny_tokenizer.save_pretrained(source)
    with pytest.raises(UserError, match=r"backbone: the tokenizer has \d+ tokens"):
        rescale(source, tmp_path / "init", 2, RescaleSettings())


def test_half_precision_sources_are_divided_and_written_as_float32(tiny_checkpoint, tmp_path):
    source = tiny_checkpoint("bert")
    half = load_masked_lm(source).bfloat16()
    half.save_pretrained(source)
    rescale(source, tmp_path / "init", 3, RescaleSettings())
    model = plain(tmp_path / "init")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    expected = output_projection(half)[1].weight.float() / 3
    assert torch.equal(output_projection(model)[1].weight, expected)


def test_what_fails_leaves_nothing_behind(tiny_checkpoint, tmp_path, monkeypatch):
    source = tiny_checkpoint("bert")

    def broken(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr("splade_rescale.rescale._check_reload", broken)
    names = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(OSError, match="disk full"):
        rescale(source, tmp_path / "init", 2, RescaleSettings())
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_checkpoint_that_reloads_otherwise_is_refused(tiny_checkpoint, tmp_path, monkeypatch):
    source = tiny_checkpoint("bert")
    # As an architecture would behave whose untied head is not read back.
    monkeypatch.setattr(
        "splade_rescale.rescale.save_masked_lm",
        lambda model, folder: load_masked_lm(source).save_pretrained(folder),
    )
    with pytest.raises(UserError, match="does not survive saving and loading"):
        rescale(source, tmp_path / "init", 2, RescaleSettings())
    assert not (tmp_path / "init").exists()
