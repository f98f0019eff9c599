"""Made-up backbones: small random weights of every architecture of config/backbones.yaml.

File names and formats are those of the published checkpoints, with their oddities: BERT's old
names of layer norms and a second head, byte-level BPE of RoBERTa, ModernBERT's padded vocabulary,
GTE's own code and names, Ettin's tied matrix under the decoder's name only, pickled weights.
"""

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from splade_rescale.settings import HubBackbone
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from .data import FILLER, TOPICS
from .server import Repository

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
LENGTH = 64
# Vocabularies are mostly given, not trained: most trainers break ties in another way in every run.
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789-"
transformers.utils.logging.disable_progress_bar()


def commit_of(entry: HubBackbone) -> str:
    """The commit that a repository stands at: the pinned one, or one made up from its id."""
    pinned = entry.revision != "main"
    return entry.revision if pinned else random.Random(entry.id).randbytes(20).hex()


def repositories(entries: dict[str, HubBackbone]) -> list[Repository]:
    """One repository for each backbone of the registry."""
    return [
        Repository("model", entry.id, commit_of(entry), _checkpoint(slug))
        for slug, entry in entries.items()
    ]


def _checkpoint(slug: str) -> dict[str, bytes]:
    make = next(make for start, make in MAKERS.items() if slug.startswith(start))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, random.Random(slug).randrange(2**32))
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
    # None of these may be fetched where there are safetensors.
    others = ("README.md", "pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "modeling.py")
    return {name: b"not to be fetched" for name in others} | files


def _text() -> list[str]:
    draw = random.Random("vocabulary")
    return [" ".join(draw.choices(TOPICS + FILLER, k=12)) for _ in range(300)]


def _word_piece(folder: Path, *, fast: bool = True) -> int:
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*dict.fromkeys(TOPICS[::2] + FILLER)]
    letters = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocabulary = [*specials, *letters, *(word for word in words if word not in letters)]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary))
    if fast:
        transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    else:
        config = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(vocabulary)


def _byte_pairs(specials: list[str]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_text(), trainer)
    return tokenizer


def _random(config: transformers.PreTrainedConfig, seed: int) -> transformers.PreTrainedModel:
    """Weights at random, with a head whose logits are positive for a small part of the terms."""
    model = transformers.AutoModelForMaskedLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.08, generator=generator)
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.add_(1)
        head = model.get_output_embeddings()
        head.weight.normal_(std=0.3, generator=generator)
        head.bias.normal_(mean=-0.7 * head.in_features**0.5, std=0.3, generator=generator)
    return model.eval()


def _rewrite(folder: Path, change: Callable[[dict], dict]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def _bert(folder: Path, seed: int, *, fast: bool = True) -> None:
    vocab_size = _word_piece(folder, fast=fast)
    config = transformers.BertConfig(vocab_size=vocab_size, max_position_embeddings=LENGTH, **SIZES)
    _random(config, seed).save_pretrained(folder)

    def as_published(weights: dict) -> dict:
        """The names of 2018, and the head of next sentence prediction."""
        weights = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): value
            for name, value in weights.items()
        }
        extra = {"weight": torch.zeros(2, 32), "bias": torch.zeros(2)}
        return weights | {f"cls.seq_relationship.{name}": value for name, value in extra.items()}

    _rewrite(folder, as_published)


def _bert_with_plain_tokenizer(folder: Path, seed: int) -> None:
    _bert(folder, seed, fast=False)


def _distilbert(folder: Path, seed: int) -> None:
    vocab_size = _word_piece(folder)
    config = transformers.DistilBertConfig(
        vocab_size=vocab_size, dim=32, n_layers=2, n_heads=2, hidden_dim=48,
        max_position_embeddings=LENGTH,
    )  # fmt: skip
    _random(config, seed).save_pretrained(folder)


def _albert(folder: Path, seed: int) -> None:
    specials = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"\u2581{word}" for word in dict.fromkeys(TOPICS + FILLER)]
    pieces = [(piece, 0.0) for piece in specials]
    pieces += [(piece, -float(len(piece))) for piece in words]
    pieces += [(piece, -20.0) for piece in ["\u2581", *LETTERS]]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=1))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = _template(tokenizer, "[CLS]", "[SEP]")
    transformers.AlbertTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    config = transformers.AlbertConfig(
        vocab_size=tokenizer.get_vocab_size(), embedding_size=16, max_position_embeddings=LENGTH,
        pad_token_id=0, **SIZES,
    )  # fmt: skip
    _random(config, seed).save_pretrained(folder)


def _template(tokenizer: tokenizers.Tokenizer, start: str, end: str):
    return processors.TemplateProcessing(
        single=f"{start} $A {end}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (start, end)],
    )


def _roberta(folder: Path, seed: int) -> None:
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = _byte_pairs(specials)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.model.save(str(folder))  # vocab.json and merges.txt
    config = {"tokenizer_class": "RobertaTokenizer", "model_max_length": LENGTH}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    config = transformers.RobertaConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=LENGTH + 2,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1, **SIZES,
    )  # fmt: skip
    _random(config, seed).save_pretrained(folder)
    (folder / "dict.txt").write_text("")


def _modernbert(folder: Path, seed: int) -> None:
    specials = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    tokenizer = _byte_pairs(specials)
    tokenizer.post_processor = _template(tokenizer, "[CLS]", "[SEP]")
    names = {"unk": 0, "cls": 1, "sep": 2, "pad": 3, "mask": 4}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{name}_token": specials[index] for name, index in names.items()},
    )
    fast.save_pretrained(folder)
    # More rows than tokens, as in the published models (50,368 rows).
    vocab_size = -(-len(fast) // 64) * 64 + 64
    config = transformers.ModernBertConfig(
        vocab_size=vocab_size, max_position_embeddings=LENGTH, decoder_bias=True,
        global_attn_every_n_layers=2, local_attention=16, pad_token_id=3, cls_token_id=1,
        sep_token_id=2, bos_token_id=1, eos_token_id=2, **SIZES,
    )  # fmt: skip
    _random(config, seed).save_pretrained(folder)


def _ettin(folder: Path, seed: int) -> None:
    _modernbert(folder, seed)

    def as_published(weights: dict) -> dict:
        embeddings = weights.pop("model.embeddings.tok_embeddings.weight")
        return weights | {"decoder.weight": embeddings}

    _rewrite(folder, as_published)


def _pickled(folder: Path, seed: int) -> None:
    _modernbert(folder, seed)
    weights = load_file(folder / "model.safetensors")
    weights["decoder.weight"] = weights["model.embeddings.tok_embeddings.weight"]
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _gte(folder: Path, seed: int) -> None:
    vocab_size = _word_piece(folder)
    config = transformers.AutoConfig.for_model(
        "gte", vocab_size=vocab_size, max_position_embeddings=LENGTH, pad_token_id=0,
        type_vocab_size=0, **SIZES,
    )  # fmt: skip
    _random(config, seed).save_pretrained(folder)
    _rewrite(
        folder,
        lambda weights: {
            f"new.{name.removeprefix('gte.')}" if name.startswith("gte.") else name: value
            for name, value in weights.items()
        },
    )
    path = folder / "config.json"
    config = json.loads(path.read_text())
    theta = (config.pop("rope_parameters") or {}).get("rope_theta", 160_000)
    config |= {
        "model_type": "new",
        "architectures": ["NewForMaskedLM"],
        "auto_map": {
            "AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig",
            "AutoModelForMaskedLM": "Alibaba-NLP/new-impl--modeling.NewForMaskedLM",
        },
        "layer_norm_type": "layer_norm",
        "pack_qkv": True,
        "position_embedding_type": "rope",
        "rope_scaling": None,
        "rope_theta": theta,
        "unpad_inputs": False,
        "use_memory_efficient_attention": False,
    }
    path.write_text(json.dumps(config))


MAKERS = {
    "bert-base": _bert,
    "bert-mini": _bert_with_plain_tokenizer,
    "distilbert": _distilbert,
    "albert": _albert,
    "gte": _gte,
    "roberta": _roberta,
    "modernbert": _modernbert,
    "ettin-400m": _pickled,
    "ettin-1b": _pickled,
    "ettin": _ettin,
}
