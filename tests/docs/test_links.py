"""Links of README.md and docs/, as far as they stay within the project."""

import re
from pathlib import Path

import pytest
from miniature import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [link for link in _LINK.findall(text) if not link.startswith(("http:", "https:"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target), f"{page}: {link}"


def test_the_readme_lists_every_page():
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Documentation")[1]
    listed = set(_LINK.findall(section.split("\n## ")[0]))
    assert listed == {f"docs/{page.name}" for page in PAGES[1:]}
