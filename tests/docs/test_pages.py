"""The pages in docs/ for newcomers: all their blocks, in order, in a small copy of the project."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from miniature import ROOT

from .blocks import blocks, named_file, run
from .conftest import PAGES, shrink

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("pages")]


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


def test_every_page_for_newcomers_is_followed():
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert set(PAGES) == {name for name in pages if name.startswith(("first-", "adding-"))}


@pytest.mark.parametrize("page", PAGES)
def test_no_example_hides_from_the_tests(page):
    """Blocks are fenced, not indented, and each is of a kind that is run, written or compared."""
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"^\s*\n(    |\t)", outside, re.MULTILINE)
    found = blocks(ROOT / f"docs/{page}.md")
    assert len(found) > 3
    for block in found:
        assert named_file(block) or block.language in ("sh", "python", "diff", "")


def test_first_steps(made):
    assert (made / "results/table.csv").is_file()


@pytest.fixture
def copy(made, tmp_path) -> Path:
    folder = tmp_path / "splade-rescale"
    shutil.copytree(made, folder, symlinks=True)
    return folder


def test_adding_a_backbone(copy, reader):
    follow(ROOT / "docs/adding-a-backbone.md", copy, reader)
    assert (copy / "results/my-checkpoint/k16/seed42/pydocs/metrics.json").is_file()


def test_adding_a_dataset(copy, reader):
    follow(ROOT / "docs/adding-a-dataset.md", copy, reader)
    assert (copy / "data/read/train.parquet").is_file()


@pytest.mark.parametrize("page", ["adding-a-loss", "adding-an-engine"])
def test_code_of_ones_own(copy, page):
    follow(ROOT / f"docs/{page}.md", copy, {"PYTHONPATH": str(copy / "workflow")})
    if page == "adding-a-loss":
        model = copy / "results/arms/symmetric/tiny-bert/k1/seed42/model"
        assert '"loss": "symmetric"' in (model / "train.json").read_text()
    else:
        search = (copy / "results/tiny-bert/k1/seed42/pydocs/search.json").read_text()
        assert '"engine": "sqlite"' in search
        assert '"exact_recall@10": 1.0' in search
    word = {"adding-a-loss": "symmetric", "adding-an-engine": "sqlite"}[page]
    assert f'"{word}"' in (copy / "config/schema/config.schema.json").read_text()
