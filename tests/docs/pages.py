"""Following the pages in docs/ for newcomers as a reader does, with small experiments."""

import re
from pathlib import Path

import yaml
from miniature import MINI

from .blocks import blocks, named_file, run

PAGES = [
    "first-steps",
    "adding-a-backbone",
    "adding-a-dataset",
    "adding-a-loss",
    "adding-an-engine",
]


def shrink(config: dict) -> dict:
    """An experiment of the pages with the miniature's steps and lengths."""
    own = {key: MINI["train"][key] for key in ("query_length", "document_length", "learning_rate")}
    steps = {"max_steps": min(MINI["train"]["max_steps"], config["train"]["max_steps"])}
    batch = {"batch_size": min(MINI["train"]["batch_size"], config["train"]["batch_size"])}
    train = {**config["train"], **own, **steps, **batch}
    return {**config, "train": train, "encode": {**MINI["encode"], "shards": 1}}


def follow(page: Path, folder: Path, variables: dict[str, str]) -> None:
    """Do what a page says.

    A block whose first line is a comment with a path is that file. Other sh and python blocks are
    run; a diff is applied; a block without a language is part of what the last run printed.
    """
    printed = ""
    for block in blocks(page):
        if name := named_file(block):
            text = block.text
            if block.language == "yaml":
                text = yaml.safe_dump(shrink(yaml.safe_load(text)), sort_keys=False)
            (folder / name).write_text(text)
        elif block.language in ("sh", "python"):
            printed = run(block, folder, **variables)
        elif block.language == "diff":
            apply(block.text, folder)
        else:
            assert block.language == "", f"{page}: nothing is known to be done with {block}"
            lines = [*map(beginning, printed.splitlines())]
            for words in map(beginning, block.text.splitlines()):
                assert any(line.startswith(words) for line in lines), f"{words} in:\n{printed}"


def beginning(line: str) -> str:
    """The words of a line before its first number; numbers differ in a small copy."""
    words = re.split(r"\d", line)[0]
    return re.sub(r"-+", "-", " ".join(words.split()))


def apply(diff: str, folder: Path) -> None:
    """Apply the hunks of one file, wherever it has their lines, once and exactly."""
    head, *hunks = re.split(r"^@@.*\n", diff, flags=re.MULTILINE)
    path = folder / re.search(r"^\+\+\+ b/(.+)$", head, re.MULTILINE)[1]
    text = path.read_text()
    for hunk in hunks:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        assert text.count(before) == 1, f"{path} has not once:\n{before}"
        text = text.replace(before, after)
    path.write_text(text)
