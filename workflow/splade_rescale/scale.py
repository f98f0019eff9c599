"""The one way to write a scale k."""

from decimal import Decimal, InvalidOperation

from splade_rescale.errors import UserError

#: A scale that is chosen per backbone before training (see choose_k).
AUTO = "auto"

#: Most characters of a scale: it is part of the names of folders and files.
LONGEST = 50


def canonical_k(value: object) -> str:
    """Return the canonical text of a scale, so that 16, 16.0 and "16" are one path `k16`.

    Plain decimal notation without exponent, trailing zeros or sign: `16`, `0.5`, `2.25`.

    Raises:
        UserError: the value is not a finite number above 0, or beyond what float32 weights and
            file names hold.
    """
    expected = f"k must be a finite number above 0, found {value!r:.80}"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UserError(expected)
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        raise UserError(expected) from None
    if not number.is_finite() or number <= 0 or not 0 < float(number) < float("inf"):
        raise UserError(expected)
    text = format(number, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    if not Decimal("1e-30") <= number <= Decimal("1e30") or len(text) > LONGEST:
        raise UserError(
            f"k must be from 1e-30 to 1e30, with {LONGEST} digits at most, found {value!r:.80}"
        )
    return text
