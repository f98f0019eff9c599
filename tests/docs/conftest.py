import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hub import data, models
from hub.client import environment
from hub.server import Hub, Repository
from hub.warm import warm_commands
from miniature import PRETRAIN, PYDOCS, ROOT
from splade_rescale.settings import HubBackbone, HubDataset
from unit.conftest import tiny_checkpoint, tiny_masked_lm, tiny_tokenizer

from .blocks import blocks, named_file
from .pages import PAGES, follow, shrink

__all__ = ["tiny_checkpoint", "tiny_masked_lm", "tiny_tokenizer"]


def _rewrite(path: Path, change) -> None:
    path.write_text(yaml.safe_dump(change(yaml.safe_load(path.read_text())), sort_keys=False))


@pytest.fixture(scope="session")
def project(tmp_path_factory) -> Path:
    """A copy of the project in which everything is small, with an environment to activate."""
    folder = tmp_path_factory.mktemp("pages") / "splade-rescale"
    unwanted = shutil.ignore_patterns("__pycache__", ".snakemake")
    for name in ("config", "docs", "envs", "profiles", "tests", "workflow"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    for name in ("Snakefile", "Makefile", "pyproject.toml"):
        shutil.copy2(ROOT / name, folder)
    small = {key: value for key, value in PRETRAIN.items() if key != "dataset"}
    _rewrite(
        folder / "config/backbones.yaml",
        lambda entries: {**entries, "tiny-bert": {**entries["tiny-bert"], **small}},
    )
    _rewrite(
        folder / "config/datasets.yaml",
        lambda entries: {
            **entries,
            "pydocs": {**PYDOCS, "measures": entries["pydocs"]["measures"]},
        },
    )
    _rewrite(folder / "config/first.yaml", shrink)
    (folder / ".venv").mkdir()
    (folder / ".venv/bin").symlink_to(Path(sys.executable).parent)
    (folder / ".venv/.installed").touch()
    return folder


def repositories() -> list[Repository]:
    """What the pages' configurations name on the hub, made up."""
    backbones, datasets = {}, {}
    for page in PAGES:
        for block in blocks(ROOT / f"docs/{page}.md"):
            if block.language == "yaml" and named_file(block):
                registry = yaml.safe_load(block.text).get("registry", {})
                for kind, model, found in (
                    ("backbones", HubBackbone, backbones),
                    ("datasets", HubDataset, datasets),
                ):
                    for slug, entry in registry.get(kind, {}).items():
                        if entry["source"] == "hub":
                            found[slug] = model.model_validate(entry)
    # Which architecture is made up follows from the slug.
    named = {entry.id.rpartition("/")[2]: entry for entry in backbones.values()}
    return models.repositories(named) + data.repositories(datasets)


@pytest.fixture(scope="session")
def reader(project, tmp_path_factory) -> Iterator[dict[str, str]]:
    """The environment of a reader in `project`, whose jobs start at once."""
    home = tmp_path_factory.mktemp("home")
    package = project / "workflow/splade_rescale"
    with (
        Hub(repositories()) as hub,
        warm_commands(environment(hub.endpoint, home), package) as variables,
    ):
        command = home / "bin/splade-rescale"
        command.parent.mkdir()
        python = shlex.quote(sys.executable)
        command.write_text(f'#!/bin/sh\nexec {python} -m splade_rescale "$@"\n')
        command.chmod(0o755)
        path = [command.parent, Path(sys.executable).parent, os.environ["PATH"]]
        yield {**variables, "PATH": os.pathsep.join(map(str, path))}


@pytest.fixture(scope="session")
def made(project, reader) -> Path:
    """The project after first-steps.md."""
    follow(ROOT / "docs/first-steps.md", project, reader)
    return project
