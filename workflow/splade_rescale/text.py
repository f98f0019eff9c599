"""The text that stands for a document, the same in training, encoding and the lexical baseline."""

from collections.abc import Iterable


def document_text(title: str, text: str) -> str:
    """Join title and text as BEIR does: one space between, none around."""
    return f"{title} {text}".strip()


def document_texts(titles: Iterable[str], texts: Iterable[str]) -> list[str]:
    """`document_text` over two columns of equal length.

    Raises:
        ValueError: the columns differ in length.
    """
    return [document_text(title, text) for title, text in zip(titles, texts, strict=True)]
