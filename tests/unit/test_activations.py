"""What is computed again in the backward pass, and that nothing else changes."""

from collections import Counter

import pytest
import torch
from splade_rescale.activations import keep_inputs, keep_products
from splade_rescale.splade import Splade
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}
SPECIAL = dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id"), 1)


def bert(dropout=0.0):
    probabilities = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return BertForMaskedLM(BertConfig(**SHAPE, **probabilities, intermediate_size=128))


def modernbert(dropout=0.0):
    probabilities = {"mlp_dropout": dropout, "attention_dropout": dropout}
    return ModernBertForMaskedLM(
        ModernBertConfig(**SHAPE, **SPECIAL, **probabilities, intermediate_size=48)
    )


class Operators(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, operator, _types, arguments=(), options=None):
        self.count[operator.overloadpacket.__name__] += 1
        return operator(*arguments, **(options or {}))


def step(make, keep, **options):
    """Loss, gradients, and how often each operator ran in the backward pass."""
    torch.manual_seed(0)
    model = make(**options).train()
    keep(model)
    ids = torch.randint(5, 50, (3, 8), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    loss = Splade(model)(ids, mask).square().sum()
    with Operators() as operators:
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return loss.detach(), gradients, operators.count


def keep_all(_model):
    pass


@pytest.mark.parametrize("keep", [keep_products, keep_inputs])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("make", [bert, modernbert])
def test_gradients_are_bit_for_bit_those_of_all_kept(make, dropout, keep):
    loss, gradients, _ = step(make, keep_all, dropout=dropout)
    again, same, count = step(make, keep, dropout=dropout)
    assert count["native_layer_norm"]  # something was computed again
    assert torch.equal(loss, again)
    assert gradients.keys() == same.keys()
    for name, gradient in gradients.items():
        assert torch.equal(gradient, same[name]), name


ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


@pytest.mark.parametrize(
    ("make", "product", "again"),
    # After attention, and the feed-forward's first where it widens fourfold, of two layers.
    [(bert, "addmm", 4), (modernbert, "mm", 2)],
)
def test_of_products_only_some_are_computed_again(make, product, again):
    _, _, kept = step(make, keep_all)
    _, _, count = step(make, keep_products)
    assert count[product] - kept[product] == again
    assert count[ATTENTION] == kept[ATTENTION] == 0
    _, _, count = step(make, keep_inputs)
    assert count[product] - kept[product] > 2 * again
    assert count[ATTENTION] == 2


def test_a_model_that_cannot_is_left_as_it_is():
    model = bert()
    model.supports_gradient_checkpointing = False
    keep_products(model)
    keep_inputs(model)
    assert not model.is_activation_checkpointing
