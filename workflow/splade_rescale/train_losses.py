"""The batch that a loss of `loss_table` gets, and those losses that come with the package."""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from splade_rescale.devices import gather, is_distributed
from splade_rescale.loss_table import LOSSES
from splade_rescale.losses import contrastive, kl, margin_mse, pair_scores
from splade_rescale.settings import TrainSettings


class Batch(NamedTuple):
    """Term weights of a step on one device.

    Attributes:
        queries: `[batch, vocab]`.
        documents: positives, and negatives if there are any, each `[batch, vocab]`; row i belongs
            to query i.
        teacher: scores of positive and negative, `[batch, 2]`, for losses that need them.
    """

    queries: Tensor
    documents: list[Tensor]
    teacher: Tensor | None = None

    def candidates(self, settings: TrainSettings) -> tuple[Tensor, int]:
        """All documents that a query is compared with, `[candidates, vocab]`, positives first.

        They are those of all devices where `settings.negatives` says `gathered`.

        Returns:
            The documents, and the row of the first query's positive; query i's is i rows below.
        """
        if settings.negatives == "gathered" and is_distributed():
            everywhere = [gather(column) for column in self.documents]
            return torch.cat(everywhere), distributed.get_rank() * len(self.queries)
        return torch.cat(self.documents), 0


BatchLoss = Callable[[Batch, TrainSettings], Tensor]


def loss_named(name: str) -> BatchLoss:
    """The function of a row of the table."""
    row = LOSSES[name]
    return getattr(import_module(f"splade_rescale.{row.module}"), row.function)


def contrastive_loss(batch: Batch, settings: TrainSettings) -> Tensor:
    """See `losses.contrastive`."""
    documents, first = batch.candidates(settings)
    return contrastive(batch.queries, documents, settings.temperature, first)


def margin_mse_loss(batch: Batch, settings: TrainSettings) -> Tensor:
    """See `losses.margin_mse`."""
    return margin_mse(pair_scores(batch.queries, *batch.documents), batch.teacher)


def kl_loss(batch: Batch, settings: TrainSettings) -> Tensor:
    """See `losses.kl`."""
    scores = pair_scores(batch.queries, *batch.documents)
    return kl(scores, batch.teacher, settings.temperature)
