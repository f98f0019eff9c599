"""Choose k before training, from what the untrained model does with text.

The initial in-batch contrastive loss, as a function of k, is the curve of a temperature: scores
that are too large make it grow with the gaps between them, scores that are too small draw it to
log(batch size), where every candidate looks alike and gradients vanish with the scores. Cross
entropy is a proper scoring rule, so the k of its minimum is the scale at which the untrained
model's scores are calibrated best as a softmax over the batch (temperature scaling: Guo et al.
2017, arXiv 1706.04599). That k is chosen. No label but the training pairs is used.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from splade_rescale.errors import UserError
from splade_rescale.files import write_json
from splade_rescale.head import load_masked_lm, load_tokenizer
from splade_rescale.norms import activation_statistics, sample_pairs
from splade_rescale.scale import canonical_k
from splade_rescale.settings import NormsSettings, RescaleSettings

CANDIDATES = tuple(2.0**exponent for exponent in range(-6, 11))
"""Scales that are tried."""

SIGNAL = 0.02
"""The loss must fall below (1 - SIGNAL) log(batch size) for the choice to mean anything."""


def best_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The choice among the activation statistics of several k.

    Returns:
        `k` with the smallest finite first_loss, of equal ones the smallest k; `first_loss`;
        `chance`, log(batch size); and `reliable`: the loss falls below chance by more than SIGNAL
        and k is neither the smallest nor the largest of those tried.

    Raises:
        UserError: no loss is finite.
    """
    usable = [row for row in rows if math.isfinite(row["first_loss"])]
    if not usable:
        raise UserError("k: auto finds no k at which the initial loss is finite")
    best = min(usable, key=lambda row: (row["first_loss"], row["k"]))
    chance = math.log(best["batch_size"])
    scales = sorted(row["k"] for row in rows)
    inside = len(scales) < 3 or scales[0] < best["k"] < scales[-1]
    return {
        "k": canonical_k(best["k"]),
        "first_loss": best["first_loss"],
        "chance": chance,
        "reliable": inside and best["first_loss"] < (1 - SIGNAL) * chance,
    }


def choose_k(
    folder: str | Path,
    train: Path,
    settings: NormsSettings,
    rescale: RescaleSettings,
    *,
    out: Path | None = None,
    query_length: int = 256,
    document_length: int = 256,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Choose k for a checkpoint on a sample of training pairs.

    Args:
        folder: checkpoint folder, not rescaled.
        train: train.parquet (query, positive).
        settings: size of sample and batch.
        rescale: how the head will be divided.
        out: JSON file to write: the choice, and the statistics of every k that was tried.
        query_length: tokens of a query, specials included.
        document_length: tokens of a document, specials included.
        trust_remote_code: run Python code that the checkpoint names.

    Returns:
        As `best_of`.

    Raises:
        UserError: the folder or train.parquet cannot be used, or no loss is finite.
    """
    model = load_masked_lm(folder, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    queries, documents = sample_pairs(train, settings)
    rows = activation_statistics(
        model,
        tokenizer,
        queries,
        documents,
        CANDIDATES,
        settings,
        rescale,
        query_length=query_length,
        document_length=document_length,
    )
    choice = best_of(rows)
    if out is not None:
        write_json(out, {**choice, "candidates": rows, "settings": settings.model_dump()})
    return choice
