import subprocess
import sys

import pytest
from splade_rescale.errors import without_secrets


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("http://me:PassW0rd@hub.invalid/api: gone", "http://***@hub.invalid/api: gone"),
        ("https://s3cret@hub.invalid", "https://***@hub.invalid"),
        ("token hf_" + "aB3" * 11 + " refused", "token hf_*** refused"),
        ("{'authorization': 'Bearer abcdefgh12345678'}", "{'authorization': 'Bearer ***'}"),
        ("made up: my-own-secret", "made up: ***"),
        # What only looks like it stays.
        ("in hf_hub_download: a@b.org, //server/share, 3@4", None),
        ("http://127.0.0.1:80/a@b", None),
    ],
)
def test_secrets_are_left_out(monkeypatch, text, clean):
    monkeypatch.setenv("HF_TOKEN", "my-own-secret")
    assert without_secrets(text) == (clean or text)


def test_also_of_tracebacks(monkeypatch):
    code = """
from splade_rescale import cli
def app():
    raise RuntimeError("no answer from http://me:PassW0rd@hub.invalid")
cli.app = app
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" in done.stderr and "http://***@hub.invalid" in done.stderr
    assert "PassW0rd" not in done.stderr
