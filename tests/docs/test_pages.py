"""The pages in docs/ for newcomers: all their blocks, in order, in a small copy of the project."""

import re
import shutil
from pathlib import Path

import pytest
from miniature import ROOT

from .blocks import blocks, named_file
from .pages import PAGES, follow

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("pages")]


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
