"""A workflow whose stages take a second, and what its results are but for measured times."""

import csv
import io
import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import yaml
from splade_rescale.card import CARD

ROOT = Path(__file__).parents[2]
CONFIG = {
    "backbones": ["mini-bert"],
    "scales": [1, "auto"],
    "seeds": [7],
    "datasets": ["mini"],
    "registry": {
        "datasets": {
            "mini": {
                "source": "pydocs",
                "split": "in-domain",
                "packages": ["pluggy", "click"],
                "documents": 60,
                "queries": 20,
                "train_pairs": 60,
                "measures": ["nDCG@10", "RR@10"],
                "shards": 2,
            },
            # In no grid, and of one shard.
            "solo": {
                "source": "pydocs",
                "split": "out-of-domain",
                "packages": ["pluggy"],
                "documents": 10,
                "queries": 5,
            },
        },
        "backbones": {
            "mini-bert": {
                "source": "pretrain",
                "architecture": "bert",
                "dataset": "mini",
                "vocabulary": 400,
                "hidden": 32,
                "steps": 12,
                "batch_size": 16,
                "length": 32,
                "max_positions": 64,
            }
        },
    },
    "rescale": {"tying": "untied"},
    "norms": {"texts": 16, "batch_size": 8},
    "train": {
        "dataset": "mini",
        "max_steps": 8,
        "batch_size": 8,
        "learning_rate": 5e-4,
        "query_length": 16,
        "document_length": 32,
        "log_steps": 2,
        "save_steps": 2,
    },
    "encode": {"query_length": 16, "document_length": 32, "token_budget": 512},
}
TABLE = "results/table.csv"
PAGE = "results/report/index.html"
FIGURES = "results/report/figures"
NAMES = ("norms", "score-against-k", "flops-against-score", "loss", "active-d", "active-q")
SOLO = "results/mini-bert/k1/seed7/solo/vectors/queries.npz"
#: Among them the job of every rule is asked for.
TARGETS = [TABLE, "results/paper/table2.csv", SOLO, PAGE]
#: Each job is small, so that compiling it well would take a JVM longer than running it.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Miniature:
    """Snakemake as a user calls it, in a folder of its own.

    Args:
        folder: made if need be.
        environment: of the processes; else this one's with the project's package first.
        project: the checkout that holds Snakefile and package.
        config: of the workflow.
        forked: fork Snakemake from this process, which must have no threads, instead of starting
            a Python that imports it.
    """

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str] | None = None,
        project: Path = ROOT,
        config: dict | None = None,
        forked: bool = False,
    ) -> None:
        self.folder, self.project, self.forked = folder, project, forked
        self.log = folder / "run.log"
        self.environment = environment or variables(project)
        folder.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(config or CONFIG, sort_keys=False)
        (folder / "mini.yaml").write_text(text, encoding="utf-8")

    def start(self, *arguments: str, cores: int = 1) -> "subprocess.Popen | Forked":
        """Start the workflow in a process group of its own; output goes to `log`."""
        command = ["--scheduler", "greedy", "--snakefile", str(self.project / "Snakefile")]
        command += ["--directory", ".", "--configfile", "mini.yaml", "--cores", str(cores)]
        command += ["--", *arguments]
        with self.log.open("wb") as log:
            if self.forked:
                return Forked(command, self.folder, self.environment, log.fileno())
            return subprocess.Popen(
                [sys.executable, "-m", "snakemake", *command],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                process_group=0,
            )

    def run(self, *arguments: str, cores: int = 1) -> tuple[int, str]:
        """Run it to its end; exit status and output."""
        status = self.start(*arguments, cores=cores).wait()
        return status, self.log.read_text(errors="replace")

    def make(self, *arguments: str, cores: int = 1) -> str:
        """Run it and expect success; its output."""
        status, output = self.run(*arguments, cores=cores)
        if status:
            raise AssertionError(f"{' '.join(arguments)} ended with {status}:\n{output}")
        return output

    def files(self) -> Iterator[str]:
        """All that the workflow has written, temporaries included, from its folder on."""
        for top in ("results", "resources"):
            for path in sorted((self.folder / top).rglob("*")):
                # The model cards have their scores from the table, which is made later.
                if path.is_file() and path.name not in (".snakemake_timestamp", CARD):
                    yield path.relative_to(self.folder).as_posix()

    def contents(self) -> dict[str, object]:
        """What equal runs have in common, by file."""
        return {name: content(self.folder / name) for name in self.files()}

    def temporaries(self) -> list[Path]:
        """What a writer has not finished, or left behind."""
        return [
            path for top in ("results", "resources") for path in (self.folder / top).rglob(".*.tmp")
        ]


class Forked:
    """A Snakemake forked from this process, as far as a `Popen` is used here."""

    def __init__(self, command: list[str], folder: Path, environment: dict, log: int) -> None:
        # What Snakemake and the Snakefile import, imported once.
        import splade_rescale.config
        import splade_rescale.digest
        import splade_rescale.owner  # noqa: F401
        from snakemake import cli

        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.setpgid(0, 0)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(environment)
                cli.main(command)
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        with suppress(PermissionError, ProcessLookupError):  # whoever of the two comes first
            os.setpgid(self.pid, self.pid)

    def poll(self) -> int | None:
        """Exit status, or None while it lives."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Exit status, once it has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while deadline is not None and self.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Snakemake does not end within {timeout} s")
            time.sleep(0.01)
        return self._reap(0)

    def _reap(self, flags: int) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, flags)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def variables(project: Path = ROOT) -> dict[str, str]:
    """The environment of a user who works in the checkout `project`."""
    return {
        **os.environ,
        "PYTHONPATH": str(project / "workflow"),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }


_TIME_COLUMNS = ("train_seconds", "examples_per_second", "docs_per_second", "ms_per_query")


def content(path: Path) -> object:
    """The content of a file without measured times and what follows from them.

    These are digests of files that hold times, and Lucene's own files, which carry random names
    of segments: an index is compared by the counts in its index.json, and by the run made of it.
    """
    if path.parent.name == "index" and path.name != "index.json":
        return None
    if path.name == "SHA256SUMS":
        return sorted(line.split()[1] for line in path.read_text().splitlines())
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_bytes()))
    if path.name == "table.csv":
        return timeless_table(path)
    if path.name == "index.html":
        # When and from where it was made, and the files in it that are compared for themselves.
        time, data = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", r"data:text/csv;base64,[^\"]+"
        commands, commit = r'(?<=<section id="made">).*?</pre>', r", at commit <code>[^<]*</code>"
        made = re.compile("|".join((time, data, commands, commit)), re.DOTALL)
        return made.sub("", path.read_text(encoding="utf-8"))
    return path.read_bytes()


def timeless_table(path: Path) -> list[dict[str, str]]:
    """The rows of a results table without measured times."""
    rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    return [{k: v for k, v in row.items() if k not in _TIME_COLUMNS} for row in rows]


def _timeless(value: object) -> object:
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _timeless(item) for key, item in value.items() if not _is_of_time(key)}


def _is_of_time(key: str) -> bool:
    # pretrain.json has times, the fingerprint a digest of its digest; Lucene's size varies.
    return (
        key.endswith(("seconds", "per_second"))
        or key.startswith("ms_per_query")
        or key in ("pretrain.json", "fingerprint", "bytes")
    )
