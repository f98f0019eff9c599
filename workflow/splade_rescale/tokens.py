"""Readable names of terms, alike for every kind of tokenizer.

A term is a vocabulary id. Its name is the token's text: `##ing` for a piece that goes on inside a
word, `read` for one that begins a word; `␣` is a space that belongs to a token without a word in
it. Byte-level tokens are decoded (`Ġcafé` stands as `ĠcafÃ©` in the vocabulary), bytes that are no
whole character stand as `<0xC3>`. Ids beyond the tokenizer, which padded vocabularies have, are
named as the index names them: `[t50368]`.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

INSIDE, BYTE_SPACE, PIECE_SPACE = "##", "Ġ", "▁"  # of WordPiece, byte-level BPE, SentencePiece
_SPACE = "␣"


def marker_of(vocabulary: Iterable[str]) -> str | None:
    """The mark that tells words from pieces of words in this vocabulary: the most frequent one.

    Returns:
        `INSIDE`, which begins what continues a word; `BYTE_SPACE` or `PIECE_SPACE`, which begin
        what begins a word; None where no token has any.
    """
    counts = dict.fromkeys((INSIDE, BYTE_SPACE, PIECE_SPACE), 0)
    for token in vocabulary:
        for marker in counts:
            counts[marker] += token.startswith(marker) and len(token) > len(marker)
    best = max(counts, key=lambda marker: counts[marker])
    return best if counts[best] else None


def readable(token: str, marker: str | None) -> str:
    """The readable name of an ordinary token of a vocabulary with this marker."""
    if marker == BYTE_SPACE:
        token = _from_bytes(token)
    elif marker == PIECE_SPACE:
        token = token.replace(PIECE_SPACE, " ")
    else:
        return _visible(token)
    begins, rest = token.startswith(" "), token.removeprefix(" ")
    if rest[:1].isalnum():
        return _visible(rest if begins else INSIDE + rest)
    return _visible(token)


def readable_terms(tokenizer: Any, ids: Iterable[int]) -> list[str]:
    """The readable name of each term.

    Args:
        tokenizer: of transformers.
        ids: vocabulary ids, from 0; may go beyond the tokenizer's.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    marker = marker_of(vocabulary)
    added = set(tokenizer.get_added_vocab())
    tokens = {number: token for token, number in vocabulary.items()}
    names = []
    for number in map(int, ids):
        token = tokens.get(number)
        if token is None:
            names.append(f"[t{number}]")
        else:  # added tokens, special ones among them, are text as it is
            names.append(_visible(token) if token in added else readable(token, marker))
    return names


@cache
def _bytes_of_letters() -> dict[str, int]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}


def _from_bytes(token: str) -> str:
    """The text of a byte-level token."""
    letters = _bytes_of_letters()
    if not letters.keys() >= set(token):
        return token
    text = bytes(letters[letter] for letter in token).decode("utf-8", "surrogateescape")
    return "".join(f"<0x{ord(c) - 0xDC00:02X}>" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


def _visible(text: str) -> str:
    """`text` on one line, without a blank, nothing of it invisible."""
    return "".join(
        c if c.isprintable() and c != " " else _SPACE if c == " " else ascii(c)[1:-1] for c in text
    )
