"""A real miniature of the workflow: a few dozen documents, a handful of steps."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PRETRAIN = {
    "source": "pretrain",
    "dataset": "mini",
    "vocabulary": 400,
    "hidden": 32,
    "steps": 20,
    "batch_size": 16,
    "length": 32,
    "max_positions": 64,
}
PYDOCS = {
    "source": "pydocs",
    "split": "in-domain",
    "packages": ["pluggy", "click", "networkx"],
    "documents": 60,
    "queries": 20,
    "train_pairs": 200,
    "measures": ["nDCG@10", "RR@10"],
}
MINI = {
    "backbones": ["mini-bert", "mini-x16"],
    "scales": [1, 16],
    "seeds": [7],
    "datasets": ["mini"],
    "registry": {
        "datasets": {"mini": PYDOCS},
        "backbones": {
            "mini-bert": {**PRETRAIN, "architecture": "bert"},
            "mini-modernbert": {**PRETRAIN, "architecture": "modernbert"},
            "mini-x16": {"source": "twin", "of": "mini-bert", "head_gain": 16},
        },
    },
    "rescale": {"tying": "untied"},
    "train": {
        "dataset": "mini",
        "max_steps": 6,
        "batch_size": 8,
        "learning_rate": 5e-4,
        "query_length": 16,
        "document_length": 32,
        "log_steps": 2,
        "save_steps": 2,
    },
    "encode": {"query_length": 16, "document_length": 32, "token_budget": 512, "shards": 2},
}


class Workflow:
    """Snakemake as a user calls it, in a folder of its own."""

    def __init__(self, folder: Path, config: dict, project: Path = ROOT) -> None:
        self.folder = folder
        self.project = project
        folder.mkdir(parents=True, exist_ok=True)
        self.configure(config)

    def configure(self, config: dict) -> None:
        self.config = copy.deepcopy(config)
        text = yaml.safe_dump(self.config, sort_keys=False)
        (self.folder / "mini.yaml").write_text(text)

    def command(self, *arguments: str) -> list[str]:
        snakemake = [
            sys.executable,
            "-m",
            "snakemake",
            "--snakefile",
            str(self.project / "Snakefile"),
        ]
        return [*snakemake, "--directory", ".", "--configfile", "mini.yaml", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        own = {"OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(self.project / "workflow")}
        return {**os.environ, **own}

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{done.args} ended with {done.returncode}:\n{done.stdout}")
        return done

    def planned(self, *arguments: str) -> set[str]:
        """Names of the rules that would run."""
        plan = self.run("--dry-run", "--cores", "2", *arguments).stdout
        _, found, stats = plan.partition("Job stats:")
        lines = stats.partition("total")[0].splitlines()[3:]
        rules = {line.split()[0] for line in lines if line.strip()}
        assert bool(rules) == bool(found) == ("Nothing to be done" not in plan), plan
        return rules - {"all"}
