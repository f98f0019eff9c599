"""What the benchmarks of speed have in common: processes, time, memory, FLOPs, ratios."""

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from splade_rescale.head import output_projection
from splade_rescale.memory import give_back
from torch import nn

REFERENCE = "sentence-transformers"
SIDES = ("splade-rescale", REFERENCE, "plain formula")
_SIZES = (1536, 2048, 3072)
_ROOT = Path(__file__).resolve().parents[2]
_PATH = [str(_ROOT / "tests"), str(_ROOT / "workflow")]  # where the processes find themselves


class Process:
    """A Python process that answers requests, one at a time; in between it does nothing.

    Each side of a comparison runs in its own, so that peak memory is its own, and all of them
    live at the same time, so that their repetitions can take turns.
    """

    def __init__(self, module: str, job: dict[str, Any], threads: int, **environment: str) -> None:
        """Start `python -m bench.MODULE JOB`, which answers on a `Line` (JOB is JSON)."""
        self.name = f"bench.{module} {job}"
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by __exit__)
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"bench.{module}", json.dumps(job)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, [*_PATH, os.environ.get("PYTHONPATH")])),
                "OMP_NUM_THREADS": str(threads),
                "MKL_NUM_THREADS": str(threads),
                "OMP_WAIT_POLICY": "passive",
                "RAYON_NUM_THREADS": str(threads),
                "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
                "HF_HUB_OFFLINE": "1",
                **environment,
            },
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )

    def __call__(self, request: str = "go") -> dict[str, Any]:
        """The answer to a request.

        Raises:
            SystemExit: the process ended; the message has the end of what it wrote to stderr.
        """
        try:
            self.process.stdin.write(f"{request}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended, and said why
        answer = self.process.stdout.readline()
        if not answer:
            self.errors.seek(0)
            raise SystemExit(f"{self.name}: ended\n{self.errors.read()[-3000:]}")
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()


class Line:
    """The other end of a `Process`: reads requests and answers them.

    What libraries print goes to stderr.
    """

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def wait(self) -> str:
        """The next request; ends this process when the other has ended."""
        request = sys.stdin.readline()
        if not request:
            sys.exit()
        return request.strip()

    def answer(self, value: dict[str, Any]) -> None:
        """Answer the request."""
        print(json.dumps(value), file=self.out, flush=True)


class Measured:
    """Wall seconds and memory of what runs between `start` and `stop`."""

    def start(self, *, afresh: bool = False) -> None:
        """Begin: forget the peak of this process's memory so far (Linux with glibc).

        Args:
            afresh: give back what is free first. Else it hides what is taken; but to take it again
                costs time that a loop does not spend.
        """
        if afresh:
            gc.collect()
            give_back()
        Path("/proc/self/clear_refs").write_text("5")
        self.before = status("VmRSS")
        self.began = time.perf_counter()

    def stop(self) -> dict[str, float]:
        """Seconds; bytes that were taken at most on top of those at the start; peak in bytes."""
        seconds = time.perf_counter() - self.began
        peak = status("VmHWM")
        return {"seconds": seconds, "taken": peak - self.before, "peak": peak}


def status(key: str) -> int:
    """Bytes of this process that Linux counts under a key such as VmRSS."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))


def take_turns(
    sides: dict[str, Process], repetitions: int, request: str = "go", once: tuple[str, ...] = ()
) -> dict[str, list[dict[str, Any]]]:
    """Answers of each side to `repetitions` equal requests; the order changes from turn to turn.

    The sides `once` take part in the first turn alone.
    """
    answers: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    names = list(sides)
    for turn in range(repetitions):
        first = turn % len(names)
        for side in names[first:] + names[:first]:
            if turn == 0 or side not in once:
                answers[side].append(sides[side](request))
    return answers


def ratios(answers: dict[str, list[dict[str, Any]]], side: str, to: str) -> dict[str, float]:
    """How many times faster `side` is than the side `to`: of turns side by side, three figures."""
    faster = [
        theirs["seconds"] / ours["seconds"]
        for ours, theirs in zip(answers[side], answers[to], strict=False)
    ]
    return {
        "speed_min": min(faster),
        "speed_median": statistics.median(faster),
        "speed_max": max(faster),
    }


def compared(
    case: str,
    answers: dict[str, list[dict[str, Any]]],
    memory: dict[str, list[dict[str, Any]]],
    flops: dict[str, float],
    gemm_rate: float,
) -> list[dict[str, Any]]:
    """One row per side; see `docs/speed.md` for the columns.

    Args:
        case: name of the case.
        answers: what `Measured` found, of each side and timed turn.
        memory: the same of a turn that began afresh.
        flops: of the products of a turn of each side.
        gemm_rate: the machine's FLOP/s.
    """
    return [
        {
            "case": case,
            "side": side,
            **ratios(answers, side, REFERENCE),
            "memory": memory[side][0]["taken"] / memory[REFERENCE][0]["taken"],
            "peak_memory": memory[side][0]["peak"] / memory[REFERENCE][0]["peak"],
            "gemm_share": flops[side]
            / gemm_rate
            / statistics.median(turn["seconds"] for turn in turns),
        }
        for side, turns in answers.items()
    ]


def gemm_rate(repeats: int = 5) -> float:
    """Best float32 FLOP/s of a large square product, by MKL or oneDNN, with torch's threads."""
    best = 0.0
    for size in _SIZES:
        a, b, out = (torch.rand(size, size) for _ in range(3))
        products: list[Callable[[], object]] = [
            lambda a=a, b=b, out=out: torch.mm(a, b, out=out),
            lambda a=a, b=b, out=out: torch.mm(a, b.T, out=out),
        ]
        if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            products.append(
                lambda a=a, b=b: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
            )
        for product in products:
            product()
            for _ in range(repeats):
                began = time.perf_counter()
                product()
                best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def encoder_flops(model: nn.Module, lengths: Iterable[int]) -> int:
    """FLOPs of the products below the output projection, forward, for texts of these lengths.

    Two per weight of a linear layer and token, and four per width and pair of positions in each
    layer's attention, taken as global. Padding is not counted.
    """
    head = output_projection(model)[1]
    linear = sum(
        module.weight.numel()
        for module in model.modules()
        if isinstance(module, nn.Linear) and module is not head
    )
    config = model.config
    lengths = list(lengths)
    pairs = sum(length**2 for length in lengths)
    attention = 4 * config.num_hidden_layers * config.hidden_size * pairs
    return 2 * linear * sum(lengths) + attention


def head_flops(model: nn.Module, tokens: int) -> int:
    """FLOPs of the output projection, forward."""
    return 2 * output_projection(model)[1].weight.numel() * tokens


if __name__ == "__main__":  # in a process of its own: the machine's limit
    _line = Line()
    _line.wait()
    _line.answer({"gemm_rate": gemm_rate()})
