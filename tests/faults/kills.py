"""Kill a stage at a random moment, give the same command again, compare."""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from splade_rescale.checksums import SUMS, check_sums

from .miniature import FIGURES, NAMES, PAGE, TABLE, TARGETS, Miniature, content
from .processes import arguments, descendants, members, send, wait_for_end

_CELL = "results/mini-bert/k1/seed7"
_VECTORS = f"{_CELL}/mini/vectors"


@dataclass(frozen=True)
class Stage:
    """A command of the workflow, as its rule runs it.

    Args:
        rule: its rule.
        command: its words on the command line.
        outputs: of the rule: removed before, made again after.
        witness: made of the output where that cannot be compared byte by byte.
        places: further folders in which it writes.
    """

    rule: str
    command: str
    outputs: tuple[str, ...]
    witness: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


_EVALUATED = tuple(f"{_CELL}/mini/{n}" for n in ("metrics.json", "per_query.parquet"))
STAGES = (
    Stage("download_dataset", "download dataset", ("resources/datasets/mini",)),
    Stage("download_backbone", "download backbone", ("resources/backbones/mini-bert",)),
    Stage("norms", "norms", ("results/mini-bert/norms.json", "results/mini-bert/activation.csv")),
    Stage("choose_k", "choose-k", ("results/mini-bert/auto.json",)),
    Stage("norms_table", "norms-table", ("results/norms.csv", "results/activation.csv")),
    Stage("rescale", "rescale", ("results/mini-bert/k1/init",)),
    Stage("train", "train", (f"{_CELL}/model",), places=(f"{_CELL}/checkpoints",)),
    Stage(
        "encode_corpus",
        "encode corpus",
        tuple(f"{_VECTORS}/corpus-00001-of-00002.{n}" for n in ("npz", "ids.parquet", "json")),
    ),
    Stage(
        "encode_queries",
        "encode queries",
        tuple(f"{_VECTORS}/queries.{n}" for n in ("npz", "ids.parquet", "json")),
    ),
    Stage(
        "encode_dataset",
        "encode dataset",
        tuple(
            f"{_CELL}/solo/vectors/{part}.{n}"
            for part in ("corpus-00000-of-00001", "queries")
            for n in ("npz", "ids.parquet", "json")
        ),
    ),
    Stage("index", "index impact", (f"{_CELL}/mini/index",), (f"{_CELL}/mini/run.trec.gz",)),
    Stage(
        "index_bm25",
        "index bm25",
        ("results/bm25/mini/index",),
        ("results/bm25/mini/run.trec.gz",),
    ),
    Stage("search", "search impact", (f"{_CELL}/mini/run.trec.gz", f"{_CELL}/mini/search.json")),
    Stage(
        "search_bm25",
        "search bm25",
        ("results/bm25/mini/run.trec.gz", "results/bm25/mini/search.json"),
    ),
    Stage("evaluate", "evaluate", (*_EVALUATED, f"{_CELL}/mini/sparsity.json")),
    Stage("evaluate", "sparsity", (*_EVALUATED, f"{_CELL}/mini/sparsity.json")),
    Stage(
        "evaluate_bm25",
        "evaluate",
        ("results/bm25/mini/metrics.json", "results/bm25/mini/per_query.parquet"),
    ),
    Stage("table", "table", (TABLE,)),
    Stage("paper", "paper", tuple(f"results/paper/{n}.csv" for n in ("table1", "table2", "beir"))),
    Stage(
        "report_figures",
        "report figures",
        tuple(f"{FIGURES}/{name}{n}" for name in NAMES for n in (".svg", ".csv", "-narrow.svg")),
    ),
    Stage("report_expansions", "report expansions", ("results/report/expansions.json",)),
    Stage("report", "report page", (PAGE,)),
)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


@dataclass(frozen=True)
class Pace:
    """How long a stage takes undisturbed: in all, and from its first trace on the disk."""

    seconds: float
    writing: float


@dataclass
class Trial:
    """One kill and what came of it.

    `moment` is what the kill met: `before` anything was on the disk, `writing` (a part of the
    output lay there), or `after` the end. `hung`: SIGTERM did not end Snakemake, so SIGKILL
    followed. `fault` is empty if all was as undisturbed.
    """

    stage: Stage
    number: int
    signal: signal.Signals
    target: str
    whole: bool
    moment: str = ""
    resumed: bool = False
    hung: bool = False
    fault: str = ""
    delay: float = 0.0


@dataclass
class Bench:
    """A finished miniature whose stages are killed one at a time, and what it held at first."""

    miniature: Miniature
    reference: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reference = self.miniature.contents()

    @property
    def folder(self) -> Path:
        return self.miniature.folder

    def clear(self, stage: Stage, *, whole: bool = False) -> None:
        """Take away what the stage made, and all later stages if the whole is made again."""
        for cleared in STAGES[STAGES.index(stage) :] if whole else [stage]:
            for name in (*cleared.outputs, *cleared.witness, *cleared.places):
                path = self.folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def _traces(self, stage: Stage) -> bool:
        """Whether something half-written lies there; quick, as it is asked without a pause."""
        for place in {os.path.dirname(name) for name in stage.outputs}:
            if any(n[0] == "." and n.endswith(".tmp") for n in _names(self.folder / place)):
                return True
        return any(
            n.startswith("checkpoint-") for p in stage.places for n in _names(self.folder / p)
        )

    def _traced(self, stage: Stage) -> bool:
        """Whether such a trace shows within some milliseconds."""
        return any(self._traces(stage) for _ in range(200))

    def job(self, snakemake: int, stage: Stage) -> int | None:
        """The process of the stage's command, once it is there."""
        words = stage.command.split()
        for process in descendants(snakemake):
            given = arguments(process)
            if "splade_rescale" in given:
                start = given.index("splade_rescale") + 1
                named = [word for word in given if word.startswith(("results/", "resources/"))]
                mine = not named or not {*stage.outputs}.isdisjoint(named)
                if given[start : start + len(words)] == words and mine:
                    return process
        return None

    def pace(self, stage: Stage) -> Pace:
        """Run the stage undisturbed, and look at the clock."""
        self.clear(stage)
        process = self.miniature.start(*self._targets(stage, whole=False))
        began = traced = ended = 0.0
        while process.poll() is None:
            now, job = time.monotonic(), self.job(process.pid, stage)
            began = began or (now if job else 0.0)
            ended = now if job else ended
            if job and not traced and self._traces(stage):
                traced = now
            time.sleep(0.001)
        if process.returncode or not began:
            raise AssertionError((self.folder / "run.log").read_text())
        self._check(stage, whole=False)
        return Pace(ended - began, ended - (traced or ended))

    def _targets(self, stage: Stage, *, whole: bool) -> tuple[str, ...]:
        if not whole:
            return (*stage.outputs, *stage.witness)
        # What is missing between two files that are there would not be made for the tables.
        later = STAGES[STAGES.index(stage) :]
        return tuple(dict.fromkeys([*TARGETS, *(name for s in later for name in s.outputs)]))

    def kill(self, trial: Trial, pace: Pace, chance: random.Random) -> Trial:
        """Run one trial; fills in what it found."""
        stage = trial.stage
        targets = self._targets(stage, whole=trial.whole)
        self.clear(stage, whole=trial.whole)
        before = self._stamps(stage)
        process = self.miniature.start(*targets)
        # Every other pair of kills is aimed at the time from the first trace on the disk.
        aimed = trial.number % 4 >= 2
        length = pace.writing if aimed else pace.seconds
        trial.delay = chance.uniform(0, 1.05 * length)
        while process.poll() is None and not self.job(process.pid, stage):
            time.sleep(0.001)
        while aimed and self.job(process.pid, stage) and not self._traced(stage):
            pass
        time.sleep(trial.delay)
        lived = self.job(process.pid, stage) is not None
        group = members(process.pid)
        chosen = {
            "workflow": group,
            "job": [member for member in group if member != process.pid],
            "snakemake": [process.pid],
        }[trial.target]
        begun = self._traces(stage) or any((self.folder / n).exists() for n in stage.outputs)
        send(trial.signal, chosen)
        trial.moment = "after" if not lived else "writing" if begun else "before"
        try:
            process.wait(timeout=60)
        except TimeoutError:
            trial.hung = trial.signal is signal.SIGTERM
            send(signal.SIGKILL, members(process.pid))
            process.wait(timeout=60)
            if not trial.hung:
                trial.fault = "Snakemake does not end when its job does"
        if trial.target != "snakemake":
            wait_for_end(process.pid, 60)

        status, output = self.miniature.run(*targets)
        log = self.folder / "logs" / "train" / "mini-bert-k1-seed7.log"
        trial.resumed = stage.rule == "train" and "resuming from" in log.read_text()
        if trial.fault:
            pass
        elif not wait_for_end(process.pid, 60):
            trial.fault = "a process of the killed workflow does not end"
        elif status:
            trial.fault = f"the same command ended with {status}:\n{output[-3000:]}"
        else:
            try:
                self._check(stage, whole=trial.whole)
                if not trial.whole and self._stamps(stage) != before:
                    raise AssertionError("a file of another stage was written anew")
            except Exception as error:
                trial.fault = f"{type(error).__name__}: {error}"
        return trial

    def _stamps(self, stage: Stage) -> dict[str, int]:
        """When files of the other stages were written."""
        own = (*stage.outputs, *stage.witness)
        # Beside the witness there is what its rule writes besides.
        besides = {str(Path(name).parent / "search.json") for name in stage.witness}
        if stage.rule == "paper":
            besides |= {name for name in self.reference if name.startswith("results/paper/")}
        return {
            name: (self.folder / name).stat().st_mtime_ns
            for name in self.miniature.files()
            if name not in besides and not f"{name}/".startswith(tuple(f"{o}/" for o in own))
        }

    def difference(self, outputs: tuple[str, ...]) -> str:
        """Names the first file of these outputs that differs from what was there at first."""
        for name, before in self.reference.items():
            if f"{name}/".startswith(tuple(f"{output}/" for output in outputs)):
                path = self.folder / name
                # Lucene chooses the names of its files.
                if not path.exists() and before is not None:
                    return f"{name} is missing"
                if path.exists() and content(path) != before:
                    return f"{name} differs"
        return ""

    def _check(self, stage: Stage, *, whole: bool) -> None:
        """Compare with what was there at first.

        Raises:
            AssertionError, UserError: says what differs.
        """
        if left := self.miniature.temporaries():
            raise AssertionError(f"left behind: {left}")
        for name in stage.places:
            if (self.folder / name).exists():
                raise AssertionError(f"left behind: {name}")
        present = set(self.miniature.files())
        index = {n for n in self.reference if "/index/" in n and not n.endswith("index.json")}
        missing, new = self.reference.keys() - present - index, present - self.reference.keys()
        new = {name for name in new if "/index/" not in name}
        if missing or new:
            raise AssertionError(f"missing: {sorted(missing)}; new: {sorted(new)}")
        own = (*stage.outputs, *stage.witness)
        for name in sorted(self.reference.keys() & present):
            mine = f"{name}/".startswith(tuple(f"{output}/" for output in own))
            if (mine or whole) and content(self.folder / name) != self.reference[name]:
                raise AssertionError(f"{name} differs")
            if (mine or whole) and name.endswith(SUMS):
                check_sums((self.folder / name).parent)


def trials(stage: Stage, count: int, seed: int) -> Iterator[tuple[Trial, random.Random]]:
    """What is done to a stage: signals alternate; target and moment are drawn.

    In the first or second trial the command asks for the tables of the whole workflow, in the
    others for the stage's own output.
    """
    for number in range(count):
        chance = random.Random(f"{seed}/{stage.rule}/{stage.command}/{number}")
        chosen = (signal.SIGKILL, signal.SIGTERM)[number % 2]
        target = chance.choice(("workflow", "workflow", "job", "snakemake"))
        yield Trial(stage, number, chosen, target, whole=number == STAGES.index(stage) % 2), chance
