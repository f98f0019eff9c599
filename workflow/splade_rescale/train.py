"""Train SPLADE-max from a rescaled checkpoint.

transformers' `Trainer` drives: mixed precision, accumulation, DistributedDataParallel under
torchrun, checkpoints. Collapse and divergence are results here: training then ends in order and
`train.json` names its status, one of

- `ok`;
- `diverged`: a loss or gradient norm was not finite. The saved weights are the last ones whose
  loss was finite, or those of the start if there are none;
- `collapsed-zero`: no query or no document of a batch had an active term, so that every score
  was 0, for `collapse_patience` steps on end or throughout the last row of the log;
- `collapsed-dense`: documents ended with more than `dense_fraction` of all terms active.
"""

import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainingArguments

from splade_rescale import activations
from splade_rescale import checkpoints as store
from splade_rescale.devices import gather, is_distributed
from splade_rescale.errors import UserError
from splade_rescale.files import atomic_folder, naming, read_json, write_json
from splade_rescale.head import load_tokenizer
from splade_rescale.losses import flops, lambda_at
from splade_rescale.memory import give_back
from splade_rescale.pairs import Collator, Pairs, read_pairs
from splade_rescale.positions import check_length
from splade_rescale.settings import TrainSettings
from splade_rescale.splade import Splade
from splade_rescale.train_log import MEASURES, Journal
from splade_rescale.train_losses import Batch, loss_named

_WEIGHTS = "weights.safetensors"
_WEIGHTS_BEFORE = "weights-before.safetensors"
_REPORT = "train.json"


def train(
    init: Path,
    train_parquet: Path,
    out: Path,
    checkpoints: Path,
    settings: TrainSettings,
    seed: int,
    *,
    progress: bool = False,
) -> None:
    """Train the checkpoint `init` on `train_parquet` and write the model folder `out`.

    Beside the model (see `Splade.save`) `out` holds train_log.csv, with a row for the first step,
    each `log_steps` and the last step, whose measures are means over the steps since the row
    before; and train.json, with the status and what the run was made of.

    A run that was killed resumes from its last complete checkpoint and ends with the weights that
    it would have had. A run that still lives is waited for; where `out` is already the result of
    this very run, nothing is done. Under torchrun the first process alone writes.

    Args:
        init: rescaled checkpoint folder.
        train_parquet: columns query, positive, and optionally negative; for distillation also
            positive_score and negative_score.
        out: folder to write, atomically.
        checkpoints: folder of checkpoints, removed in the end.
        settings: recipe.
        seed: of order and dropout.
        progress: show a progress bar.

    On a CPU what is cheap to compute is computed again in the backward pass instead of kept
    (`activations.keep_products`). On a GPU all is kept, and a run that ended because its memory did
    not suffice goes on with less (`activations.keep_inputs`), which costs time. No weight changes.
    The batch stays as it is, because in-batch negatives and FLOPS depend on it.

    Raises:
        UserError: bad input, a device that is asked for and not there, a folder to write to that
            holds something else, or a GPU whose memory does not suffice.
    """
    arguments = _arguments(settings, checkpoints, seed, progress)
    with store.exclusive(checkpoints, arguments.process_index):
        try:
            _train(init, train_parquet, out, checkpoints, settings, seed, arguments)
        except torch.OutOfMemoryError as error:
            raise UserError(_out_of_memory(checkpoints, settings)) from error


def _train(
    init: Path,
    train_parquet: Path,
    out: Path,
    checkpoints: Path,
    settings: TrainSettings,
    seed: int,
    arguments: TrainingArguments,
) -> None:
    """`train` in a folder of checkpoints that it has for itself."""
    wait_for_all = arguments.distributed_state.wait_for_everyone
    writes = arguments.process_index == 0
    table = read_pairs(train_parquet, settings, arguments.world_size)
    splade = Splade.load(init)
    tokenizer = load_tokenizer(init)
    longest = max(settings.query_length, settings.document_length)
    check_length(init, splade.model.config.to_dict(), longest)

    if out.exists() and any(out.iterdir()) and not (out / _REPORT).exists():
        raise UserError(f"{out}: exists and holds no {_REPORT}; name another folder to write to")
    run = store.fingerprint(init, train_parquet, settings, seed, arguments.world_size)
    done = (out / _REPORT).exists() and read_json(out / _REPORT).get("fingerprint") == run
    wait_for_all()
    if writes:
        store.prepare(checkpoints, run)
        if done:
            print(f"{out}: is already the result of this training", file=sys.stderr)
            store.remove(checkpoints)
    if done:
        return
    wait_for_all()
    last = store.last_checkpoint(checkpoints)
    if store.saves_memory(checkpoints):
        activations.keep_inputs(splade.model)
    elif settings.gpus == 0:
        activations.keep_products(splade.model)

    journal = Journal(settings)
    trainer = _SpladeTrainer(
        model=_Columns(splade),
        args=arguments,
        train_dataset=Pairs(table),
        data_collator=Collator(tokenizer, settings),
        callbacks=[journal],
        settings=settings,
        journal=journal,
    )
    trainer.remove_callback(PrinterCallback)
    if last is not None:
        print(f"resuming from {last}", file=sys.stderr)
        journal.load(last)
    try:
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        diverged = False
    except _DivergedError:
        diverged = True

    if writes:
        batch = settings.batch_size * settings.accumulation * arguments.world_size
        course = journal.report(
            trainer.state, diverged=diverged, vocabulary=splade.vocabulary, batch=batch
        )
        provenance = init / "rescale.json"
        with atomic_folder(out, sums=True) as folder:
            splade.save(
                folder,
                tokenizer,
                query_length=settings.query_length,
                document_length=settings.document_length,
            )
            journal.write_csv(folder / "train_log.csv")
            write_json(
                folder / _REPORT,
                course
                | {
                    "train_examples": len(table),
                    "processes": arguments.world_size,
                    "seed": seed,
                    "settings": settings.model_dump(),
                    "init": read_json(provenance) if provenance.exists() else None,
                    "fingerprint": run,
                },
            )
        store.remove(checkpoints)
    wait_for_all()
    if arguments.world_size > 1:
        trainer.end()


def _out_of_memory(checkpoints: Path, settings: TrainSettings) -> str:
    """What to do about it; the next try of the same run saves memory if this one did not."""
    batch = (
        f"CUDA ran out of memory with train.batch_size {settings.batch_size}, query_length "
        f"{settings.query_length} and document_length {settings.document_length}"
    )
    if not store.saves_memory(checkpoints):
        store.save_memory(checkpoints)
        return (
            f"{batch}. Run the same command again: it goes on from the last checkpoint and "
            "computes activations anew instead of keeping them, which is slower and gives the "
            "same weights"
        )
    return (
        f"{batch}, although activations are not kept. Set train.precision to bf16, take a GPU with "
        "more memory, or lower these settings. A smaller batch is another experiment, as each "
        "query then has fewer in-batch negatives, and train.accumulation does not bring them back"
    )


def objective(
    queries: Tensor,
    documents: list[Tensor],
    settings: TrainSettings,
    step: int,
    total_steps: int,
    teacher: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch and what is logged of it.

    Args:
        queries: term weights `[batch, vocab]`.
        documents: positives, and negatives if there are any, each `[batch, vocab]`.
        settings: loss, temperature, lambdas, ramp; negatives and FLOPS of the device or gathered.
        step: optimizer steps taken before, for the ramp.
        total_steps: optimizer steps of the whole training.
        teacher: scores of positive and negative, `[batch, 2]`, for distillation.

    Returns:
        The loss, and a detached scalar for each measure of the log.
    """
    main = loss_named(settings.loss)(Batch(queries, documents, teacher), settings)
    together = torch.cat(documents)
    gathered = settings.flops == "gathered" and is_distributed()
    flops_q = flops(gather(queries) if gathered else queries)
    flops_d = flops(gather(together) if gathered else together)
    weighted_q = flops_q * lambda_at(step, total_steps, settings.ramp, settings.lambda_q)
    weighted_d = flops_d * lambda_at(step, total_steps, settings.ramp, settings.lambda_d)
    loss = main + weighted_q + weighted_d
    measures = {
        "loss": loss,
        "main": main,
        "flops_q": flops_q,
        "flops_d": flops_d,
        "weighted_flops_q": weighted_q,
        "weighted_flops_d": weighted_d,
        "active_q": (queries > 0).sum(dim=1).float().mean(),
        "active_d": (together > 0).sum(dim=1).float().mean(),
        # Mean over all pairs: the product of the means.
        "mean_score": queries.mean(dim=0) @ together.mean(dim=0),
    }
    return loss, {name: value.detach() for name, value in measures.items()}


class _DivergedError(Exception):
    """Ends the Trainer's loop before a step with values that are not finite."""


class _Columns(nn.Module):
    """Encodes the columns of a batch in one forward pass, as DistributedDataParallel wants it."""

    def __init__(self, splade: Splade) -> None:
        super().__init__()
        self.splade = splade

    def forward(
        self,
        query: dict[str, Tensor],
        positive: dict[str, Tensor],
        negative: dict[str, Tensor] | None = None,
    ) -> list[Tensor]:
        columns = [query, positive] if negative is None else [query, positive, negative]
        return [self.splade(**column) for column in columns]


class _SpladeTrainer(Trainer):
    """The Trainer with this module's objective, which stops before a step that is not finite."""

    def __init__(self, *, settings: TrainSettings, journal: Journal, **options: Any) -> None:
        super().__init__(**options)
        self.settings = settings
        self.journal = journal
        self.loss_is_scaled_for_ga = False  # a mean per micro-batch
        self.measured: list[Tensor] = []  # per micro-batch of the step
        self.weights_before: list[Tensor] | None = None  # at the last step that was finite

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        teacher = inputs.pop("teacher", None)
        queries, *documents = model(**inputs)
        if self.settings.gpus == 0:
            give_back()  # most is needed next, and not from between what is kept
        step, total = self.state.global_step, self.state.max_steps
        loss, measures = objective(queries, documents, self.settings, step, total, teacher)
        self.measured.append(torch.stack([measures[name] for name in MEASURES]))
        return (loss, {"vectors": [queries, *documents]}) if return_outputs else loss

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """Clip; then note what the step measured, and stop if any of it is not finite.

        Called once per optimizer step, when all gradients are there.
        """
        norm = super()._clip_grad_norm(model)
        means = torch.stack(self.measured).mean(dim=0)
        self.measured.clear()
        # The mean over devices is the same on each, so all stop together.
        means = self.accelerator.reduce(means, reduction="mean")
        step, total = self.state.global_step, self.state.max_steps
        values = dict(zip(MEASURES, means.tolist(), strict=True)) | {
            "grad_norm": float(norm),
            "lambda_q": lambda_at(step, total, self.settings.ramp, self.settings.lambda_q),
            "lambda_d": lambda_at(step, total, self.settings.ramp, self.settings.lambda_d),
            "learning_rate": self.lr_scheduler.get_last_lr()[0],
        }
        self.journal.note(values)
        weights = [parameter.data for parameter in self.model.parameters()]
        if not math.isfinite(values["loss"]):
            if self.weights_before is not None:
                torch._foreach_copy_(weights, self.weights_before)
            raise _DivergedError
        if not math.isfinite(values["grad_norm"]):
            raise _DivergedError
        if self.weights_before is None:
            self.weights_before = [tensor.clone() for tensor in weights]
        else:
            torch._foreach_copy_(self.weights_before, weights)
        return norm

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        with naming(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"):
            super()._save_checkpoint(*arguments, **options)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            save_model(self.model, str(folder / _WEIGHTS))  # knows tied weights
            # Whether the loss of the weights above is finite will be known in the next step.
            before = {str(number): tensor for number, tensor in enumerate(self.weights_before)}
            save_file(before, folder / _WEIGHTS_BEFORE)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        load_model(self.model, folder / _WEIGHTS)
        before = load_file(folder / _WEIGHTS_BEFORE)
        self.weights_before = [
            before[str(number)].to(parameter.device)
            for number, parameter in enumerate(self.model.parameters())
        ]


def _arguments(
    settings: TrainSettings, checkpoints: Path, seed: int, progress: bool
) -> TrainingArguments:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if settings.gpus > 0 and not torch.cuda.is_available():
        raise UserError(
            f"train.gpus is {settings.gpus}, but torch finds no CUDA device; set it to 0"
        )
    if settings.gpus > 0 and settings.gpus != processes:
        raise UserError(
            f"train.gpus is {settings.gpus}, but there are {processes} processes, and each GPU "
            f"needs its own; start with torchrun --nproc-per-node {settings.gpus}"
        )
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        use_cpu=settings.gpus == 0,
        bf16=settings.precision == "bf16",
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulation,
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        lr_scheduler_type="linear",
        warmup_steps=min(settings.warmup, 1 - 1e-9),  # from 1 on it would count steps
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=settings.save_steps,
        seed=seed,
        data_seed=seed,
        report_to="none",
        disable_tqdm=not progress,
        remove_unused_columns=False,
        dataloader_drop_last=True,
        dataloader_pin_memory=settings.gpus > 0,
        ddp_find_unused_parameters=False,
    )
    if processes == 1 and arguments.n_gpu > 1:
        arguments._n_gpu = 1  # one of several visible GPUs, not DataParallel over all
    return arguments
