"""Models and texts that the benchmarks of training and encoding run on.

Weights are random, because no model hub is needed then; what matters for speed is made as in a
trained model: real text, its lengths, and the part of the terms that are active.
"""

from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from splade_rescale.head import output_projection
from splade_rescale.pretrain import train_tokenizer
from splade_rescale.pydocs import IN_DOMAIN, collect, shuffled
from splade_rescale.settings import PretrainBackbone
from splade_rescale.splade import Splade
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

LENGTH = 128  # tokens at which queries and documents are cut, specials included
ACTIVE = 0.04  # part of the terms that are active in a document
PACKAGES = ("datasets", "numpy", "pandas", "scipy", "torch", "transformers")


class Plain(nn.Module):
    """The formula as it is usually written, over whole logits `[batch, seq, vocab]`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
        """Term weights `[batch, vocab]`."""
        logits = self.model(attention_mask=attention_mask, **inputs).logits
        weights = torch.log1p(torch.relu(logits)) * attention_mask[..., None]
        return weights.max(dim=1).values


class Case(NamedTuple):
    """The shape of a model."""

    architecture: str
    layers: int
    width: int
    vocabulary: int


CASES = {
    "bert-2x128": Case("bert", 2, 128, 30_522),
    "bert-6x384": Case("bert", 6, 384, 30_522),
    "modernbert-6x384": Case("modernbert", 6, 384, 50_368),
}


def read_texts(packages: tuple[str, ...] = PACKAGES) -> pd.DataFrame:
    """Docstrings of installed packages: query (the summary line) and document (the rest)."""
    assert set(packages) <= {*IN_DOMAIN}
    return shuffled(collect(packages), 0)[["query", "document"]].reset_index(drop=True)


def make_tokenizer(texts: pd.DataFrame, vocabulary: int) -> PreTrainedTokenizerBase:
    """WordPiece of at most `vocabulary` tokens; a model may have more rows than that."""
    entry = PretrainBackbone(
        source="pretrain", architecture="bert", dataset="pydocs", vocabulary=vocabulary
    )
    return train_tokenizer([*texts["query"], *texts["document"]], entry)


def build(case: Case) -> PreTrainedModel:
    """A masked language model of that shape with random weights, tied, without dropout."""
    shared = {
        "vocab_size": case.vocabulary,
        "hidden_size": case.width,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.width // 64,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if case.architecture == "bert":
            return BertForMaskedLM(
                BertConfig(
                    **shared,
                    intermediate_size=4 * case.width,
                    hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0,
                )
            )
        return ModernBertForMaskedLM(
            ModernBertConfig(
                **shared,
                intermediate_size=3 * case.width // 2,  # as in ModernBERT-base
                bos_token_id=2,
                cls_token_id=2,
                eos_token_id=3,
                sep_token_id=3,
                initializer_cutoff_factor=3.0,
            )
        )


@torch.no_grad()
def shift_bias(
    splade: Splade, tokenizer: PreTrainedTokenizerBase, texts: list[str], active: float = ACTIVE
) -> None:
    """Lower the output bias, the same for all terms, until the part `active` of them is active."""
    bias = output_projection(splade.model)[1].bias
    bias.fill_(100.0)  # above every logit, so that no weight is cut at zero
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
    highest = splade(**inputs).double().expm1() - 100
    bias.fill_(-float(highest.quantile(1 - active)))


def write_model(folder: Path, case: Case, texts: pd.DataFrame) -> Path:
    """A checkpoint folder that this package and sentence-transformers load alike."""
    tokenizer = make_tokenizer(texts, case.vocabulary)
    splade = Splade(build(case).eval())
    shift_bias(splade, tokenizer, list(texts["document"][:16]))
    splade.save(folder, tokenizer, query_length=LENGTH, document_length=LENGTH)
    return folder


def full_length(texts: pd.DataFrame, rows: int) -> pd.DataFrame:
    """Query and document of `rows` rows, every one longer than `LENGTH` tokens."""
    long = texts["document"][texts["document"].str.split().str.len() > LENGTH].reset_index(
        drop=True
    )
    assert len(long) >= 2 * rows
    return pd.DataFrame({"query": long[:rows], "document": long[rows : 2 * rows].to_numpy()})


def write_pairs(path: Path, texts: pd.DataFrame) -> Path:
    """train.parquet."""
    table = {"query": list(texts["query"]), "positive": list(texts["document"])}
    pq.write_table(pa.table(table), path)
    return path
