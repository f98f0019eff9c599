"""What a training reports: the rows of train_log.csv, and how it ended."""

import csv
import math
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from splade_rescale import checkpoints
from splade_rescale.files import read_json, write_json
from splade_rescale.settings import TrainSettings

# Means over micro-batches, devices and the steps of a row.
MEASURES = [
    "loss",
    "main",
    "flops_q",
    "flops_d",
    "weighted_flops_q",
    "weighted_flops_d",
    "active_q",
    "active_d",
    "mean_score",
]
LOG_COLUMNS = [
    "step",
    "epoch",
    *MEASURES,
    "grad_norm",  # before clipping, a mean over the steps of a row
    "lambda_q",  # these three: of the row's last step
    "lambda_d",
    "learning_rate",
]

_JOURNAL = "journal.json"


class Journal(TrainerCallback):
    """Follows a training: rows of the log, collapse, checkpoints."""

    def __init__(self, settings: TrainSettings) -> None:
        self.settings = settings
        self.rows: list[dict[str, float]] = []
        self.window: list[dict[str, float]] = []  # steps since the last row
        self.empty_steps = 0
        self.seconds_before = 0.0
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time of training, that of resumed runs up to their checkpoint included."""
        return self.seconds_before + time.perf_counter() - self.started

    def note(self, values: dict[str, float]) -> None:
        """Take what a step measured (all columns but step and epoch), before weights change."""
        self.window.append(values)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Start the clock."""
        self.started = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write a row where one is due; end a training that has collapsed for good."""
        self.empty_steps = self.empty_steps + 1 if _is_empty(self.window[-1]) else 0
        collapsed = self.empty_steps >= self.settings.collapse_patience
        last = collapsed or state.global_step >= state.max_steps
        if last or state.global_step == 1 or state.global_step % self.settings.log_steps == 0:
            self.add_row(state, state.global_step)
        if last:
            control.should_training_stop = True
            control.should_save = False  # the model itself is written next

    def add_row(self, state: TrainerState, step: int) -> None:
        """Close the window of steps since the last row."""
        row = {"step": step, "epoch": state.epoch} | self.window[-1]
        for name in [*MEASURES, "grad_norm"]:
            row[name] = sum(values[name] for values in self.window) / len(self.window)
        self.window.clear()
        self.rows.append(row)
        if state.is_world_process_zero:
            shown = "  ".join(
                f"{name} {row[name]:.4g}"
                for name in ["loss", "main", "active_q", "active_d", "mean_score", "grad_norm"]
            )
            tqdm.write(f"step {step}/{state.max_steps}  {shown}", file=sys.stderr)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Make the checkpoint that the Trainer has just written complete."""
        args.distributed_state.wait_for_everyone()
        if state.is_world_process_zero:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            memory = {
                "rows": self.rows,
                "window": self.window,
                "empty_steps": self.empty_steps,
                "seconds_before": self.seconds,
            }
            write_json(checkpoint / _JOURNAL, memory)
            checkpoints.complete(checkpoint)

    def load(self, checkpoint: Path) -> None:
        """Remember what was known at `checkpoint`."""
        for name, value in read_json(checkpoint / _JOURNAL).items():
            setattr(self, name, value)

    def report(
        self, state: TrainerState, *, diverged: bool, vocabulary: int, batch: int
    ) -> dict[str, Any]:
        """What train.json says of the course of a run; numbers that are not finite are null.

        Args:
            state: of the Trainer at the end.
            diverged: stopped before the step that was noted last, which then gets a row.
            vocabulary: number of terms.
            batch: examples per step, all devices together.
        """
        seconds = self.seconds
        if diverged:
            self.add_row(state, state.global_step + 1)
        last = self.rows[-1]
        if diverged:
            status = "diverged"
        elif _is_empty(last):
            status = "collapsed-zero"
        elif last["active_d"] > self.settings.dense_fraction * vocabulary:
            status = "collapsed-dense"
        else:
            status = "ok"
        numbers = {
            "first_loss": self.rows[0]["loss"],
            "last_loss": last["loss"],
            "active_q": last["active_q"],
            "active_d": last["active_d"],
            "seconds": seconds,
            "examples_per_second": state.global_step * batch / seconds,
        }
        return {
            "status": status,
            "steps": state.max_steps,
            "stopped_at": state.global_step,
            "vocabulary": vocabulary,
        } | {name: value if math.isfinite(value) else None for name, value in numbers.items()}

    def write_csv(self, path: Path) -> None:
        """Write train_log.csv."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, LOG_COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)


def _is_empty(values: dict[str, float]) -> bool:
    return values["active_q"] == 0 or values["active_d"] == 0
