"""Statistics of the output projection's rows: the quantity that the scale k acts on."""

from typing import Any

import torch
from transformers import PreTrainedModel

from splade_rescale.errors import UserError
from splade_rescale.head import is_tied, output_projection

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
# Rows converted to float64 at a time.
_BLOCK = 16_384


@torch.no_grad()
def head_norms(model: PreTrainedModel) -> dict[str, Any]:
    """L2 norms of the rows of the output projection W [V, d], in float64.

    The anisotropy is the mean cosine of all pairs of distinct rows. It needs no sampling: with
    u_i the rows divided by their norms,

        sum over i != j of u_i . u_j = |sum of u_i|^2 - V,

    so the mean over the V (V - 1) ordered pairs costs one pass over W. Rows of norm zero, as
    padding has in some checkpoints, have no direction: they are left out of it and counted.

    Returns:
        mean, std (over all rows, divisor V), min, max, p1 ... p99: of the row norms, zero rows
        included; zero_rows; anisotropy (None with fewer than two rows that have a direction);
        V, d; tied; projection (module path); architecture; bias_mean, bias_std, bias_min,
        bias_max: of the projection's bias [V], None without one.

    Raises:
        UserError: the output projection holds values that are not finite.
    """
    name, projection = output_projection(model)
    weight = projection.weight
    norms, total = [], torch.zeros(weight.shape[1], dtype=torch.float64)
    for rows in weight.split(_BLOCK):
        rows = rows.to("cpu", torch.float64)
        length = rows.norm(dim=1)
        norms.append(length)
        directed = length > 0
        total += (rows[directed] / length[directed, None]).sum(dim=0)
    norms = torch.cat(norms)
    bias = None if projection.bias is None else projection.bias.to("cpu", torch.float64)
    if not norms.isfinite().all() or (bias is not None and not bias.isfinite().all()):
        raise UserError(
            f"{type(model).__name__}: the output projection {name} holds values that are not finite"
        )
    count = int((norms > 0).sum())
    pairs = count * (count - 1)
    levels = torch.tensor([p / 100 for p in PERCENTILES], dtype=torch.float64)
    return {
        "architecture": type(model).__name__,
        "projection": name,
        "V": weight.shape[0],
        "d": weight.shape[1],
        "tied": is_tied(model),
        **_summary(norms),
        **{
            f"p{p}": value
            for p, value in zip(PERCENTILES, norms.quantile(levels).tolist(), strict=True)
        },
        "zero_rows": norms.numel() - count,
        "anisotropy": (total.dot(total).item() - count) / pairs if pairs else None,
        **{
            f"bias_{key}": value
            for key, value in (
                _summary(bias) if bias is not None else dict.fromkeys(("mean", "std", "min", "max"))
            ).items()
        },
    }


def _summary(values: torch.Tensor) -> dict[str, float]:
    return {
        "mean": values.mean().item(),
        "std": values.std(correction=0).item(),
        "min": values.min().item(),
        "max": values.max().item(),
    }
