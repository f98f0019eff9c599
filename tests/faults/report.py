"""What the parts of `make reliability` have found, as a page."""

from collections import Counter
from dataclasses import dataclass, field

from .damage import KINDS, Damage
from .disk import Full
from .kills import Stage, Trial
from .together import Pair, Skew


@dataclass
class Found:
    """What the parts that were run have found."""

    kills: dict[Stage, list[Trial]] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    disk: list[Full] | None = field(default_factory=list)  # None: no disk may be mounted
    together: list[Pair] = field(default_factory=list)
    clocks: list[Skew] = field(default_factory=list)
    clones: dict[int, str] = field(default_factory=dict)

    def add(self, other: "Found") -> None:
        """Take over the parts that another call has run."""
        for name, found in vars(other).items():
            if isinstance(found, dict):
                getattr(self, name).update(found)
            elif found is None or len(found):
                setattr(self, name, found)

    def faults(self) -> list[str]:
        """Where something was not as undisturbed, nor an error that names the file."""
        lists = [self.damage, self.disk or [], self.together, self.clocks, *self.kills.values()]
        found = [one.fault for part in lists for one in part if one.fault]
        return found + [difference for difference in self.clones.values() if difference]


def _table(head: list[str], rows: list[list[object]]) -> list[str]:
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return [*("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines), ""]


def report(found: Found, command: str) -> str:
    """docs/reliability.md, as `command` makes it."""
    faults = found.faults()
    parts = [
        "# Reliability",
        "",
        f"Written by `make reliability` (`{command}`, with `tests` and `workflow` on PYTHONPATH).",
        "It runs a miniature of the workflow (the real stages; 60 documents, 12 steps of",
        "pretraining, 8 of training, 28 jobs), breaks it, gives the same command again, and",
        "compares with what the undisturbed run made: byte by byte where a stage is deterministic,",
        "measured times and the names of Lucene's files aside. Moments, places and targets follow",
        "from the seed; what a signal meets depends on the speed of the machine as well. Snakemake",
        "and its jobs are forked from processes that have their libraries loaded, which saves the",
        "time of importing them; jobs join the process group of their workflow and are processes",
        "like any other.",
        "",
        f"**{len(faults)} of {_count(found)} trials ended otherwise than undisturbed, or with an"
        " error that names no file.**" if faults else
        f"All {_count(found)} trials ended as undisturbed, or with an error that names the file.",
        "",
    ]  # fmt: skip
    if found.kills:
        parts += _kills(found.kills)
    if found.damage:
        parts += _damage(found.damage)
    if found.disk != []:
        parts += _disk(found.disk)
    if found.together:
        parts += _others(found)
    return "\n".join(parts).rstrip() + "\n"


def _count(found: Found) -> int:
    lists = [found.damage, found.disk or [], found.together, found.clocks, found.clones]
    return sum(map(len, [*lists, *found.kills.values()]))


def _kills(kills: dict[Stage, list[Trial]]) -> list[str]:
    moments = ("before", "writing", "after")
    rows = []
    for stage, done in kills.items():
        met = Counter(trial.moment for trial in done)
        sent = Counter(trial.signal.name for trial in done)
        whole = [trial for trial in done if trial.whole]
        rows.append(
            [f"`{stage.command}` (rule {stage.rule})", len(done), sent["SIGKILL"], sent["SIGTERM"]]
            + [met[moment] for moment in moments]
            + [sum(not trial.fault for trial in done), sum(not trial.fault for trial in whole)]
        )
    every = [trial for done in kills.values() for trial in done]
    aimed = Counter(trial.target for trial in every)
    resumed = sum(trial.resumed for trial in every)
    hung = sum(trial.hung for trial in every)
    rows.append(["all", *(sum(row[place] for row in rows) for place in range(1, len(rows[0])))])
    head = ["stage", "kills", "SIGKILL", "SIGTERM", *moments, "same output", "same tables"]
    return [
        "## Kills",
        "",
        "A signal at a random moment of the stage: every other pair at any time of it, the others",
        "from its first trace on the disk. It goes to the whole process group of the workflow"
        f" ({aimed['workflow']}),",
        f"to the job alone ({aimed['job']}), or to Snakemake alone, whose job lives on"
        f" ({aimed['snakemake']}).",
        "*before*: nothing was on the disk yet; *writing*: a part of the output lay there;",
        "*after*: the stage had just ended. *Same output*: the command ended well, the stage's",
        "output is that of the undisturbed run, no temporary is left, and no file of another stage",
        "was written anew. *Same tables*: in one kill of each stage the command asks for the",
        f"tables, and every file is compared. {resumed} trainings resumed from a checkpoint.",
        f"{hung} times SIGTERM did not end Snakemake within a minute, and SIGKILL followed: its",
        "handler waits for a lock, which the interrupted code may hold itself (Snakemake 9.27).",
        "",
        *_table(head, rows),
    ]


def _damage(damage: list[Damage]) -> list[str]:
    rows = []
    for file in dict.fromkeys(one.file for one in damage):
        row: list[object] = [f"`{file}`"]
        for kind in KINDS:
            met = Counter(o.outcome for o in damage if (o.file, o.kind) == (file, kind))
            row += [met["named"], met["same"]]
        rows.append(row)
    head = ["file", *(f"{kind}: {what}" for kind in KINDS for what in ("named", "same result"))]
    return [
        "## Damaged files between stages",
        "",
        "Each file is cut short at a random place, or has one random bit flipped, its time left as",
        "it was; then the next stage runs. *Named*: it stopped, its error names the file, and it",
        "left no output; with the file put back, the same command gave the same output. *Same",
        "result*: the bit changed nothing that is read. Checkpoints, indexes and their JSON files",
        "are checked against SHA256SUMS, Parquet by page checksums, npz and gzip by their own.",
        "",
        *_table(head, rows),
    ]


def _disk(disk: list[Full] | None) -> list[str]:
    head = ["## Full disk", ""]
    if disk is None:
        return [*head, "Not run: only root may mount a small disk.", ""]
    met = Counter(one.outcome for one in disk)
    return [
        *head,
        f"On a tmpfs with less room than the stage's output takes, {len(disk)} stages: "
        f"{met['stopped']} stopped with an",
        f"error that names the output, {met['enough']} had room enough by chance. Nothing"
        " half-written was left; with room",
        "again the same command gave the same output.",
        "",
    ]


def _others(found: Found) -> list[str]:
    pairs = Counter(pair.outcome for pair in found.together)
    skews = Counter(f"{one.kind}: {one.outcome}" for one in found.clocks)
    lines = [
        "## Two workflows in one folder",
        "",
        f"Started within six seconds of each other, {len(found.together)} times: "
        + ", ".join(f"{number} times {what}" for what, number in sorted(pairs.items()))
        + ". The same command, given once more, ended with the same tables each time.",
        "",
    ]
    if found.clocks:
        lines += [
            "## Wrong clocks",
            "",
            "A random half of all files got a wrong time, and the table was removed: "
            + "; ".join(f"{what} ({number})" for what, number in sorted(skews.items()))
            + ". *Same*: the tables were the undisturbed ones; *named*: Snakemake stopped and named"
            " the file that is newer than what was made of it.",
            "",
        ]
    if found.clones:
        differing = {cores for cores, difference in found.clones.items() if difference}
        lines += [
            "## Cores and clones",
            "",
            "Run from two further copies of the project, in folders with blanks and quotes in their"
            " paths, with `--cores 1` and `--cores 8`: "
            + (f"differs with {differing}." if differing else "every result is the same.")
            + "",
        ]
    return lines
