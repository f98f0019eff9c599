import pytest
from splade_rescale.text import document_text, document_texts


@pytest.mark.parametrize(
    ("title", "text", "joined"),
    [
        ("A title", "A text.", "A title A text."),
        ("", "A text.", "A text."),
        ("A title", "", "A title"),
        ("", "", ""),
        (" \t", "\n", ""),
        ("  A title ", " A text.\n", "A title   A text."),
    ],
)
def test_join_is_beirs(title, text, joined):
    assert document_text(title, text) == joined
    assert document_texts([title], [text]) == [joined]


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError):
        document_texts(["a", "b"], ["c"])
