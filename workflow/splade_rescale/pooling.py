"""SPLADE-max pooling that never holds [batch, seq, vocab] logits.

The gradient of a max-pool reaches one position per (text, term), and relu stops it at every
inactive term. So the forward pass keeps the arg-max alone, and the backward pass is a product
with a matrix of one non-zero per active term.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


class _Device(NamedTuple):
    """How a kind of device works best."""

    block_bytes: int  # largest block of logits
    block_texts: int  # most texts in a block
    # Time of one active term in the sparse backward pass, in units of one logit in the dense one.
    sparse_cost: int
    # Look for the position of a maximum only where the term is active, if no more than this part
    # of a block is; 0 looks everywhere.
    searched_part: float


# A block should stay in the cache, and a maximum with its position is slow. The cost was measured
# (10 to 12 at widths 384 and 128).
_CPU = _Device(4 << 20, 8, 10, 0.25)
# Large blocks save kernel launches; a batch of 32 texts of 128 tokens still takes several. To wait
# for the number of active terms costs more than their positions. The cost is estimated from memory
# bandwidth.
_GPU = _Device(64 << 20, 32, 64, 0.0)

Backward = Literal["auto", "sparse", "dense"]


def _device(device: torch.device) -> _Device:
    return _CPU if device.type == "cpu" else _GPU


def splade_max_pool(
    hidden: Tensor,
    mask: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    block_bytes: int | None = None,
    backward: Backward = "auto",
) -> Tensor:
    """Term weights `log1p(relu(max over unmasked s of hidden[:, s] @ weight.T + bias))`.

    SPLADE-max (Formal et al. 2021, arXiv 2109.10086). Padding never enters the pool; a text
    without tokens gets zeros and no gradient. As with `torch.max`, the gradient of a tie goes to
    one of the tied positions. Under autocast the product runs in autocast's type; gradients are
    accumulated in float32, or float64 for float64 input.

    Args:
        hidden: states that enter the output projection, `[batch, seq, d]`.
        mask: non-zero where a token stands, `[batch, seq]`; padding may stand anywhere.
        weight: output projection, `[vocab, d]`.
        bias: its bias, `[vocab]`, or None.
        block_bytes: bound on one block of logits; by default 4 MiB on a CPU, 64 MiB elsewhere.
        backward: `sparse` costs per active term, `dense` per logit; `auto` takes the cheaper.

    Returns:
        Term weights `[batch, vocab]`, float32 (float64 for float64 input).
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        product_type = torch.get_autocast_dtype(device)
    else:
        product_type = torch.promote_types(hidden.dtype, weight.dtype)
    block_bytes = block_bytes or _device(hidden.device).block_bytes
    needs_gradient = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (hidden, weight, bias)
    )
    with torch.autocast(device, enabled=False):
        if needs_gradient:
            return _SpladeMaxPool.apply(
                hidden, mask, weight, bias, product_type, block_bytes, backward
            )
        return _pool(hidden, mask, weight, bias, product_type, block_bytes, positions=False)[0]


def _accumulation_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _block_terms(block_bytes: int, tokens: int, dtype: torch.dtype) -> int:
    return max(1, block_bytes // max(1, tokens * dtype.itemsize))


def _pool(
    hidden: Tensor,
    mask: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    product_type: torch.dtype,
    block_bytes: int,
    *,
    positions: bool,
) -> tuple[Tensor, Tensor | None]:
    """Term weights `[batch, vocab]` and, if asked, each maximum's position in its text (int32).

    Positions are those of active terms; what stands at the others has no meaning.

    Texts are taken in order of length, a few at a time and trimmed to the longest, with their
    tokens in front; what padding is left repeats a text's first token, so it cannot win alone.
    """
    batch, seq, width = hidden.shape
    vocab = weight.shape[0]
    mask = mask.bool()
    lengths = mask.sum(dim=1)
    tokens_first = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    is_token = torch.arange(seq, device=hidden.device) < lengths[:, None]
    where = torch.where(is_token, tokens_first, tokens_first[:, :1])

    weight = weight.to(product_type)
    # Added after the maximum the bias costs nothing and gives the same, unless logits are rounded
    # to half precision, where a large common offset would make ties.
    half = product_type.itemsize < 4
    early_bias = bias.to(product_type)[:, None] if bias is not None and half else None
    maximum = hidden.new_empty((batch, vocab), dtype=product_type)
    argmax = hidden.new_zeros((batch, vocab), dtype=torch.int32) if positions else None
    by_length = lengths.argsort(stable=True)
    sorted_lengths = lengths[by_length].tolist()
    texts = _device(hidden.device).block_texts
    for start in range(0, batch, texts):
        group = by_length[start : start + texts]
        longest = max(1, sorted_lengths[start + len(group) - 1])
        places = where[group, :longest]
        tokens = hidden[group[:, None], places].to(product_type).reshape(-1, width)
        step = min(vocab, _block_terms(block_bytes, len(tokens), product_type))
        # [terms, texts, tokens]: the maximum over the last, contiguous dimension is fastest. One
        # buffer for all blocks stays in the cache.
        buffer = tokens.new_empty((step, len(tokens)))
        for term in range(0, vocab, step):
            block = slice(term, term + step)
            logits = buffer[: vocab - term]
            if early_bias is None:
                torch.mm(weight[block], tokens.T, out=logits)
            else:
                torch.addmm(early_bias[block], weight[block], tokens.T, out=logits)
            logits = logits.view(-1, len(group), longest)
            highest = logits.amax(dim=2)
            maximum[group, block] = highest.T
            if argmax is not None:
                late_bias = None if bias is None or early_bias is not None else bias[block, None]
                _put_positions(argmax, group, term, logits, highest, late_bias, places)
    maximum = maximum.to(_accumulation_type(product_type))
    if bias is not None and early_bias is None:
        maximum = maximum + bias
    weights = maximum.relu_().log1p_()
    return weights.masked_fill_((lengths == 0)[:, None], 0), argmax


def _put_positions(
    argmax: Tensor,
    group: Tensor,
    first: int,
    logits: Tensor,
    highest: Tensor,
    bias: Tensor | None,
    places: Tensor,
) -> None:
    """Write a block's positions into `argmax [batch, vocab]`, at rows `group`, from term `first`.

    Args:
        argmax: written to.
        group: the block's texts, `[texts]`.
        first: the block's first term.
        logits: without `bias`, `[terms, texts, tokens]`.
        highest: their maxima, `[terms, texts]`.
        bias: added to the maxima before they are compared with 0, `[terms, 1]`.
        places: where each token stands in its text, `[texts, tokens]`.
    """
    searched = _device(logits.device).searched_part
    if searched:
        wide = highest.to(_accumulation_type(highest.dtype))
        # `not <=`, so that a nan is active
        active = ~((wide if bias is None else wide + bias) <= 0)
        term, text = active.nonzero(as_tuple=True)
        if len(term) <= searched * active.numel():
            index = logits[term, text].argmax(dim=1)
            argmax[group[text], first + term] = places[text, index].int()
            return
    index = logits.argmax(dim=2)
    argmax[group, first : first + len(logits)] = places.gather(1, index.T).int()


class _SpladeMaxPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        mask: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        product_type: torch.dtype,
        block_bytes: int,
        backward: Backward,
    ) -> Tensor:
        weights, argmax = _pool(
            hidden, mask, weight, bias, product_type, block_bytes, positions=True
        )
        ctx.save_for_backward(hidden, weight, weights, argmax)
        ctx.bias_type = None if bias is None else bias.dtype
        ctx.options = product_type, block_bytes, backward
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, weights, argmax = ctx.saved_tensors
        product_type, block_bytes, path = ctx.options
        # d log1p(m)/dm = 1/(1 + m) = exp(-weights); a nan is not 0 and so passes on.
        gradient = torch.where(weights != 0, upstream * torch.exp(-weights), 0)
        if path == "auto":
            cost = _device(hidden.device).sparse_cost
            path = (
                "sparse"
                if gradient.count_nonzero() * cost <= hidden.shape[1] * (gradient.numel())
                else "dense"
            )
        with torch.autocast(hidden.device.type, enabled=False):
            if path == "sparse":
                d_hidden, d_weight = _sparse_backward(gradient, argmax, hidden, weight)
            else:
                d_hidden, d_weight = _dense_backward(
                    gradient, argmax, hidden, weight, product_type, block_bytes
                )
        d_bias = None if ctx.bias_type is None else gradient.sum(dim=0).to(ctx.bias_type)
        d_hidden, d_weight = d_hidden.to(hidden.dtype), d_weight.to(weight.dtype)
        return d_hidden, None, d_weight, d_bias, None, None, None


def _sparse_backward(
    gradient: Tensor, argmax: Tensor, hidden: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """`G @ weight` and `G.T @ hidden` for the sparse G with `G[text x seq + argmax, term]`."""
    batch, seq, width = hidden.shape
    text, term = gradient.nonzero(as_tuple=True)
    value = gradient[text, term]
    token = text * seq + argmax[text, term]
    d_hidden = _sparse_product(token, term, value, batch * seq, weight)
    d_weight = _sparse_product(term, token, value, len(weight), hidden.reshape(-1, width))
    return d_hidden.view_as(hidden), d_weight


def _sparse_product(row: Tensor, column: Tensor, value: Tensor, rows: int, dense: Tensor) -> Tensor:
    """Product of the sparse matrix `[rows, n]` given by its entries and `dense [n, d]`.

    embedding_bag is the fastest such product in torch on a CPU, and deterministic on a GPU.
    """
    row, order = row.sort(stable=True)
    offsets = torch.searchsorted(row, torch.arange(rows, device=row.device))
    return functional.embedding_bag(
        column[order], dense.to(value.dtype), offsets, mode="sum", per_sample_weights=value[order]
    )


def _dense_backward(
    gradient: Tensor,
    argmax: Tensor,
    hidden: Tensor,
    weight: Tensor,
    product_type: torch.dtype,
    block_bytes: int,
) -> tuple[Tensor, Tensor]:
    """The same products with G in dense blocks: cheaper when short texts are mostly active."""
    batch, seq, width = hidden.shape
    d_hidden = torch.zeros_like(hidden, dtype=gradient.dtype)
    d_weight = torch.zeros_like(weight, dtype=gradient.dtype)
    texts = _device(hidden.device).block_texts
    for start in range(0, batch, texts):
        group = slice(start, start + texts)
        tokens = hidden[group].reshape(-1, width).to(product_type)
        step = _block_terms(block_bytes, len(tokens), product_type)
        for term in range(0, len(weight), step):
            block = slice(term, term + step)
            values = gradient[group, None, block].to(product_type)
            dense = values.new_zeros((len(values), seq, values.shape[2]))
            dense.scatter_(1, argmax[group, None, block].long(), values)
            dense = dense.view(len(tokens), -1)
            d_hidden[group] += (dense @ weight[block].to(product_type)).view(-1, seq, width)
            d_weight[block] += dense.T @ tokens
    return d_hidden, d_weight
