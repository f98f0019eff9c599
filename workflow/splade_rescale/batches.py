"""Encode texts in batches of a bounded number of tokens, on a CPU or a GPU.

What is kept is sparse, so memory does not grow with [texts, vocab].
"""

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from transformers import PreTrainedTokenizerBase

from splade_rescale.errors import UserError
from splade_rescale.settings import EncodeSettings
from splade_rescale.splade import Splade

# Most texts in a batch, so that [batch, vocab] stays small for short texts.
BATCH_TEXTS = {"cpu": 128, "cuda": 512}
# Most tokens in a batch on a CPU, whatever the budget: activations then stay in its caches, which
# more than makes up for the overhead of more batches (measured at widths 128 and 384).
CPU_TOKENS = 2048
_TOKENIZED = 1024  # texts given to the tokenizer at once; what it returns is far larger than ids


class Tokens(NamedTuple):
    """Tokenized texts: for each name of a model's input, an array of int32 for each text."""

    inputs: dict[str, list[np.ndarray]]
    lengths: list[int]


class Encoded(NamedTuple):
    """Texts of one batch."""

    places: list[int]  # which of the texts the rows are
    vectors: sparse.csr_array  # [batch, vocab]
    cut: int  # how many texts were cut to the most terms


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: list[str], length: int) -> Tokens:
    """Token ids of texts, cut to `length`, specials included."""
    inputs: dict[str, list[np.ndarray]] = {}
    for start in range(0, len(texts), _TOKENIZED):
        part = tokenizer(
            texts[start : start + _TOKENIZED],
            truncation=True,
            max_length=length,
            return_attention_mask=True,
        )
        for name, rows in part.items():
            inputs.setdefault(name, []).extend(np.array(row, dtype=np.int32) for row in rows)
    return Tokens(inputs, [len(ids) for ids in inputs.get("input_ids", [])])


def split(lengths: list[int], settings: EncodeSettings, device: str) -> list[list[int]]:
    """Split texts into batches, longest first, each within the token budget with its padding.

    A text that is longer than the budget is a batch of its own. The batches depend on nothing but
    the arguments, so neither do the vectors.

    Args:
        lengths: tokens of each text.
        settings: the budget.
        device: kind of device.
    """
    budget = min(settings.token_budget, CPU_TOKENS) if device == "cpu" else settings.token_budget
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches = []
    start = 0
    while start < len(order):
        longest = max(lengths[order[start]], 1)
        size = min(max(budget // longest, 1), BATCH_TEXTS[device])
        batches.append(order[start : start + size])
        start += size
    return batches


class BatchEncoder:
    """Encodes batches of texts with a model that no other thread uses.

    A batch that a GPU's memory does not suffice for is halved, as are those of its size that
    follow.
    """

    def __init__(
        self, model: Splade, tokenizer: PreTrainedTokenizerBase, settings: EncodeSettings
    ) -> None:
        """Take a model in evaluation mode, on the device to compute on."""
        self._model = model
        self._tokenizer = tokenizer
        self._settings = settings
        self._device = next(model.parameters()).device
        # Tokens, padding included, that memory did not suffice for.
        self._too_many: float = math.inf

    def encode(self, tokens: Tokens, batch: list[int], name: Callable[[int], str]) -> Encoded:
        """Encode the texts that `batch` numbers.

        Args:
            tokens: of all texts.
            batch: numbers of texts.
            name: what an error calls the text of a number.

        Raises:
            UserError: a weight is not finite, or memory does not suffice for a single text.
        """
        todo, done = deque([batch]), []
        while todo:
            part = todo.popleft()
            longest = max(tokens.lengths[i] for i in part)
            size = len(part) * longest
            if size <= self._too_many or len(part) == 1:
                try:
                    done.append(self._encode(tokens, part, name))
                    continue
                except torch.OutOfMemoryError:
                    if len(part) == 1:
                        raise UserError(
                            f"CUDA ran out of memory with a single text of {longest} tokens; "
                            "lower encode.document_length or query_length, or take a GPU with more "
                            "memory"
                        ) from None
                    # Batches of one budget differ a little in size.
                    self._too_many = min(self._too_many, 3 * size / 4)
            middle = (len(part) + 1) // 2
            todo.extendleft([part[middle:], part[:middle]])
        if len(done) == 1:
            return done[0]
        return Encoded(
            [place for one in done for place in one.places],
            sparse.vstack([one.vectors for one in done], format="csr"),
            sum(one.cut for one in done),
        )

    def _encode(self, tokens: Tokens, batch: list[int], name: Callable[[int], str]) -> Encoded:
        inputs = self._tokenizer.pad(
            {key: [rows[i].tolist() for i in batch] for key, rows in tokens.inputs.items()},
            padding_side="right",  # else absolute positions would depend on the batch
            return_tensors="pt",
        ).to(self._device)
        kind, bf16 = self._device.type, self._settings.precision == "bf16"
        most = self._settings.max_terms
        with torch.inference_mode(), torch.autocast(kind, torch.bfloat16, enabled=bf16):
            weights = self._model(**inputs).float()
            finite = torch.isfinite(weights).all(dim=1)
            if not finite.all():
                row = batch[int(finite.logical_not().nonzero()[0, 0])]
                raise UserError(
                    f"{name(row)}: term weights are not finite, expected finite numbers; "
                    "the model is broken"
                )
            over = (weights > 0).sum(dim=1) > most
            if over.any():
                weights[over] = keep_largest(weights[over], most)
            return Encoded(batch, to_csr(weights), int(over.sum()))


def encode_texts(
    model: Splade,
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    settings: EncodeSettings,
    length: int,
    *,
    name: Callable[[int], str] = "text {}".format,
) -> tuple[sparse.csr_array, int, int]:
    """Encode texts held in memory, on the model's device.

    Args:
        model: in evaluation mode.
        tokenizer: cuts texts to `length` tokens, specials included.
        texts: what to encode.
        settings: token budget, precision and most terms per text.
        length: most tokens per text.
        name: what an error calls the text of a number.

    Returns:
        The weights [texts, vocab] as CSR float32 in the order of `texts`, the number of tokens
        (specials included, padding not), and the number of texts cut to `settings.max_terms`.

    Raises:
        UserError: as `BatchEncoder.encode`.
    """
    tokens = tokenize(tokenizer, texts, length)
    encoder = BatchEncoder(model, tokenizer, settings)
    device = next(model.parameters()).device.type
    parts = [
        encoder.encode(tokens, batch, name) for batch in split(tokens.lengths, settings, device)
    ]
    vectors = in_order_of_texts(parts, model.vocabulary)
    return vectors, sum(tokens.lengths), sum(part.cut for part in parts)


def in_order_of_texts(parts: list[Encoded], vocabulary: int) -> sparse.csr_array:
    """The vectors [texts, vocab] of all batches of some texts, in the order of the texts."""
    if not parts:
        return sparse.csr_array((0, vocabulary), dtype=np.float32)
    order = [place for part in parts for place in part.places]
    # Row i of the result is the row of the stacked batches at which text i was put.
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.arange(len(order))
    return sparse.vstack([part.vectors for part in parts], format="csr")[row]


def keep_largest(weights: torch.Tensor, terms: int) -> torch.Tensor:
    """Zero all but the `terms` largest weights of each row [rows, vocab]; lower ids win ties."""
    threshold = weights.topk(terms, dim=1).values[:, -1:]
    above = weights > threshold
    tied = weights == threshold
    room = terms - above.sum(dim=1, keepdim=True)
    return weights.where(above | (tied & (tied.cumsum(dim=1) <= room)), 0)


def to_csr(weights: torch.Tensor) -> sparse.csr_array:
    """Dense non-negative weights [batch, vocab] -> CSR float32 with sorted indices, no zeros."""
    rows, terms = weights.nonzero(as_tuple=True)
    counts = torch.bincount(rows, minlength=len(weights)).cpu().numpy()
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return sparse.csr_array(
        (weights[rows, terms].cpu().numpy(), terms.cpu().numpy(), indptr),
        shape=tuple(weights.shape),
        dtype=np.float32,
    )
