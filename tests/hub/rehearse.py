"""`make rehearse`: config/paper.yaml from end to end, against the miniature of the hub.

All that a researcher's run does happens here too, by the same commands: every backbone and data
set of the paper is downloaded, rescaled, trained, encoded, indexed, searched and evaluated, to the
paper's tables. Made up are the contents of the hub; cut are steps, lengths and shards, and there is
no GPU. The scores mean nothing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import yaml
from splade_rescale.config import Experiment, load_experiment, read_yaml
from splade_rescale.settings import HubBackbone, HubDataset

from . import data, models
from .client import environment
from .server import Hub, Repository
from .warm import warm_commands

ROOT = Path(__file__).parents[2]
TABLES = [f"results/paper/{name}" for name in ("table1.csv", "table2.csv", "beir.csv")]

#: What differs from the paper's configuration, beside the grid.
CUTS = {
    "train": {
        "max_steps": 4,
        "batch_size": 8,
        "query_length": 16,
        "document_length": 32,
        "precision": "fp32",
        "gpus": 0,
        "log_steps": 2,
        "save_steps": 4,
    },
    "encode": {
        "query_length": 16,
        "document_length": 32,
        "token_budget": 1024,
        "precision": "fp32",
        "gpus": 0,
    },
    "norms": {"texts": 16, "batch_size": 8},
}


def overlay(source: Path, *, shards: int = 1, **grid: list | None) -> dict:
    """The configuration in `source` with steps cut.

    Args:
        source: such as config/paper.yaml.
        shards: of every corpus.
        grid: backbones, scales, seeds or datasets to keep; None keeps all.
    """
    config = read_yaml(source)
    config.update({key: value for key, value in grid.items() if value is not None})
    if config.get("baseline_backbone") not in config["backbones"]:
        config["baseline_backbone"] = config["backbones"][0]
    for stage, changes in CUTS.items():
        config[stage] = config.get(stage, {}) | changes
    config["train"].pop("epochs", None)
    config["train"].pop("max_examples", None)
    config["encode"]["shards"] = shards
    return config


def repositories(experiment: Experiment) -> list[Repository]:
    """What the hub must have for an experiment."""
    config = experiment.config
    slugs = {config.train.dataset, *config.datasets}
    slugs |= {experiment.corpus_of(slug) for slug in config.datasets}
    sets = {s: e for s, e in experiment.datasets.items() if s in slugs}
    backbones = {slug: experiment.backbones[slug] for slug in config.backbones}
    return data.repositories(
        {slug: entry for slug, entry in sets.items() if isinstance(entry, HubDataset)}
    ) + models.repositories(
        {slug: entry for slug, entry in backbones.items() if isinstance(entry, HubBackbone)}
    )


def rehearse(
    config: dict,
    folder: Path,
    targets: list[str],
    *,
    cores: int = 2,
    warm: bool = False,
    arguments: tuple[str, ...] = (),
) -> subprocess.CompletedProcess:
    """Run Snakemake with `config` in `folder`, against a hub that has what it names.

    Args:
        config: a configuration.
        folder: work folder, made if need be; the hub's cache lies in it.
        targets: files to make.
        cores: for Snakemake.
        warm: fork the jobs from a process that has the libraries loaded, which saves each the
            seconds of importing them.
        arguments: further arguments of Snakemake.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rehearsal.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    experiment = load_experiment(config, ROOT / "config", "rehearsal.yaml")
    with Hub(repositories(experiment)) as hub, ExitStack() as stack:
        variables = environment(
            hub.endpoint,
            folder / "home",
            PYTHONPATH=str(ROOT / "workflow"),
            # Each JVM lives for a second
            JAVA_TOOL_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )
        if warm:
            variables = stack.enter_context(warm_commands(variables))
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
        command += ["--directory", ".", "--configfile", "rehearsal.yaml", "--cores", str(cores)]
        command += ["--scheduler", "greedy"]
        return subprocess.run(
            [*command, *arguments, "--quiet", "rules", "--", *targets],
            cwd=folder,
            env=variables,
            check=False,
        )


def main() -> None:
    """Rehearse the whole of a configuration in a temporary folder, or in the one that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=ROOT / "config/paper.yaml")
    parser.add_argument("--folder", type=Path, help="work folder to keep; else a temporary one")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--scales", type=float, nargs="+", default=[1, 16])
    parser.add_argument("--backbones", nargs="+", help="default: all")
    parser.add_argument("--datasets", nargs="+", help="default: all")
    parser.add_argument("--cold", action="store_true", help="every job a new Python")
    parser.add_argument("targets", nargs="*", default=TABLES)
    given = parser.parse_args()

    config = overlay(
        given.config, scales=given.scales, backbones=given.backbones, datasets=given.datasets
    )
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as temporary:
        folder = given.folder or Path(temporary)
        done = rehearse(config, folder, given.targets, cores=given.cores, warm=not given.cold)
        for name in given.targets:
            if name.endswith(".csv") and (folder / name).is_file():
                print(f"\n{name}\n{(folder / name).read_text()}")
    minutes = (time.monotonic() - begin) / 60
    print(f"Made-up data and {CUTS['train']['max_steps']} steps of training: "
          f"the scores above mean nothing. {minutes:.1f} minutes.", file=sys.stderr)  # fmt: skip
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
