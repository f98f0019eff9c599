"""The one exception for mistakes that the user can mend, and what messages must not tell."""

import os
import re

_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")
_SECRETS = (
    (re.compile(r"(//)[^/?#\s@]+@"), r"\1***@"),  # user and password of a URL
    (re.compile(r"\bhf_[A-Za-z0-9]{20,}"), "hf_***"),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), r"\1 ***"),
)


class UserError(Exception):
    """Bad input: the message names the file, line or key, what was found and what is expected.

    The command line prints it without a traceback and exits with 1.
    """


def without_secrets(text: str) -> str:
    """`text` without tokens of the hub and passwords in URLs, fit for a log."""
    for name in _TOKENS:
        if value := os.environ.get(name, "").strip():
            text = text.replace(value, "***")
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
