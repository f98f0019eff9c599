import copy
import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from splade_rescale.errors import UserError
from splade_rescale.head import (
    head_bypassed,
    hidden_states,
    is_tied,
    load_masked_lm,
    load_tokenizer,
    output_projection,
    save_masked_lm,
    untie,
    verify_head,
)

ARCHITECTURES = ["bert", "distilbert", "roberta", "albert", "modernbert"]
OTHERS = ["mpnet", "xlm-roberta", "camembert", "electra", "deberta", "deberta-v2", "gte"]
PATHS = {
    "bert": "cls.predictions.decoder",
    "distilbert": "vocab_projector",
    "roberta": "lm_head.decoder",
    "albert": "predictions.decoder",
    "modernbert": "decoder",
}


def reload(folder):
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(report.values()), report
    return model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_projection_is_where_the_architecture_has_it(architecture, tiny_masked_lm):
    model = tiny_masked_lm(architecture)
    name, projection = output_projection(model)
    assert name == PATHS[architecture]
    width = 16 if architecture == "albert" else 32
    assert tuple(projection.weight.shape) == (model.config.vocab_size, width)
    assert is_tied(model)


@pytest.mark.parametrize("architecture", ARCHITECTURES + OTHERS)
def test_untied_head_reloads_exactly(architecture, tiny_masked_lm, tmp_path):
    tiny_masked_lm(architecture).save_pretrained(tmp_path / "tied")
    model = load_masked_lm(tmp_path / "tied")
    assert is_tied(model)
    embeddings = model.get_input_embeddings().weight.detach().clone()
    ids = torch.arange(5, 15).view(2, 5)
    before = model(input_ids=ids).logits

    untie(model)
    assert not is_tied(model)
    assert model.config.tie_word_embeddings is False
    assert torch.equal(model(input_ids=ids).logits, before)

    _, projection = output_projection(model)
    torch.nn.init.normal_(projection.weight)
    torch.nn.init.normal_(projection.bias)
    assert torch.equal(model.get_input_embeddings().weight, embeddings)
    save_masked_lm(model, tmp_path / "untied")
    for loaded in (reload(tmp_path / "untied"), load_masked_lm(tmp_path / "untied")):
        _, other = output_projection(loaded)
        assert torch.equal(other.weight, projection.weight)
        assert torch.equal(other.bias, projection.bias)
        assert torch.equal(loaded.get_input_embeddings().weight, embeddings)
        assert torch.equal(loaded.eval()(input_ids=ids).logits, model(input_ids=ids).logits)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "albert"])
def test_both_names_of_an_untied_bias_are_saved_alike(architecture, tiny_masked_lm, tmp_path):
    model = tiny_masked_lm(architecture)
    untie(model)
    name, projection = output_projection(model)
    torch.nn.init.normal_(projection.bias)
    save_masked_lm(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    parent = name.removesuffix(".decoder")
    assert torch.equal(weights[f"{name}.bias"], projection.bias)
    assert torch.equal(weights[f"{parent}.bias"], projection.bias)


def test_every_trainable_parameter_of_an_untied_model_gets_a_gradient(tiny_checkpoint):
    folder = tiny_checkpoint("bert")
    model = load_masked_lm(folder)
    untie(model)
    save_masked_lm(model, folder)
    for untied in (model, load_masked_lm(folder)):
        ids = torch.arange(5, 15).view(2, 5)
        untied(input_ids=ids, token_type_ids=ids % 2).logits.sum().backward()
        trainable = {n: p.grad for n, p in untied.named_parameters() if p.requires_grad}
        assert [name for name, gradient in trainable.items() if gradient is None] == []


@pytest.mark.parametrize("architecture", ARCHITECTURES + OTHERS)
def test_hidden_states_times_projection_are_the_logits(architecture, tiny_masked_lm):
    model = tiny_masked_lm(architecture)
    verify_head(model)
    _, projection = output_projection(model)
    ids = torch.tensor([[2, 9, 10, 3], [2, 9, 3, 0]])
    mask = (ids != 0).long()
    hidden = hidden_states(model, ids, mask)
    assert hidden.shape == (2, 4, projection.in_features)
    logits = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(projection(hidden), logits)
    untie(model)
    hidden_states(model, ids, mask).square().sum().backward()
    assert projection.weight.grad is None
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0


def test_the_bypass_ends_with_its_block_even_on_an_error(tiny_masked_lm, tmp_path):
    model = tiny_masked_lm("bert")
    keys = set(model.state_dict())
    ids = torch.tensor([[2, 9, 3]])
    before = model(input_ids=ids).logits
    with pytest.raises(ZeroDivisionError), head_bypassed(model):
        assert model(input_ids=ids).logits.shape == (1, 3, 32)
        assert set(model.state_dict()) == keys
        raise ZeroDivisionError
    assert torch.equal(model(input_ids=ids).logits, before)
    assert torch.equal(copy.deepcopy(model)(input_ids=ids).logits, before)


@pytest.mark.parametrize(
    "config",
    [
        transformers.EsmConfig(
            vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, pad_token_id=1, mask_token_id=3,
        ),
        transformers.BartConfig(
            vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1,
            encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
            decoder_ffn_dim=16,
        ),
        transformers.DebertaV2Config(
            vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, legacy=False,
        ),
    ],
    ids=["adds-a-bias-later", "adds-a-buffer-later", "no-such-layer-in-use"],
)  # fmt: skip
def test_architectures_with_another_head_are_refused_by_name(config, tmp_path):
    model = transformers.AutoModelForMaskedLM.from_config(config)
    with pytest.raises(UserError, match=type(model).__name__):
        verify_head(model.eval())
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=str(tmp_path)):
        load_masked_lm(tmp_path)


def test_a_layer_after_the_projection_is_noticed(tiny_masked_lm):
    model = tiny_masked_lm("bert")
    verify_head(model)
    plain = type(model).forward

    def doubled(self, **inputs):
        output = plain(self, **inputs)
        output.logits = output.logits * 2
        return output

    model.forward = doubled.__get__(model)
    with pytest.raises(UserError, match="BertForMaskedLM: its logits are not"):
        verify_head(model)


def test_no_linear_projection_is_refused(tiny_masked_lm):
    model = tiny_masked_lm("bert")
    model.cls.predictions.decoder = torch.nn.Identity()
    with pytest.raises(UserError, match=r"BertForMaskedLM: .* found Identity"):
        output_projection(model)


def test_a_folder_without_model_is_refused(tmp_path, tiny_checkpoint):
    with pytest.raises(UserError, match=r"nowhere: no such checkpoint folder"):
        load_masked_lm(tmp_path / "nowhere")
    folder = tiny_checkpoint("bert")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"backbone: no safetensors weights"):
        load_masked_lm(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"config\.json: expected a JSON object, found list"):
        load_masked_lm(folder)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json: no such file"):
        load_masked_lm(folder)


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "config", "type", "shard"])
def test_damaged_weights_are_refused(damage, tiny_checkpoint):
    folder = tiny_checkpoint("bert")
    weights = folder / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "garbage":
        weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    elif damage == "empty":
        weights.write_bytes(b"")
    elif damage == "shard":
        index = {"metadata": {}, "weight_map": {"cls.predictions.bias": "model-1.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        weights.unlink()
    elif damage == "type":
        (folder / "config.json").write_text('{"model_type": "bert", "num_hidden_layers": "two"}')
    else:
        (folder / "config.json").write_text('{"model_type": "no-such-type"}')
    with pytest.raises(UserError, match=r"backbone: cannot be loaded as a masked language model"):
        load_masked_lm(folder)


def test_a_random_head_is_refused(tmp_path, tiny_checkpoint):
    folder = tiny_checkpoint("bert")
    weights = load_file(folder / "model.safetensors")
    del weights["cls.predictions.transform.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"no weights for cls\.predictions\.transform\.dense"):
        load_masked_lm(folder)


def test_weights_of_another_shape_are_refused(tiny_checkpoint):
    folder = tiny_checkpoint("bert")
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] += 1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"backbone: "):
        load_masked_lm(folder)


def test_an_encoder_or_classifier_is_refused(tiny_masked_lm, tmp_path):
    model = tiny_masked_lm("bert")
    model.bert.save_pretrained(tmp_path / "encoder")
    with pytest.raises(UserError, match=r"encoder: the checkpoint has no weights for cls"):
        load_masked_lm(tmp_path / "encoder")
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50, "n_positions": 20}
    gpt = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    gpt.save_pretrained(tmp_path / "gpt")
    with pytest.raises(UserError, match=r"gpt: cannot be loaded as a masked language model"):
        load_masked_lm(tmp_path / "gpt")


@pytest.mark.parametrize("kept", ["decoder.bias", "bias"])
def test_an_untied_checkpoint_with_one_name_for_the_bias_loads(kept, tiny_checkpoint):
    folder = tiny_checkpoint("bert")
    model = load_masked_lm(folder)
    untie(model)
    save_masked_lm(model, folder)
    weights = load_file(folder / "model.safetensors")
    dropped = {"decoder.bias": "bias", "bias": "decoder.bias"}[kept]
    del weights[f"cls.predictions.{dropped}"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    loaded = load_masked_lm(folder)
    expected = output_projection(model)[1].bias
    assert torch.equal(output_projection(loaded)[1].bias, expected)
    assert torch.equal(loaded.cls.predictions.bias, expected)


def test_gte_with_its_original_names_loads(tiny_masked_lm, tmp_path):
    """Checkpoints of GTE's own code: model type `new`, prefix `new.`, fused projections."""
    model = tiny_masked_lm("gte")
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    fused = {}
    for name, tensor in weights.items():
        name = name.replace("gte.", "new.", 1) if name.startswith("gte.") else name
        fused[name] = tensor
    assert any(name.endswith("qkv_proj.weight") for name in fused), "the file keeps fused layers"
    save_file(fused, path, metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["model_type"] = "new"
    config["architectures"] = ["NewForMaskedLM"]
    config["auto_map"] = {"AutoConfig": "some/where--configuration.NewConfig"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load_masked_lm(tmp_path)
    ids = torch.tensor([[2, 9, 10, 3]])
    torch.testing.assert_close(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    untie(loaded)
    save_masked_lm(loaded, tmp_path / "again")
    again = reload(tmp_path / "again").eval()
    torch.testing.assert_close(again(input_ids=ids).logits, model(input_ids=ids).logits)


def test_half_precision_checkpoints_are_read_as_float32(tiny_masked_lm, tmp_path):
    tiny_masked_lm("bert").bfloat16().save_pretrained(tmp_path)
    model = load_masked_lm(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not model.training


def test_tokenizer(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("bert")
    ids = load_tokenizer(folder)("the cat xyz")["input_ids"]
    assert ids[0] == 2 and ids[-1] == 3 and len(ids) == 7
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="backbone: no tokenizer can be loaded"):
        load_tokenizer(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: "):
        load_tokenizer(tmp_path / "empty")


def test_a_tokenizer_without_padding_is_refused(tiny_tokenizer, tmp_path):
    tiny_tokenizer.pad_token = None
    tiny_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no padding token"):
        load_tokenizer(tmp_path)
