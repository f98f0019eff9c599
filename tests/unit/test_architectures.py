"""Each backbone of the paper, in the form in which it is published, through rescaling and back.

The checkpoints are made by tests/hub: random small weights with the names, tokenizers and
vocabularies of the real ones.
"""

import json

import pytest
import torch
import transformers
from hub.models import MAKERS
from safetensors.torch import load_file
from splade_rescale.head import load_masked_lm, load_tokenizer
from splade_rescale.rescale import rescale
from splade_rescale.settings import RescaleSettings
from splade_rescale.splade import Splade

PAPER = ["bert-base", "distilbert", "albert", "gte", "roberta", "modernbert", "ettin"]
PADDED = {"modernbert", "ettin"}
TEXTS = ["the river bank of a mountain", "engine"]


@pytest.fixture(params=PAPER)
def published(request, tmp_path):
    """Name of the architecture, its checkpoint folder, and the model in it."""
    folder = tmp_path / "published"
    folder.mkdir()
    MAKERS[request.param](folder, seed=7)
    return request.param, folder, load_masked_lm(folder)


def plain(folder):
    """As anyone loads a checkpoint; nothing may be missing, left over or of another shape."""
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval()


def inputs(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


@pytest.mark.parametrize("tying", ["shared", "untied"])
@pytest.mark.parametrize("k", [16, 3])
def test_k_divides_head_and_logits_as_defined(published, k, tying, tmp_path):
    _, source, model = published
    out = tmp_path / "init"
    rescale(source, out, k, RescaleSettings(tying=tying))
    scaled, batch = plain(out), inputs(out)
    weight = model.get_output_embeddings().weight.detach()
    bias = model.get_output_embeddings().bias.detach()

    head, embeddings = scaled.get_output_embeddings(), scaled.get_input_embeddings()
    assert torch.equal(head.weight, weight / k)
    assert torch.equal(head.bias, bias / k)
    shared = tying == "shared"
    assert torch.equal(embeddings.weight, weight / k if shared else weight)
    assert (head.weight.data_ptr() == embeddings.weight.data_ptr()) == shared

    with torch.no_grad():
        expected = model(**batch).logits / k
        if shared:
            # By definition: the model whose one matrix, input embeddings included, is W / k
            model.get_output_embeddings().weight.div_(k)
            model.get_output_embeddings().bias.div_(k)
            expected = model(**batch).logits
        found = scaled(**batch).logits
    real = batch["attention_mask"].bool()
    if shared or k == 16:  # a power of two divides without rounding
        assert torch.equal(found[real], expected[real])
    else:
        torch.testing.assert_close(found[real], expected[real])


def test_rescaling_twice_is_rescaling_once(published, tmp_path):
    _, source, _ = published
    out = tmp_path / "init"
    rescale(source, out, 4, RescaleSettings())
    first = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()}
    rescale(source, out, 4, RescaleSettings())
    assert first == {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()
    }


@pytest.mark.parametrize("tying", ["shared", "untied"])
def test_saving_and_loading_again_changes_nothing(published, tying, tmp_path):
    _, source, _ = published
    rescale(source, tmp_path / "init", 4, RescaleSettings(tying=tying))
    splade = Splade.load(tmp_path / "init")
    tokenizer = load_tokenizer(tmp_path / "init")
    lengths = {"query_length": 16, "document_length": 32}
    splade.save(tmp_path / "again", tokenizer, **lengths)
    batch = inputs(tmp_path / "init")
    with torch.no_grad():
        logits = plain(tmp_path / "again")(**batch).logits
        assert torch.equal(logits, plain(tmp_path / "init")(**batch).logits)
        before, after = splade(**batch), Splade.load(tmp_path / "again")(**batch)
    assert torch.equal(before, after)
    assert before.shape == (len(TEXTS), splade.vocabulary)
    assert (before > 0).any()


def test_the_tokenizer_fits_logits_that_may_be_wider(published, tmp_path):
    name, source, model = published
    rescale(source, tmp_path / "init", 2, RescaleSettings())
    tokenizer = load_tokenizer(tmp_path / "init")
    width = model.get_output_embeddings().out_features
    assert (width > len(tokenizer)) == (name in PADDED)
    assert json.loads((tmp_path / "init/rescale.json").read_text())["tokens"] == len(tokenizer)
    assert Splade.load(tmp_path / "init").vocabulary == width
    assert tokenizer(TEXTS)["input_ids"] == load_tokenizer(source)(TEXTS)["input_ids"]


def test_untied_weights_have_both_matrices_in_the_file(published, tmp_path):
    _, source, model = published
    rescale(source, tmp_path / "init", 16, RescaleSettings(tying="untied"))
    weights = load_file(tmp_path / "init/model.safetensors")
    weight = model.get_output_embeddings().weight
    stored = [tensor for tensor in weights.values() if tensor.shape == weight.shape]
    assert sum(torch.equal(tensor, weight) for tensor in stored) == 1
    assert sum(torch.equal(tensor, weight / 16) for tensor in stored) == 1
