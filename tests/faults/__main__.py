"""`make reliability`: break a miniature of the workflow in every way, and write what came of it."""

import argparse
import pickle
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hub.warm import warm_commands

from .damage import all_damage
from .disk import copy_to, fill, small_disk
from .kills import STAGES, Bench, trials
from .miniature import ROOT, TARGETS, Miniature, variables
from .report import Found, report
from .together import SKEWS, same_elsewhere, skew, start_two

PARTS = ("kills", "damage", "disk", "together", "clocks", "clones")


class Run:
    """The parts of the command, each in copies of one finished miniature."""

    def __init__(self, top: Path, finished: Miniature, given: argparse.Namespace) -> None:
        self.top, self.finished, self.given = top, finished, given

    def _bench(self, name: str) -> Bench:
        folder = self.top / name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.finished.folder, folder, symlinks=True)
        return Bench(Miniature(folder, self.finished.environment, forked=True))

    def _each(self, name: str, act: Callable[[Bench, Any], Any], cases: list) -> list:
        """Run the cases in one copy; a new copy after a fault."""
        bench, done = self._bench(name), []
        for case in cases:
            one = act(bench, case)
            done.append(one)
            shown = vars(one) | {"stage": "", "fault": ""}
            print(name, *(v for v in shown.values() if v), one.fault or "-", file=sys.stderr)
            if one.fault:
                bench = self._bench(name)
        return done

    def kills(self, found: Found) -> None:
        chosen = [s for s in STAGES if not self.given.stages or s.rule in self.given.stages]
        for stage in chosen:
            pace = self._bench("pace").pace(stage)
            found.kills[stage] = self._each(
                f"{stage.command}",
                lambda bench, case, pace=pace: bench.kill(case[0], pace, case[1]),
                list(trials(stage, self.given.kills, self.given.seed)),
            )

    def damage(self, found: Found) -> None:
        found.damage = self._each(
            "damage",
            lambda bench, case: case(bench),
            list(all_damage(self.given.flips, self.given.seed)),
        )

    def disk(self, found: Found) -> None:
        with small_disk(self.top / "disk") as mounted:
            if not mounted:
                found.disk = None
                return
            bench, found.disk = (
                copy_to(self.finished, self.top / "disk" / "work", self.top / "aside"),
                [],
            )
            for stage in STAGES:
                chance = random.Random(f"{self.given.seed}/disk/{stage.command}")
                found.disk.append(fill(bench, stage, chance))
                print("disk", stage.command, found.disk[-1].outcome, found.disk[-1].fault or "-",
                      file=sys.stderr)  # fmt: skip

    def together(self, found: Found) -> None:
        chance = random.Random(f"{self.given.seed}/together")
        count = [None] * self.given.pairs
        found.together = self._each("together", lambda b, _: start_two(b, chance), count)

    def clocks(self, found: Found) -> None:
        chance = random.Random(f"{self.given.seed}/clocks")
        # Each in a new copy, as wrong times would stay.
        for kind in [*SKEWS] * 2:
            found.clocks += self._each("clocks", lambda b, kind: skew(b, kind, chance), [kind])

    def clones(self, found: Found) -> None:
        for cores in (1, 8):
            folder = self.top / f"cores-{cores}"
            found.clones[cores] = same_elsewhere(folder, cores, self.finished)


def _command(given: argparse.Namespace) -> str:
    numbers = (f"--{name} {getattr(given, name)}" for name in ("seed", "kills", "flips", "pairs"))
    return " ".join(["python -m faults", *numbers])


def main() -> None:
    """Run the parts that are asked for; all of them write docs/reliability.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--kills", type=int, default=20, help="per stage")
    parser.add_argument("--flips", type=int, default=2, help="flipped bits per file, one at a time")
    parser.add_argument("--pairs", type=int, default=5, help="times that two workflows start")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--stages", nargs="+", help="rules to kill; default: all")
    parser.add_argument(
        "--folder",
        type=Path,
        help="work folder to keep, with what earlier calls in it found; else a temporary one",
    )
    parser.add_argument(
        "--also", type=Path, nargs="+", default=[], help="folders in which other parts were run"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "reliability.md")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(unknown)}")

    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        top = given.folder or Path(temporary)
        with warm_commands(variables()) as environment:
            finished = Miniature(top / "finished", environment, forked=True)
            finished.make(*TARGETS)
            kept = top / "found.pickle"
            found = pickle.loads(kept.read_bytes()) if kept.exists() else Found()
            run = Run(top, finished, given)
            for part in given.parts or PARTS:
                getattr(run, part)(found)
                kept.write_bytes(pickle.dumps(found))
                minutes = (time.monotonic() - begin) / 60
                print(f"{part}: {minutes:.1f} minutes so far", file=sys.stderr)
    for folder in given.also:
        found.add(pickle.loads((folder / "found.pickle").read_bytes()))
    given.out.write_text(report(found, _command(given)), encoding="utf-8")
    print("\n\n".join(found.faults()), file=sys.stderr)
    sys.exit(bool(found.faults()))


if __name__ == "__main__":
    main()
