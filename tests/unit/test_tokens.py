import pytest
import transformers
from splade_rescale.tokens import marker_of, readable, readable_terms
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TEXTS = ["reading a café menu", "unreadable 日本語 text", "it's read, re-read\nand read again"] * 4


@pytest.mark.parametrize(
    ("token", "marker", "name"),
    [
        ("##ing", "##", "##ing"),
        ("read", "##", "read"),
        ("Ġread", "Ġ", "read"),
        ("read", "Ġ", "##read"),
        ("ĠcafÃ©", "Ġ", "café"),
        ("Ã©", "Ġ", "##é"),
        ("Ã", "Ġ", "<0xC3>"),
        ("Ġ", "Ġ", "␣"),
        ("ĠĠ", "Ġ", "␣␣"),
        ("Ċ", "Ġ", r"\n"),
        (",", "Ġ", ","),
        ("Ġ(", "Ġ", "␣("),
        ("▁read", "▁", "read"),
        ("read", "▁", "##read"),
        ("▁", "▁", "␣"),
        ("<0x0A>", "▁", "<0x0A>"),
        ("\u200bx", None, r"\u200bx"),
    ],
)
def test_names(token, marker, name):
    assert readable(token, marker) == name


def test_the_marker_is_the_one_that_most_tokens_have():
    assert marker_of(["a", "##b", "##c", "Ġx", "Ġ", "▁"]) == "##"
    assert marker_of(["a", "Ġb", "Ġc", "##", "####"]) == "Ġ"
    assert marker_of(["▁a", "b", "▁", "Ġ"]) == "▁"
    assert marker_of(["a", "##", "Ġ", "▁"]) is None


def _trained(kind: str) -> transformers.PreTrainedTokenizerFast:
    specials = ["<pad>", "<s>"]
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
        )
    elif kind == "pieces":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=60, special_tokens=specials, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="<s>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordPieceTrainer(
            vocab_size=120, special_tokens=specials, show_progress=False
        )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


@pytest.mark.parametrize("kind", ["byte-level", "pieces", "words"])
def test_the_names_of_a_text_put_together_are_the_text(kind):
    tokenizer = _trained(kind)
    text = "reader café menu unreadable rereading"
    names = readable_terms(tokenizer, tokenizer(text)["input_ids"])
    assert " ".join(names).replace(" ##", "").replace("␣", "") == text
    assert len(names) > len(text.split())


@pytest.mark.parametrize("kind", ["byte-level", "pieces", "words"])
def test_every_term_has_a_name_of_its_own_on_one_line(kind):
    tokenizer = _trained(kind)
    tokenizer.add_tokens(["  "])
    size = len(tokenizer)
    names = readable_terms(tokenizer, range(size + 2))
    assert len(set(names)) == len(names)
    assert all(name and name.isprintable() and " " not in name for name in names)
    assert names[0] == "<pad>"
    assert names[-3:] == ["␣␣", f"[t{size}]", f"[t{size + 1}]"]
