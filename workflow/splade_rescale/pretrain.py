"""Pretrain a small masked language model on the training text, in minutes of CPU time.

The model is an ordinary BERT or ModernBERT of transformers. Three things make it a usable start
for SPLADE in so few steps: denoising with many tokens left visible, logits drawn to
log-probabilities plus a constant (z-loss), and texts formatted as SPLADE will see them. The
output bias starts at the log frequencies of the vocabulary plus that constant, because a bias
under Adam could not travel that far in a few hundred steps.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import nn
from tqdm.auto import tqdm
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    get_linear_schedule_with_warmup,
)

from splade_rescale.errors import UserError
from splade_rescale.files import atomic_folder, write_json
from splade_rescale.parquet_files import ERRORS, read_table
from splade_rescale.settings import PretrainBackbone

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WARMUP = 0.1
"""Part of the steps over which the learning rate rises."""
WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0


def pretrain(
    entry: PretrainBackbone, train_parquet: Path, out: Path, *, progress: bool = False
) -> None:
    """Train tokenizer and model on the queries and positives; write checkpoint, tokenizer, report.

    Everything random comes from `entry.seed`, none of it from global state: the same seed, text
    and number of threads give the same weights on a CPU. `pretrain.json` holds the settings, the
    losses every tenth of the way, and the means over the last tenth.

    Raises:
        UserError: the text is unreadable or too little, or the sizes do not fit each other.
    """
    started = time.perf_counter()
    texts = read_texts(train_parquet)
    tokenizer = train_tokenizer(texts, entry)
    sequences = encode(tokenizer, texts, entry.length)
    model = build_model(entry, tokenizer)
    set_output_bias(model, sequences, entry.z_target)
    trace = train_loop(model, tokenizer, sequences, entry, progress=progress)
    tenth = max(1, len(trace) // 10)
    last = pd.DataFrame(trace[-tenth:]).mean().to_dict()
    with atomic_folder(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_json(
            folder / "pretrain.json",
            {
                "settings": entry.model_dump(),
                "texts": len(texts),
                "tokens": sum(map(len, sequences)),
                "vocabulary": len(tokenizer),
                "parameters": model.num_parameters(),
                "final": last,
                "trace": [{"step": i + 1, **trace[i]} for i in range(0, len(trace), tenth)],
                "seconds": round(time.perf_counter() - started, 1),
            },
        )


def read_texts(train_parquet: Path) -> list[str]:
    """Queries, then positives, of a training file.

    Raises:
        UserError: the file is missing, lacks a column or has no rows.
    """
    try:
        table = read_table(train_parquet, ["query", "positive"])
    except ERRORS as error:
        raise UserError(
            f"{train_parquet}: expected a parquet file with the columns query and positive "
            f"({error})"
        ) from None
    if not table.num_rows:
        raise UserError(f"{train_parquet}: no rows to pretrain on")
    return [*table["query"].to_pylist(), *table["positive"].to_pylist()]


def train_tokenizer(texts: Sequence[str], entry: PretrainBackbone) -> PreTrainedTokenizerBase:
    """A lower-casing BERT tokenizer with at most `entry.vocabulary` WordPieces of the texts.

    Raises:
        UserError: the texts hold no words.
    """
    normalizer = normalizers.BertNormalizer(lowercase=True)
    counts = Counter(char for text in texts for char in normalizer.normalize_str(text))
    characters = [char for char in counts if not char.isspace()]
    characters = sorted(characters, key=lambda char: (-counts[char], char))
    characters = sorted(characters[: entry.vocabulary // 8])
    if not characters:
        raise UserError("pretrain: the training text is empty")
    # The trainer numbers what it meets in the order of a randomly seeded hash map, and breaks
    # ties between merges by number. Only with the whole alphabet numbered beforehand, inner
    # characters included, does the same text always give the same vocabulary.
    trainer = trainers.WordPieceTrainer(
        vocab_size=entry.vocabulary,
        special_tokens=[*SPECIALS, *(f"##{char}" for char in characters)],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = normalizer
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trained.train_from_iterator(texts, trainer)
    inputs = ["input_ids", "attention_mask"]
    if entry.architecture == "bert":
        inputs.insert(1, "token_type_ids")
    return BertTokenizer(
        vocab=trained.get_vocab(),
        do_lower_case=True,
        model_max_length=entry.max_positions,
        model_input_names=inputs,
    )


def encode(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int
) -> list[list[int]]:
    """Token ids of `[CLS] text [SEP]`, each cut to `length` tokens."""
    return tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]


def build_model(entry: PretrainBackbone, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The masked language model with fresh weights from `entry.seed`; embeddings tied, no dropout.

    Raises:
        UserError: the width is no even multiple of the heads, or length exceeds max_positions.
    """
    if entry.hidden % (2 * entry.heads):
        raise UserError(
            f"pretrain: hidden is {entry.hidden}; expected a multiple of twice the heads "
            f"({2 * entry.heads})"
        )
    if entry.length > entry.max_positions:
        raise UserError(
            f"pretrain: length is {entry.length}; expected at most max_positions "
            f"({entry.max_positions})"
        )
    shared: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": entry.hidden,
        "num_hidden_layers": entry.layers,
        "num_attention_heads": entry.heads,
        "max_position_embeddings": entry.max_positions,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(entry.seed)
        if entry.architecture == "bert":
            return BertForMaskedLM(
                BertConfig(
                    **shared,
                    intermediate_size=4 * entry.hidden,
                    hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0,
                )
            )
        return ModernBertForMaskedLM(
            ModernBertConfig(
                **shared,
                intermediate_size=3 * entry.hidden // 2,  # as in ModernBERT-base
                bos_token_id=tokenizer.cls_token_id,
                cls_token_id=tokenizer.cls_token_id,
                eos_token_id=tokenizer.sep_token_id,
                sep_token_id=tokenizer.sep_token_id,
            )
        )


@torch.no_grad()
def set_output_bias(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], constant: float
) -> None:
    """Set the output bias to log p(token) + constant, p with one added to every count."""
    bias = model.get_output_embeddings().bias
    ids = torch.tensor([token for sequence in sequences for token in sequence])
    counts = torch.bincount(ids, minlength=len(bias)) + 1.0
    bias.copy_((counts / counts.sum()).log() + constant)


def train_loop(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sequences: Sequence[Sequence[int]],
    entry: PretrainBackbone,
    *,
    progress: bool = False,
) -> list[dict[str, float]]:
    """Train in place; returns for each step the masked and visible losses and mean logsumexp."""
    generator = torch.Generator().manual_seed(entry.seed)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1]},
            {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=entry.learning_rate,
        weight_decay=WEIGHT_DECAY,
    )
    schedule = get_linear_schedule_with_warmup(
        optimizer, math.ceil(WARMUP * entry.steps), entry.steps
    )
    specials = torch.tensor(tokenizer.all_special_ids)
    trace = []
    model.train()
    for ids in tqdm(
        batches(sequences, entry, tokenizer.pad_token_id, generator),
        total=entry.steps,
        desc="pretrain",
        unit="step",
        disable=not progress,
    ):
        selected, masked = select(ids, specials, entry, generator)
        padding = ids == tokenizer.pad_token_id
        # Visible tokens that were not selected look just like the selected ones that stay
        # visible, so selected and special positions stand for all, at a third of the cost.
        used = selected | (torch.isin(ids, specials) & ~padding)
        logits = logits_at(model, ids.masked_fill(masked, tokenizer.mask_token_id), ~padding, used)
        log_z = logits.logsumexp(-1)
        losses = log_z - logits.gather(1, ids[used][:, None]).squeeze(1)
        loss = mean(losses[selected[used]]) + entry.z_loss * z_loss(log_z, entry.z_target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        schedule.step()
        trace.append(
            {
                "loss": loss.item(),
                "loss_masked": mean(losses[masked[used]]).item(),
                "loss_visible": mean(losses[(selected & ~masked)[used]]).item(),
                "logsumexp": log_z.mean().item(),
            }
        )
    model.eval()
    return trace


def batches(
    sequences: Sequence[Sequence[int]],
    entry: PretrainBackbone,
    pad_id: int,
    generator: torch.Generator,
) -> Iterator[torch.Tensor]:
    """`entry.steps` batches of ids [batch, seq], padded; every text once before any twice."""
    order: list[int] = []
    for _ in range(entry.steps):
        while len(order) < entry.batch_size:
            order += torch.randperm(len(sequences), generator=generator).tolist()
        batch, order = order[: entry.batch_size], order[entry.batch_size :]
        yield nn.utils.rnn.pad_sequence(
            [torch.tensor(sequences[i]) for i in batch], batch_first=True, padding_value=pad_id
        )


def select(
    ids: torch.Tensor,
    specials: torch.Tensor,
    entry: PretrainBackbone,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tokens to predict, and which of those to hide; both bool [batch, seq].

    Each token but the specials is selected with probability `entry.mask`, and a selected one
    stays visible with probability `entry.keep`.
    """
    selected = torch.rand(ids.shape, generator=generator) < entry.mask
    selected &= ~torch.isin(ids, specials)
    visible = torch.rand(ids.shape, generator=generator) < entry.keep
    return selected, selected & ~visible


def z_loss(log_z: torch.Tensor, target: float) -> torch.Tensor:
    """Mean of (log_z - target)^2, where log_z is the logsumexp of the logits of a position."""
    return (log_z - target).square().mean()


def mean(values: torch.Tensor) -> torch.Tensor:
    """Mean of a vector, 0 if it has no elements."""
    return values.sum() / max(1, len(values))


def logits_at(
    model: PreTrainedModel, ids: torch.Tensor, attend: torch.Tensor, used: torch.Tensor
) -> torch.Tensor:
    """Logits [n, vocab] of the n positions that are true in `used`; all but ids bool [batch, seq].

    The same as the model's own logits at these positions, without the work for the others.
    """
    states = model.base_model(input_ids=ids, attention_mask=attend.long()).last_hidden_state
    bert = isinstance(model, BertForMaskedLM)
    transform = model.cls.predictions.transform if bert else model.head
    return model.get_output_embeddings()(transform(states[used]))
