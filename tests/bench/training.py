"""A training step of this package, of sentence-transformers and of the plain formula, compared.

Each side is a Trainer's own loop: tokenize, forward, backward, clip, optimizer. The data set is one
batch, so every side sees the same texts in every step, and their losses must stay equal.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from bench import cases
from bench.cases import CASES, LENGTH, Case, Plain
from bench.measure import (
    REFERENCE,
    SIDES,
    Line,
    Measured,
    Process,
    compared,
    encoder_flops,
    head_flops,
    take_turns,
)
from safetensors.torch import load_file, save_file
from splade_rescale.memory import LARGE_APART
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

BATCH = 32
LEARNING_RATE = 1e-4
LAMBDA_Q, LAMBDA_D = 5e-2, 3e-3
#: Allowed difference between sides: of a vector or a gradient, the norm of the difference over the
#: norm (and a millionth of all gradients' norm more); of a loss, relative. AdamW makes a full step
#: of the smallest gradient, be it rounding, so later losses differ by more than the first.
TOLERANCE = {"vectors": 1e-5, "gradients": 1e-3, "first loss": 1e-5, "losses": 1e-3}


class Turns(TrainerCallback):
    """Lets a Trainer take a step at each request; the first step is looked at more closely."""

    def __init__(self, line: Line, found: Path, model: nn.Module) -> None:
        self.line = line
        self.found = found
        self.model = model
        self.vectors: list[Tensor] = []
        self.loss = 0.0
        self.measured = Measured()

    def watch(self, trainer: Trainer, encoder: nn.Module, vectors: Callable[[Any], Tensor]) -> None:
        """Note each step's loss, and the outputs of `encoder` until the first step is done."""
        step = trainer.training_step

        def noted(*arguments: Any, **options: Any) -> Tensor:
            loss = step(*arguments, **options)
            self.loss = float(loss)
            return loss

        trainer.training_step = noted
        self.hook = encoder.register_forward_hook(
            lambda _module, _inputs, output: self.vectors.append(vectors(output).detach())
        )

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Wait for the first request."""
        self._wait()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Write vectors and gradients of the first step."""
        if self.vectors:
            gradients = {
                name: parameter.grad
                for name, parameter in self.model.named_parameters()
                if parameter.grad is not None
            }
            # Each side shuffles the rows of its batch in its own way.
            named = {
                f"vectors {column}": rows[rows.double().sum(dim=1).argsort()]
                for column, rows in enumerate(self.vectors)
            }
            save_file(gradients | named, self.found)
            self.active = [float((rows > 0).float().mean()) for rows in self.vectors]
            self.hook.remove()
            self.vectors = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Answer, and wait for the next request."""
        self.line.answer(self.measured.stop() | {"loss": self.loss, "active": self.active})
        self._wait()

    def _wait(self) -> None:
        self.measured.start(afresh=self.line.wait() == "memory")


def _ours(job: dict[str, Any], line: Line) -> Trainer:
    from splade_rescale.activations import keep_products
    from splade_rescale.head import load_tokenizer
    from splade_rescale.pairs import Collator, Pairs, read_pairs
    from splade_rescale.settings import TrainSettings
    from splade_rescale.splade import Splade
    from splade_rescale.train import _arguments, _Columns, _SpladeTrainer
    from splade_rescale.train_log import Journal

    settings = TrainSettings(
        dataset="texts",
        batch_size=job["batch"],
        query_length=LENGTH,
        document_length=LENGTH,
        max_steps=job["steps"],
        ramp=1 / job["steps"],
        warmup=0,
        learning_rate=LEARNING_RATE,
        lambda_q=LAMBDA_Q,
        lambda_d=LAMBDA_D,
    )
    splade = Splade.load(job["model"])
    encoder = Plain(splade.model)
    if job["side"] == SIDES[0]:  # what `train` does on a CPU
        encoder = splade
        keep_products(splade.model)
    journal = Journal(settings)
    turns = Turns(line, Path(job["found"]), splade.model)
    trainer = _SpladeTrainer(
        model=_Columns(encoder),
        args=_arguments(settings, Path(job["folder"]), 0, progress=False),
        train_dataset=Pairs(read_pairs(Path(job["pairs"]), settings)),
        data_collator=Collator(load_tokenizer(job["model"]), settings),
        callbacks=[journal, turns],
        settings=settings,
        journal=journal,
    )
    turns.watch(trainer, encoder, lambda output: output)
    return trainer


def _theirs(job: dict[str, Any], line: Line) -> Trainer:
    from datasets import load_dataset
    from sentence_transformers import SparseEncoder, SparseEncoderTrainer
    from sentence_transformers.sparse_encoder import SparseEncoderTrainingArguments
    from sentence_transformers.sparse_encoder.callbacks.splade_callbacks import (
        SpladeRegularizerWeightSchedulerCallback,
    )
    from sentence_transformers.sparse_encoder.losses import (
        SparseMultipleNegativesRankingLoss,
        SpladeLoss,
    )

    model = SparseEncoder(job["model"], device="cpu", local_files_only=True)
    model.max_seq_length = LENGTH  # its trainer does not go by query_length and document_length
    loss = SpladeLoss(model, SparseMultipleNegativesRankingLoss(model), LAMBDA_D, LAMBDA_Q)
    pairs = load_dataset(
        "parquet", data_files=job["pairs"], split="train", cache_dir=f"{job['folder']}/cache"
    )
    turns = Turns(line, Path(job["found"]), model[0].model)
    trainer = SparseEncoderTrainer(
        model=model,
        args=SparseEncoderTrainingArguments(
            output_dir=job["folder"],
            use_cpu=True,
            per_device_train_batch_size=job["batch"],
            max_steps=job["steps"],
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="linear",
            max_grad_norm=1.0,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=pairs,
        loss=loss,
        callbacks=[
            SpladeRegularizerWeightSchedulerCallback(loss, warmup_ratio=1 / job["steps"]),
            turns,
        ],
    )
    turns.watch(trainer, model, lambda output: output["sentence_embedding"])
    return trainer


def check(found: dict[str, Path]) -> None:
    """Compare the vectors and gradients that the sides found in their first step.

    Raises:
        SystemExit: they differ by more than `TOLERANCE`.
    """
    tensors = {side: load_file(path) for side, path in found.items()}
    reference = tensors[REFERENCE]
    gradients = [t for name, t in reference.items() if not name.startswith("vectors")]
    # A key's bias has no gradient but for rounding, because softmax takes no notice of it.
    nothing = 1e-6 * float(torch.stack([gradient.norm() for gradient in gradients]).norm())
    for side, ours in tensors.items():
        if ours.keys() != reference.keys():
            raise SystemExit(f"{side}: has {sorted(ours.keys() ^ reference.keys())} alone")
        for name, theirs in reference.items():
            kind = "vectors" if name.startswith("vectors") else "gradients"
            difference = float((ours[name].double() - theirs.double()).norm())
            if not difference <= TOLERANCE[kind] * float(theirs.norm()) + nothing:
                raise SystemExit(
                    f"{side}: {name} is {difference:.2g} away from {REFERENCE}'s, whose norm is "
                    f"{float(theirs.norm()):.2g}; the benchmark compares equal sides only"
                )


def check_losses(answers: dict[str, list[dict[str, Any]]], kind: str) -> None:
    """Compare the losses of steps, `kind` of `TOLERANCE`.

    Raises:
        SystemExit: they differ by more than that.
    """
    for side, steps in answers.items():
        for number, (ours, theirs) in enumerate(zip(steps, answers[REFERENCE], strict=False)):
            if not abs(ours["loss"] / theirs["loss"] - 1) <= TOLERANCE[kind]:
                raise SystemExit(
                    f"{side}: loss {ours['loss']} in step {number}, {REFERENCE}'s {theirs['loss']}"
                )


def flops(case: Case, side: str, batch: int, active: list[float]) -> float:
    """FLOPs of the products of a step whose texts all have `LENGTH` tokens.

    Backward takes twice forward, except in this package's head, where it takes four per width and
    active term.
    """
    with torch.device("meta"):
        model = cases.build(case)
    head = head_flops(model, 2 * batch * LENGTH)
    encoder = 3 * encoder_flops(model, [LENGTH] * (2 * batch))
    if side == SIDES[0]:
        return encoder + head + 4 * case.width * case.vocabulary * batch * sum(active)
    return encoder + 3 * head


def compare(
    name: str,
    repetitions: int,
    threads: int,
    gemm_rate: float,
    *,
    packages: tuple[str, ...] = cases.PACKAGES,
    batch: int = BATCH,
) -> list[dict[str, Any]]:
    """One row per side; see `docs/speed.md` for the columns."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        texts = cases.read_texts(packages)
        cases.write_model(folder / "model", case, texts)
        pairs = cases.write_pairs(folder / "train.parquet", cases.full_length(texts, batch))
        found = {side: folder / f"{number}.safetensors" for number, side in enumerate(SIDES)}
        with ExitStack() as stack:
            sides = {}
            for number, side in enumerate(SIDES):
                job = {
                    "side": side,
                    "model": str(folder / "model"),
                    "pairs": str(pairs),
                    "folder": str(folder / f"work-{number}"),
                    "found": str(found[side]),
                    "batch": batch,
                    "steps": repetitions + 2,
                }
                environment = LARGE_APART if side == SIDES[0] else {}
                sides[side] = stack.enter_context(Process("training", job, threads, **environment))
            first = take_turns(sides, 1)
            check(found)
            check_losses(first, "first loss")
            answers = take_turns(sides, repetitions, once=SIDES[2:])
            memory = take_turns(sides, 1, "memory")
            check_losses(answers, "losses")
    done = {side: flops(case, side, batch, first[side][0]["active"]) for side in answers}
    return compared(name, answers, memory, done, gemm_rate)


if __name__ == "__main__":
    _job = json.loads(sys.argv[1])
    _line = Line()
    _make = _theirs if _job["side"] == REFERENCE else _ours
    _make(_job, _line).train()
