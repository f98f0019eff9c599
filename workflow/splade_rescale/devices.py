"""Rows of all devices of a distributed training, with gradients."""

from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable


def is_distributed() -> bool:
    """Whether several processes train together."""
    return distributed.is_available() and distributed.is_initialized()


def gather(rows: Tensor) -> Tensor:
    """The rows of all devices, `[devices x rows, ...]` in the order of ranks, with gradients."""
    return _Gather.apply(rows)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        everyone = rows.new_empty((distributed.get_world_size() * len(rows), *rows.shape[1:]))
        distributed.all_gather_into_tensor(everyone, rows.contiguous())
        return everyone

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(gradient)  # each device's loss depends on these rows
        return gradient.chunk(distributed.get_world_size())[distributed.get_rank()]
