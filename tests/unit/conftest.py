"""Tiny models and a tokenizer made on the spot, for all unit tests."""

import pytest

# torch and transformers are imported where they are used: tests of the stages that do without
# them start at once.

WORDS = """
the a an of in and is not cat dog fish bird red blue green small large runs eats sees one two
three tree house river over under quick slow old new city paper index query document model scale
head norm sparse term weight word text
"""
WORDS = [*dict.fromkeys(WORDS.split())]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789.,-"]
VOCABULARY = [
    *SPECIALS,
    *WORDS,
    *(c for c in LETTERS if c not in WORDS),
    *(f"##{c}" for c in LETTERS),
]

# More logits than token strings, as in many published checkpoints.
PADDED_VOCABULARY = -(-len(VOCABULARY) // 64) * 64 + 8

_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}


def _config(architecture: str, vocab_size: int, **other):
    import transformers

    sizes = {**_SIZES, "vocab_size": vocab_size, **other}
    if architecture == "distilbert":
        names = {
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "intermediate_size": "hidden_dim",
        }
        names["num_attention_heads"] = "n_heads"
        return transformers.DistilBertConfig(**{names.get(k, k): v for k, v in sizes.items()})
    if architecture == "albert":
        sizes.setdefault("embedding_size", 16)
    if architecture == "modernbert":
        sizes = {
            "bos_token_id": 2,
            "cls_token_id": 2,
            "eos_token_id": 3,
            "sep_token_id": 3,
            "decoder_bias": True,
            "global_attn_every_n_layers": 2,
            **sizes,
        }
    return transformers.AutoConfig.for_model(architecture, **sizes)


@pytest.fixture
def tiny_tokenizer():
    """WordPiece with a few dozen words, letters for all others, [CLS] text [SEP]."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import BertTokenizerFast

    tokens = {token: number for number, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(tokens, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokens["[CLS]"]), ("[SEP]", tokens["[SEP]"])],
    )
    return BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=80)


@pytest.fixture
def tiny_masked_lm():
    """A function: architecture -> a small masked language model with random weights, eval mode.

    Architectures are transformers' model types (bert, distilbert, roberta, albert, modernbert,
    mpnet, electra, ...). Weights, biases included, are normal with deviation `std`, so that heads
    differ from zero everywhere. `vocab_size` defaults to the tiny tokenizer's, padded for
    modernbert. Further keywords go to the configuration.
    """
    import torch
    import transformers

    def make(architecture: str = "bert", *, vocab_size=None, seed=0, std=0.3, **other):
        padded = PADDED_VOCABULARY if architecture == "modernbert" else len(VOCABULARY)
        config = _config(architecture, vocab_size or padded, **other)
        model = transformers.AutoModelForMaskedLM.from_config(config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(std=std, generator=generator)
                if "norm" in name.lower() and name.endswith("weight"):
                    parameter.add_(1)
        return model.eval()

    return make


@pytest.fixture
def tiny_checkpoint(tiny_masked_lm, tiny_tokenizer, tmp_path):
    """A function: architecture -> folder with such a model and the tiny tokenizer."""

    def make(architecture: str = "bert", *, name: str = "backbone", **other):
        folder = tmp_path / name
        tiny_masked_lm(architecture, **other).save_pretrained(folder)
        tiny_tokenizer.save_pretrained(folder)
        return folder

    return make
