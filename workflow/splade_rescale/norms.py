"""Row norms of a head, and what the untrained model does with text at each scale k.

Both cost seconds to minutes and foretell what training will do.
"""

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from splade_rescale.errors import UserError
from splade_rescale.files import atomic_file, write_json
from splade_rescale.head import (
    check_vocabulary,
    hidden_states,
    load_masked_lm,
    load_tokenizer,
    output_projection,
    scale_head,
)
from splade_rescale.parquet_files import ERRORS, read_table
from splade_rescale.pooling import splade_max_pool
from splade_rescale.positions import most_tokens
from splade_rescale.row_norms import PERCENTILES, head_norms
from splade_rescale.scale import canonical_k
from splade_rescale.settings import NormsSettings, RescaleSettings
from splade_rescale.threshold import THRESHOLD

__all__ = ["activation_statistics", "format_norms", "head_norms", "measure"]


def measure(
    folder: str | Path,
    settings: NormsSettings,
    *,
    out: Path | None = None,
    activation: Path | None = None,
    train: Path | None = None,
    scales: Sequence[str | float] = ("1",),
    rescale: RescaleSettings | None = None,
    query_length: int = 256,
    document_length: int = 256,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Measure the head of a checkpoint folder, and its activation on text if asked to.

    Args:
        folder: checkpoint folder.
        settings: sample and batch sizes.
        out: JSON file of the head's norms to write.
        activation: CSV file of the activation statistics to write, one row per scale.
        train: train.parquet whose (query, positive) pairs are sampled for it.
        scales: scales k of the activation statistics.
        rescale: how the head is divided by k; the defaults if None.
        query_length: tokens of a query, specials included.
        document_length: tokens of a document, specials included.
        trust_remote_code: run Python code that the checkpoint names.

    Returns:
        `head_norms` of the model.

    Raises:
        UserError: the folder is no masked language model, or train.parquet cannot be used.
    """
    model = load_masked_lm(folder, trust_remote_code=trust_remote_code)
    norms = head_norms(model)
    if activation is not None:
        if train is None:
            raise ValueError("activation statistics need train.parquet")
        rescale = rescale or RescaleSettings()
        ks = [float(canonical_k(k)) for k in scales]
        tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
        queries, documents = sample_pairs(train, settings)
        rows = activation_statistics(
            model,
            tokenizer,
            queries,
            documents,
            ks,
            settings,
            rescale,
            query_length=query_length,
            document_length=document_length,
        )
        with atomic_file(activation) as temporary:
            table = pd.DataFrame(rows)
            table["k"] = [canonical_k(k) for k in scales]
            table.to_csv(temporary, index=False)
    if out is not None:
        write_json(out, norms)
    return norms


def sample_pairs(train: Path, settings: NormsSettings) -> tuple[list[str], list[str]]:
    """Queries and positives of `settings.texts` rows of train.parquet, in file order."""
    try:
        table = read_table(train, ["query", "positive"])
    except FileNotFoundError:
        raise UserError(f"{train}: no such file") from None
    except ERRORS as error:
        raise UserError(
            f"{train}: expected parquet with columns query and positive ({error})"
        ) from None
    if table.num_rows < 2:
        raise UserError(f"{train}: {table.num_rows} rows; activation statistics need at least 2")
    generator = np.random.default_rng(settings.seed)
    size = min(settings.texts, table.num_rows)
    chosen = np.sort(generator.choice(table.num_rows, size, replace=False))
    pairs = table.take(chosen)
    return pairs["query"].to_pylist(), pairs["positive"].to_pylist()


def activation_statistics(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    queries: list[str],
    documents: list[str],
    ks: Iterable[float],
    settings: NormsSettings,
    rescale: RescaleSettings,
    *,
    query_length: int,
    document_length: int,
) -> list[dict[str, Any]]:
    """SPLADE-max vectors of the untrained model at each scale k.

    Division by k commutes with the maximum over tokens. So where rescaling changes nothing but
    all logits by 1 / k (untied, and the bias scaled or absent), one pass over the texts serves
    every k; else a rescaled copy of the model runs for each.

    Args:
        model: as loaded, not rescaled; it stays as it is.
        tokenizer: the model's.
        queries: texts, each belonging to the document of the same position.
        documents: texts.
        ks: scales.
        settings: batch_size is the in-batch size; a last batch that is smaller is left out,
            since the loss depends on the size, unless it is the only one.
        rescale: how the head is divided by k.
        query_length: tokens of a query, specials included; fewer where the model takes fewer.
        document_length: tokens of a document, likewise.

    Returns:
        One dictionary per k: k; pairs (texts of each kind used); batch_size; for queries and
        documents (suffix _q and _d) active_terms (mean per text), active_part (active_terms / V),
        weight_mean (over active terms; None if none is) and weight_max; score_mean and score_std
        (of all batch_size x batch_size dot products of a batch); first_loss (in-batch contrastive
        loss at temperature 1, queries to documents, no other negatives, mean over batches).
        A model that lights up nothing has weights and scores of 0 and a loss of log(batch_size).

    Raises:
        UserError: there are fewer than two pairs, or the tokenizer does not fit the model, or
            `rescale` does not.
    """
    if len(queries) != len(documents) or len(queries) < 2:
        raise UserError(
            f"activation statistics need two or more pairs of texts, found {len(queries)} queries "
            f"and {len(documents)} documents"
        )
    check_vocabulary(model, tokenizer)
    size = min(settings.batch_size, len(queries))
    most = most_tokens(model.config.to_dict())
    starts = range(0, len(queries) - size + 1, size)
    batches = [
        tuple(
            _tokens(tokenizer, texts[start : start + size], min(length, most or length))
            for texts, length in ((queries, query_length), (documents, document_length))
        )
        for start in starts
    ]
    ks = list(ks)
    if _commutes(model, rescale):
        tallies = [_Tally(k) for k in ks]
        for batch in batches:
            maxima = [torch.expm1(_vectors(model, tokens)) for tokens in batch]
            for tally in tallies:
                tally.add(*(torch.log1p(maximum / tally.k) for maximum in maxima))
        return [tally.result(size) for tally in tallies]
    rows = []
    for k in ks:
        scaled = copy.deepcopy(model)
        scale_head(scaled, k, tying=rescale.tying, bias=rescale.bias)
        tally = _Tally(k)
        for batch in batches:
            tally.add(*(_vectors(scaled, tokens) for tokens in batch))
        rows.append(tally.result(size))
    return rows


def _commutes(model: PreTrainedModel, rescale: RescaleSettings) -> bool:
    """Whether rescaling by k divides all logits by k and does nothing else."""
    if rescale.tying == "shared":
        return False
    return rescale.bias == "scale" or output_projection(model)[1].bias is None


def _tokens(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], length: int
) -> tuple[Tensor, Tensor]:
    batch = tokenizer(
        texts,
        truncation=True,
        max_length=min(length, tokenizer.model_max_length),
        padding=True,
        return_tensors="pt",
    )
    return batch["input_ids"], batch["attention_mask"]


@torch.no_grad()
def _vectors(model: PreTrainedModel, tokens: tuple[Tensor, Tensor]) -> Tensor:
    """Term weights [batch, V] in float64."""
    hidden = hidden_states(model, *tokens)
    _, projection = output_projection(model)
    return splade_max_pool(hidden, tokens[1], projection.weight, projection.bias).double()


class _Tally:
    """Running sums of the statistics at one k."""

    def __init__(self, k: float) -> None:
        self.k = k
        self.batches = 0
        self.active = {"q": 0, "d": 0}
        self.weight = {"q": 0.0, "d": 0.0}
        self.largest = {"q": 0.0, "d": 0.0}
        self.scores: list[Tensor] = []
        self.loss = 0.0
        self.terms = 0

    def add(self, queries: Tensor, documents: Tensor) -> None:
        """Add the vectors [batch, V] of one batch of pairs."""
        for side, vectors in (("q", queries), ("d", documents)):
            self.active[side] += int((vectors > 0).sum())
            self.weight[side] += vectors.sum().item()
            self.largest[side] = max(self.largest[side], vectors.max().item())
        scores = queries @ documents.T
        self.scores.append(scores.flatten())
        self.loss += cross_entropy(scores, torch.arange(len(scores))).item()
        self.terms = queries.shape[1]
        self.batches += 1

    def result(self, size: int) -> dict[str, Any]:
        """The statistics over all batches of `size` pairs."""
        texts = self.batches * size
        scores = torch.cat(self.scores)
        row: dict[str, Any] = {"k": self.k, "pairs": texts, "batch_size": size}
        for side in ("q", "d"):
            active = self.active[side]
            row[f"active_terms_{side}"] = active / texts
            row[f"active_part_{side}"] = active / texts / self.terms
            row[f"weight_mean_{side}"] = self.weight[side] / active if active else None
            row[f"weight_max_{side}"] = self.largest[side]
        row["score_mean"] = scores.mean().item()
        row["score_std"] = scores.std(correction=0).item()
        row["first_loss"] = self.loss / self.batches
        return row


def format_norms(name: str, norms: dict[str, Any]) -> str:
    """A few readable lines for people, of what `head_norms` returned.

    Args:
        name: of the model, as the user gave it.
        norms: result of `head_norms`.
    """
    tied = "tied to the input embeddings" if norms["tied"] else "not tied"
    rows = {
        "output projection": f"{norms['projection']}, {norms['V']} x {norms['d']}, {tied}",
        "row norm": f"mean {norms['mean']:.4f}, std {norms['std']:.4f}, "
        f"min {norms['min']:.4f}, max {norms['max']:.4f}",
        "percentiles": ", ".join(f"{p} %: {norms[f'p{p}']:.4f}" for p in PERCENTILES),
        "rows of zeros": str(norms["zero_rows"]),
        "anisotropy": "not defined"
        if norms["anisotropy"] is None
        else f"{norms['anisotropy']:.4f} (mean cosine of all pairs of rows)",
        "bias": "none"
        if norms["bias_mean"] is None
        else f"mean {norms['bias_mean']:.4f}, std {norms['bias_std']:.4f}, "
        f"min {norms['bias_min']:.4f}, max {norms['bias_max']:.4f}",
    }
    if norms["mean"] > THRESHOLD:
        hint = (
            f"the mean row norm is above about {THRESHOLD:g}: in the paper such backbones fail at "
            "k = 1; try k = 2, 4, 8, 16"
        )
    else:
        hint = (
            f"the mean row norm is not above about {THRESHOLD:g}: in the paper such backbones "
            "train at k = 1"
        )
    width = max(map(len, rows))
    lines = [f"{name} ({norms['architecture']})"]
    lines += [f"  {key:<{width}}  {value}" for key, value in rows.items()]
    return "\n".join([*lines, f"  {'hint':<{width}}  {hint}"])
