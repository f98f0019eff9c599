"""The miniature, finished once, and copies of it to break."""

import shutil

import pytest
from hub.warm import warm_commands

from .kills import Bench
from .miniature import TARGETS, Miniature, variables


@pytest.fixture(scope="session")
def warm():
    with warm_commands(variables()) as environment:
        yield environment


@pytest.fixture(scope="session")
def finished(tmp_path_factory, warm):
    miniature = Miniature(tmp_path_factory.mktemp("faults") / "finished", warm)
    miniature.make(*TARGETS)
    return miniature


@pytest.fixture
def bench(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder, symlinks=True)
    return Bench(Miniature(folder, finished.environment))
