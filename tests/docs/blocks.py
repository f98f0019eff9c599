"""Fenced code blocks of Markdown files, and how they are run."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from miniature import ROOT

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block: its language, its text, and the heading that it stands under."""

    language: str
    text: str
    section: str


def blocks(path: Path) -> list[Block]:
    """All fenced blocks of a file, in order."""
    text = path.read_text(encoding="utf-8")
    headings = [
        (match.start(), match[1]) for match in re.finditer(r"^#+ (.+)$", text, re.MULTILINE)
    ]
    found = []
    for match in _FENCE.finditer(text):
        section = [title for start, title in headings if start < match.start()][-1]
        found.append(Block(match[1], match[2], section))
    assert text.count("```") == 2 * len(found), f"{path}: a fence is not closed or indented"
    return found


def named_file(block: Block) -> str | None:
    """The file that a block is, where its first line is a comment with nothing but a path."""
    found = re.match(r"# ([\w./-]+\.\w+)\n", block.text)
    return found[1] if found else None


def run(block: Block, folder: Path, **environment: str) -> str:
    """Run a sh or python block as a reader would, in `folder`; returns what it printed."""
    command = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
    done = subprocess.run(
        [*command[block.language], block.text],
        cwd=folder,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT / "workflow"),
            "OMP_WAIT_POLICY": "passive",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{block.text}\nended with {done.returncode}:\n{done.stdout}"
    return done.stdout
