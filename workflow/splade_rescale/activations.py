"""Activations that training computes again in the backward pass instead of keeping them.

Both ways change no weight: what is computed again comes out the same, dropout included.
"""

from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
_ATTENTION = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
}
# A product's output takes memory by its width, and time by its inner dimension.
_WIDEST = 3


def keep_products(model: PreTrainedModel) -> None:
    """Keep what goes into each layer's attention and comes out of it, and most other products.

    Selective activation checkpointing (Korthikanti et al. 2022, arXiv 2205.05198) in training mode,
    by PyTorch's `create_selective_checkpoint_contexts`. Of the outputs of matrix products two kinds
    are not kept: that of the product after attention, which costs least, and those more than three
    times as wide as the inner dimension, which take most memory (BERT's feed-forward widens
    fourfold; a gated one, as ModernBERT's, does not).
    """
    _checkpoint(model, context_fn=lambda: create_selective_checkpoint_contexts(_Policy()))


def keep_inputs(model: PreTrainedModel) -> None:
    """Keep the inputs of the model's layers alone: least memory, most time.

    Activation checkpointing (Chen et al. 2016, arXiv 1604.06174), in training mode.
    """
    _checkpoint(model)


def _checkpoint(model: PreTrainedModel, **options: Any) -> None:
    if model.supports_gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False, **options})


class _Policy:
    """Whether an operator's output is kept, for the operators of one layer in their order."""

    def __init__(self) -> None:
        self.after_attention = False

    def __call__(
        self, _context: object, operator: torch._ops.OpOverload, *arguments: Any, **_options: Any
    ) -> CheckpointPolicy:
        kept = operator in _ATTENTION
        if kept:
            self.after_attention = True
        elif operator in _PRODUCTS:
            inner, width = arguments[-1].shape[-2:]
            kept = width <= _WIDEST * inner and not self.after_attention
            self.after_attention = False
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
