"""What made a result: settings, versions, commit and machine."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from splade_rescale.config import Experiment
from splade_rescale.settings import PretrainBackbone, TwinBackbone

#: Distributions whose version may change a number.
PACKAGES = (
    "splade-rescale",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "numpy",
    "scipy",
    "pandas",
    "pyserini",
    "ir-measures",
    "statsmodels",
    "snakemake",
    "matplotlib",
)


def versions() -> dict[str, str]:
    """Versions of Python and of `PACKAGES`, as far as they are installed."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            # The package itself may be on the path without being installed.
            continue
    return found


def commit(folder: Path) -> str:
    """The git commit of the checkout that follows the files of `folder`, empty where none does.

    Ends with ` (with changes)` where files that git follows differ from it.
    """
    try:
        # A folder of installed packages may lie within a checkout of something else.
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        head = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        return ""
    return f"{head} (with changes)" if changed else head


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def machine() -> str:
    """System and processor type, without the name of the machine."""
    return f"{platform.system()}, {platform.machine()}"


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """The settings of an experiment, all defaults filled in, and the registry entries it uses.

    Returns:
        source (the configuration's name), config, backbones and datasets (slug -> entry), as JSON
        has them. The user's own registry is left out of config, since what is used of it stands in
        backbones and datasets.
    """
    arms = [experiment.config, *map(experiment.arm, experiment.config.arms)]
    backbones = dict.fromkeys(slug for arm in arms for slug in arm.backbones)
    datasets = dict.fromkeys([*experiment.config.datasets, *(arm.train.dataset for arm in arms)])
    for slug in list(backbones):
        entry = experiment.backbones[slug]
        while isinstance(entry, TwinBackbone):
            backbones[entry.of] = None
            entry = experiment.backbones[entry.of]
        if isinstance(entry, PretrainBackbone):
            datasets[entry.dataset] = None
    for slug in list(datasets):
        datasets[experiment.corpus_of(slug)] = None
    return {
        "source": experiment.source,
        "config": experiment.config.model_dump(mode="json", exclude={"registry"}),
        "backbones": {
            slug: experiment.backbones[slug].model_dump(mode="json", exclude_none=True)
            for slug in backbones
        },
        "datasets": {
            slug: experiment.datasets[slug].model_dump(mode="json", exclude_none=True)
            for slug in datasets
        },
    }
