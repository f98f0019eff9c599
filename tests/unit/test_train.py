import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import WORDS
from safetensors.torch import load_file, save_file
from splade_rescale import activations, checkpoints
from splade_rescale import train as training
from splade_rescale.errors import UserError
from splade_rescale.head import load_masked_lm, load_tokenizer, output_projection, scale_head
from splade_rescale.rescale import rescale
from splade_rescale.settings import RescaleSettings, TrainSettings
from splade_rescale.splade import Splade
from splade_rescale.train import objective, train
from splade_rescale.train_log import LOG_COLUMNS
from transformers import TrainerCallback, modeling_utils

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# What differs between two runs of the same training.
TIMES = {"seconds", "examples_per_second"}


def settings(**other):
    usual = {"batch_size": 4, "query_length": 8, "document_length": 12, "learning_rate": 1e-3}
    return TrainSettings(dataset="unused", **{**usual, **other})


def sentences(count, words, start=0):
    def word(row, place):
        return WORDS[(start + 5 * row + place) % len(WORDS)]

    return [" ".join(word(row, place) for place in range(words)) for row in range(count)]


@pytest.fixture
def pairs(tmp_path):
    """A function: number of rows, further or replaced columns -> train.parquet."""

    def write(rows=12, name="train.parquet", **columns):
        columns = {"query": sentences(rows, 3), "positive": sentences(rows, 7), **columns}
        columns = {key: column for key, column in columns.items() if column is not None}
        pq.write_table(pa.table(columns), tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def init(tiny_checkpoint):
    """A checkpoint with dropout, whose texts have some ten active terms."""
    return quiet(tiny_checkpoint(name="init"))


def quiet(folder, shift=-2.0):
    """Lower the bias of the output projection by `-shift`."""
    weights = load_file(folder / "model.safetensors")
    weights["cls.predictions.bias"] += shift
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


class Trained:
    def __init__(self, out):
        self.out = out
        self.log = pd.read_csv(out / "train_log.csv")
        self.json = json.loads((out / "train.json").read_text())
        self.weights = (out / "model.safetensors").read_bytes()

    def same_as(self, other):
        pd.testing.assert_frame_equal(self.log, other.log, check_exact=True)
        assert {k: v for k, v in self.json.items() if k not in TIMES} == {
            k: v for k, v in other.json.items() if k not in TIMES
        }
        return self.weights == other.weights


@pytest.fixture
def run(tmp_path):
    """A function that trains in this process and reads what was written."""

    def trained(init, train_parquet, name="model", seed=1, **options):
        train(init, train_parquet, tmp_path / name, tmp_path / "ckpt", settings(**options), seed)
        return Trained(tmp_path / name)

    return trained


def command(init, train_parquet, out, checkpoints, seed=1, **options):
    options = json.dumps(settings(**options).model_dump())
    arguments = [init, train_parquet, out, "--checkpoints", checkpoints, "--settings", options]
    return ["-m", "splade_rescale", "train", *map(str, arguments), f"--seed={seed}", "--threads=1"]


# One step


@pytest.mark.parametrize("with_negatives", [False, True])
def test_step_equals_sentence_transformers(tiny_checkpoint, pairs, run, tmp_path, with_negatives):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.losses import (
        SparseMultipleNegativesRankingLoss,
        SpladeLoss,
    )

    init = quiet(tiny_checkpoint(**NO_DROPOUT))
    names, columns = ["query", "positive", "negative"], [sentences(6, 3), sentences(6, 7)]
    if with_negatives:
        columns.append(sentences(6, 9, start=2))
    chosen = settings(batch_size=6, temperature=0.5, lambda_q=0.3, lambda_d=0.2, ramp=0.5)
    step, total = 2, 10
    weight = (2 / 5) ** 2  # quadratic in the global step, over half of the steps

    splade, tokenizer = Splade.load(init).double(), load_tokenizer(init)
    # Our own folder format is what sentence-transformers reads.
    splade.save(tmp_path / "export", tokenizer, query_length=8, document_length=12)
    judge = SparseEncoder(str(tmp_path / "export"), device="cpu").double()
    expected = SpladeLoss(
        judge,
        SparseMultipleNegativesRankingLoss(judge, scale=1 / 0.5),
        query_regularizer_weight=0.3 * weight,
        document_regularizer_weight=0.2 * weight,
    )
    batch = [
        tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
        for texts, length in zip(columns, (8, 12, 12), strict=False)
    ]
    judge.train()  # there is no dropout
    parts = expected([dict(features) for features in batch], None)
    sum(parts.values()).backward()

    queries, *documents = [splade(**features) for features in batch]
    loss, measures = objective(queries, documents, chosen, step, total)
    loss.backward()
    torch.testing.assert_close(loss, sum(parts.values()))
    torch.testing.assert_close(measures["main"], parts["base_loss"])
    torch.testing.assert_close(
        measures["weighted_flops_d"], parts["document_regularizer_loss"].detach()
    )
    ours = dict(splade.model.named_parameters())
    theirs = dict(judge[0].auto_model.named_parameters())
    assert ours.keys() == theirs.keys()
    assert sum(bool(p.grad.any()) for p in ours.values()) > 30
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-6, atol=1e-12)
    norm = torch.nn.utils.get_total_norm([p.grad for p in theirs.values()])

    # The same through the Trainer, where all rows are one batch. There the first step counts.
    first = run(
        init,
        pairs(**dict(zip(names, columns, strict=False))),
        max_steps=1,
        batch_size=6,
        temperature=0.5,
        ramp=0,
        lambda_q=0.3 * weight,
        lambda_d=0.2 * weight,
    ).log.loc[0]
    assert first["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert first["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    both = torch.cat(documents)
    assert first["active_q"] == pytest.approx((queries > 0).float().sum(1).mean().item())
    assert first["active_d"] == pytest.approx((both > 0).float().sum(1).mean().item())
    assert first["mean_score"] == pytest.approx((queries @ both.T).mean().item(), rel=1e-5)


@pytest.mark.parametrize("loss", ["margin-mse", "kl"])
def test_distillation_by_hand(init, pairs, run, loss):
    teacher = [[3.0, 1.0], [0.5, 2.0], [1.0, 1.0], [4.0, -2.0]]
    rows = pairs(
        4,
        negative=sentences(4, 6, start=3),
        positive_score=[positive for positive, _ in teacher],
        negative_score=[negative for _, negative in teacher],
    )
    splade, tokenizer = Splade.load(init), load_tokenizer(init)
    vectors = []
    for texts in (sentences(4, 3), sentences(4, 7), sentences(4, 6, start=3)):
        with torch.no_grad():
            vectors.append(splade(**tokenizer(texts, padding=True, return_tensors="pt")))
    temperature, losses = 4.0, []
    for query, positive, negative, (high, low) in zip(*vectors, teacher, strict=True):
        scores = float(query @ positive), float(query @ negative)
        if loss == "margin-mse":
            losses.append((scores[0] - scores[1] - (high - low)) ** 2)
        else:
            p, q = ([math.exp(x / temperature) for x in pair] for pair in ((high, low), scores))
            p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
            losses.append(
                temperature**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
            )
    chosen = settings(loss=loss, temperature=temperature, lambda_q=0, lambda_d=0)
    value, _ = objective(vectors[0], vectors[1:], chosen, 0, 1, torch.tensor(teacher))
    assert float(value) == pytest.approx(sum(losses) / 4, rel=1e-4)

    # The teacher's scores reach the loss with their own rows.
    log = run(
        no_dropout(init), rows, loss=loss, temperature=temperature, max_steps=1, lambda_q=0
    ).log
    assert log["main"][0] == pytest.approx(sum(losses) / 4, rel=1e-4)


def no_dropout(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | NO_DROPOUT))
    return folder


# The log


def test_log_has_first_every_nth_and_last_step(init, pairs, run):
    fine = run(init, pairs(), "fine", max_steps=7, log_steps=1)
    coarse = run(init, pairs(), "coarse", max_steps=7, log_steps=3)
    assert [*fine.log] == LOG_COLUMNS
    assert [*fine.log["step"]] == [1, 2, 3, 4, 5, 6, 7]
    assert [*coarse.log["step"]] == [1, 3, 6, 7]
    assert [*coarse.log["epoch"]] == pytest.approx([1 / 3, 1, 2, 7 / 3])  # three batches each
    windows = [[0], [1, 2], [3, 4, 5], [6]]
    for name in ("loss", "main", "flops_q", "active_d", "mean_score", "grad_norm"):
        means = [fine.log[name][window].mean() for window in windows]
        assert [*coarse.log[name]] == pytest.approx(means), name
    parts = fine.log["main"] + fine.log["weighted_flops_q"] + fine.log["weighted_flops_d"]
    assert [*parts] == pytest.approx([*fine.log["loss"]])
    assert (fine.log["active_q"] > 0).all() and (fine.log["grad_norm"] > 0).all()
    assert fine.json["first_loss"] == fine.log["loss"][0]
    assert fine.json["last_loss"] == fine.log["loss"][6]
    assert (fine.json["steps"], fine.json["stopped_at"]) == (7, 7)
    assert (fine.json["status"], fine.json["train_examples"]) == ("ok", 12)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_lambdas_rise_quadratically_by_optimizer_step(init, pairs, run, accumulation):
    log = run(
        init,
        pairs(24),
        max_steps=8,
        log_steps=1,
        ramp=0.5,
        lambda_q=0.8,
        lambda_d=0.08,
        accumulation=accumulation,
    ).log
    rise = [0, 1 / 16, 4 / 16, 9 / 16, 1, 1, 1, 1]
    assert [*log["lambda_q"]] == pytest.approx([0.8 * part for part in rise])
    assert [*log["lambda_d"]] == pytest.approx([0.08 * part for part in rise])
    assert [*log["weighted_flops_q"]] == pytest.approx([*log["lambda_q"] * log["flops_q"]])
    assert log["epoch"].iloc[-1] == pytest.approx(8 * accumulation / 6)


def test_accumulated_gradients_are_means(tiny_checkpoint, pairs, run):
    init = quiet(tiny_checkpoint(**NO_DROPOUT))
    # Pairs, so that halves of a batch score the same as the batch: margins have no in-batch part.
    rows = pairs(
        8,
        negative=sentences(8, 6, start=3),
        positive_score=[float(i) for i in range(8)],
        negative_score=[0.0] * 8,
    )
    same = {"loss": "margin-mse", "lambda_q": 0, "lambda_d": 0, "epochs": 1, "warmup": 0}
    whole = run(init, rows, "whole", batch_size=8, **same)
    halves = run(init, rows, "halves", batch_size=4, accumulation=2, **same)
    assert whole.json["steps"] == halves.json["steps"] == 1
    assert halves.log["main"][0] == pytest.approx(whole.log["main"][0], rel=1e-5)
    assert halves.log["grad_norm"][0] == pytest.approx(whole.log["grad_norm"][0], rel=1e-4)


def test_trained_folder_loads_in_sentence_transformers(init, pairs, run):
    from sentence_transformers import SparseEncoder

    out = run(init, pairs(), max_steps=3).out
    judge = SparseEncoder(str(out), device="cpu")
    ours, tokenizer = Splade.load(out), load_tokenizer(out)
    texts = [*sentences(3, 20), "", "dog"]
    for length, encode in ((8, judge.encode_query), (12, judge.encode_document)):
        batch = tokenizer(
            texts, padding=True, truncation=True, max_length=length, return_tensors="pt"
        )
        with torch.no_grad():
            expected = ours(**batch)
        vectors = encode(texts, convert_to_sparse_tensor=False)
        torch.testing.assert_close(vectors, expected, rtol=1e-5, atol=1e-6)
    plain, before = load_masked_lm(out), load_masked_lm(init)
    assert not torch.equal(output_projection(plain)[1].weight, output_projection(before)[1].weight)


# The same again


def test_same_seed_gives_the_same_bytes(init, pairs, run):
    first = run(init, pairs(), "first", max_steps=4)
    assert run(init, pairs(), "second", max_steps=4).same_as(first)
    assert run(init, pairs(), "other", seed=2, max_steps=4).weights != first.weights
    # The order of equal rows does not matter, but dropout does.
    equal = pairs(query=["small dog"] * 12, positive=["a dog runs"] * 12)
    losses = [run(init, equal, f"dropout{seed}", seed, max_steps=1).json for seed in (1, 2)]
    assert abs(losses[0]["first_loss"] - losses[1]["first_loss"]) > 1e-3


def test_head_times_16_over_16_trains_bit_for_bit_the_same(tiny_checkpoint, pairs, run, tmp_path):
    plain = quiet(tiny_checkpoint(name="plain"))
    loud = tiny_checkpoint(name="loud")
    model = load_masked_lm(plain)
    with torch.no_grad():
        scale_head(model, 1 / 16, tying="untied", bias="scale")
    model.save_pretrained(loud)
    untied = RescaleSettings(tying="untied", bias="scale")
    rescale(plain, tmp_path / "k1", 1, untied)
    rescale(loud, tmp_path / "k16", 16, untied)
    one = run(tmp_path / "k1", pairs(), "one", max_steps=5, log_steps=1)
    sixteen = run(tmp_path / "k16", pairs(), "sixteen", max_steps=5, log_steps=1)
    pd.testing.assert_frame_equal(one.log, sixteen.log, check_exact=True)
    assert one.weights == sixteen.weights
    assert sixteen.json["init"]["k"] == 16
    assert one.json["first_loss"] < run(loud, pairs(), "loud-1", max_steps=1).json["first_loss"]


# How it ends


def test_divergence_keeps_the_last_finite_weights(init, pairs, run):
    trained = run(init, pairs(), max_steps=6, log_steps=10, learning_rate=1e30, warmup=0)
    assert trained.json["status"] == "diverged"
    assert (trained.json["stopped_at"], trained.json["last_loss"]) == (1, None)
    assert [*trained.log["step"]] == [1, 2]
    assert math.isfinite(trained.json["first_loss"]) and math.isnan(trained.log["loss"][1])
    assert "NaN" not in (trained.out / "train.json").read_text()
    for name, saved in load_file(trained.out / "model.safetensors").items():
        assert torch.equal(saved, load_file(init / "model.safetensors")[name]), name


def test_divergence_after_some_steps(init, pairs, run, tmp_path, monkeypatch):
    last_good = {}

    def burst(queries, documents, settings, step, *other):
        loss, measures = objective(queries, documents, settings, step, *other)
        if step == 3:  # with the weights of three updates, which stand in this checkpoint
            last_good.update(load_file(tmp_path / "ckpt" / "checkpoint-3" / "weights.safetensors"))
        if step == 4:
            loss, measures["loss"] = loss * math.nan, measures["loss"] * math.nan
        return loss, measures

    monkeypatch.setattr("splade_rescale.train.objective", burst)
    trained = run(init, pairs(), max_steps=8, save_steps=3, warmup=0)
    assert (trained.json["status"], trained.json["stopped_at"]) == ("diverged", 4)
    for name, saved in load_file(trained.out / "model.safetensors").items():
        assert torch.equal(saved, last_good[f"splade.model.{name}"]), name


def test_divergence_in_the_first_step(init, pairs, run):
    weights = load_file(init / "model.safetensors")
    weights["cls.predictions.transform.LayerNorm.weight"].fill_(1e38)
    save_file(weights, init / "model.safetensors", {"format": "pt"})
    trained = run(init, pairs(), max_steps=6)
    assert trained.json["status"] == "diverged"
    assert (trained.json["first_loss"], trained.json["stopped_at"]) == (None, 0)
    assert [*trained.log["step"]] == [1]
    for name, saved in load_file(trained.out / "model.safetensors").items():
        assert torch.equal(saved, weights[name]), name


def test_a_gradient_that_is_not_finite_is_divergence(init, pairs, run, monkeypatch):
    real = torch.nn.utils.clip_grad_norm_
    steps = []

    def overflow(parameters, *arguments, **options):
        steps.append(1)
        return real(parameters, *arguments, **options) * (math.inf if len(steps) == 3 else 1)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", overflow)
    trained = run(init, pairs(), max_steps=6, log_steps=1)
    assert (trained.json["status"], trained.json["stopped_at"]) == ("diverged", 2)
    monkeypatch.undo()
    # The loss of the third step was finite, so the weights of two steps stay.
    assert [*trained.log["grad_norm"]][2] == math.inf
    assert math.isfinite(trained.json["last_loss"])
    assert trained.weights != (init / "model.safetensors").read_bytes()


def test_collapse_to_zero_ends_early(init, pairs, run):
    # A head with a few active terms and a penalty that outweighs everything.
    trained = run(
        init,
        pairs(),
        max_steps=200,
        log_steps=1,
        learning_rate=0.05,
        ramp=0,
        lambda_q=100,
        lambda_d=100,
        collapse_patience=5,
    )
    assert trained.json["status"] == "collapsed-zero"
    stopped, log = trained.json["stopped_at"], trained.log
    assert stopped < 200 and trained.json["steps"] == 200
    assert log["active_q"][0] > 0 and log["active_d"][0] > 0
    empty = (log["active_q"] == 0) | (log["active_d"] == 0)
    assert [*empty[-6:]] == [False, True, True, True, True, True]
    assert log["step"].iloc[-1] == stopped


def test_collapse_to_zero_in_the_last_row(init, pairs, run):
    trained = run(quiet(init, -100), pairs(), max_steps=4, log_steps=2)
    assert (trained.json["status"], trained.json["stopped_at"]) == ("collapsed-zero", 4)
    assert trained.json["active_d"] == 0
    assert trained.json["last_loss"] == pytest.approx(math.log(4))


def test_collapse_to_dense(init, pairs, run):
    dense = run(quiet(init, 30), pairs(), "dense", max_steps=4)
    assert dense.json["status"] == "collapsed-dense"
    assert dense.json["active_d"] == dense.json["vocabulary"] == 128
    part = dense.json["active_d"] / 128
    allowed = run(init, pairs(), "allowed", max_steps=4, dense_fraction=part)
    assert allowed.json["status"] == "ok"


# Killed and started again


class Killed(BaseException):
    pass


@pytest.fixture
def kill_at(monkeypatch):
    """A function: die as soon as the checkpoint of this step is complete."""

    def arm(step):
        real = checkpoints.complete

        def complete(checkpoint):
            real(checkpoint)
            if checkpoint.name == f"checkpoint-{step}":
                raise Killed

        monkeypatch.setattr(checkpoints, "complete", complete)

    return arm


# Five batches an epoch: three steps of 2, 2 and 1 of them. Step 3 ends an epoch.
UNEVEN = {"accumulation": 2, "epochs": 2, "log_steps": 4, "save_steps": 1}


@pytest.mark.parametrize("step", [2, 3, 5])
def test_resumed_run_is_the_uninterrupted_one(init, pairs, run, kill_at, monkeypatch, step):
    rows = pairs(22)
    whole = run(init, rows, "whole", **UNEVEN)
    assert whole.json["steps"] == 6
    kill_at(step)
    with pytest.raises(Killed):
        run(init, rows, "resumed", **UNEVEN)
    monkeypatch.undo()
    folder = init.parent / "ckpt"
    assert [p.name for p in folder.glob("checkpoint-*")] == [f"checkpoint-{step}"]
    assert not (init.parent / "resumed").exists()
    assert run(init, rows, "resumed", **UNEVEN).same_as(whole)
    assert not folder.exists()


def test_checkpoint_is_taken_and_half_of_one_is_not(init, pairs, run, kill_at, monkeypatch, capsys):
    options = {"max_steps": 8, "save_steps": 2}
    whole = run(init, pairs(), "whole", **options)
    kill_at(4)
    with pytest.raises(Killed):
        run(init, pairs(), "resumed", **options)
    monkeypatch.undo()
    folder = init.parent / "ckpt"
    half = shutil.copytree(folder / "checkpoint-4", folder / "checkpoint-6")
    (half / "COMPLETE").unlink()
    (half / "weights.safetensors").write_bytes(b"half of it")
    capsys.readouterr()
    assert run(init, pairs(), "resumed", **options).same_as(whole)
    assert f"resuming from {folder / 'checkpoint-4'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "optimizer.pt", "rng_state.pth", "COMPLETE"]
)
def test_a_damaged_checkpoint_is_named_and_not_taken(
    init, pairs, run, kill_at, monkeypatch, capsys, name
):
    options = {"max_steps": 6, "save_steps": 2}
    whole = run(init, pairs(), "whole", **options)
    kill_at(4)
    with pytest.raises(Killed):
        run(init, pairs(), "resumed", **options)
    monkeypatch.undo()
    checkpoint = init.parent / "ckpt" / "checkpoint-4"
    content = bytearray((checkpoint / name).read_bytes())
    content[len(content) // 2] ^= 1
    (checkpoint / name).write_bytes(content)
    capsys.readouterr()
    assert run(init, pairs(), "resumed", **options).same_as(whole)
    errors = capsys.readouterr().err
    assert f"not resuming from {checkpoint}: " in errors
    assert name in errors and "resuming from" in errors
    assert f"\nresuming from {checkpoint}" not in errors


class _AtStep(TrainerCallback):
    """Dies at one of the Trainer's events of a step."""

    def __init__(self, event, step):
        def die(args, state, control, **_):
            if state.global_step == step:
                raise Killed

        setattr(self, event, die)


@pytest.mark.parametrize("event", ["on_step_begin", "on_pre_optimizer_step", "on_step_end"])
def test_killed_at_any_step(init, pairs, run, monkeypatch, event):
    """Checkpoints every other step: each kill in between redoes a step or starts anew."""
    rows, options = pairs(), {"max_steps": 5, "save_steps": 2, "log_steps": 2}
    whole = run(init, rows, "whole", **options)
    assert whole.log["lambda_q"].nunique() > 1
    for step in range(5):
        real = training._SpladeTrainer.__init__

        def armed(self, *args, real=real, step=step, **kwargs):
            real(self, *args, **kwargs)
            self.add_callback(_AtStep(event, step + (event == "on_step_end")))

        with monkeypatch.context() as patched:
            patched.setattr(training._SpladeTrainer, "__init__", armed)
            with pytest.raises(Killed):
                run(init, rows, f"resumed-{step}", **options)
        assert run(init, rows, f"resumed-{step}", **options).same_as(whole), step


def out_of_memory_at(monkeypatch, step):
    real = training.objective

    def objective(queries, documents, settings, at, *rest):
        if at == step:
            raise torch.OutOfMemoryError
        return real(queries, documents, settings, at, *rest)

    monkeypatch.setattr(training, "objective", objective)


@pytest.fixture
def computed_again(monkeypatch):
    """The options of each layer's forward pass whose activations are computed again."""
    options = []
    real = modeling_utils.checkpoint

    def checkpoint(*arguments, **named):
        options.append(named.keys())
        return real(*arguments, **named)

    monkeypatch.setattr(modeling_utils, "checkpoint", checkpoint)
    return options


def test_out_of_memory_goes_on_with_less_and_gives_the_same(
    init, pairs, run, monkeypatch, computed_again
):
    options = {"max_steps": 6, "save_steps": 2}
    whole = run(init, pairs(), "whole", **options)
    with monkeypatch.context() as patch:
        out_of_memory_at(patch, 3)
        with pytest.raises(
            UserError, match=r"CUDA ran out of memory with train\.batch_size .* again"
        ):
            run(init, pairs(), "resumed", **options)
        with pytest.raises(
            UserError, match=r"although activations are not kept.*another experiment"
        ):
            run(init, pairs(), "resumed", **options)
    computed_again.clear()
    resumed = run(init, pairs(), "resumed", **options)
    assert computed_again
    assert not any("context_fn" in named for named in computed_again)  # nothing is kept
    assert resumed.same_as(whole)
    folders = [init.parent / name for name in ("whole", "resumed")]
    assert len({(folder / "config.json").read_text() for folder in folders}) == 1
    assert not (init.parent / "ckpt").exists()


def test_what_is_computed_again_on_a_cpu_changes_nothing(
    init, pairs, run, monkeypatch, computed_again
):
    options = {"max_steps": 6}
    usual = run(init, pairs(), "usual", **options)
    assert computed_again
    assert all("context_fn" in named for named in computed_again)  # products are kept
    computed_again.clear()
    monkeypatch.setattr(activations, "keep_products", lambda _model: None)
    assert run(init, pairs(), "kept", **options).same_as(usual)
    assert not computed_again


def test_another_run_does_not_inherit_the_lack_of_memory(init, pairs, run, monkeypatch):
    out_of_memory_at(monkeypatch, 1)
    with pytest.raises(UserError, match="same command again"):
        run(init, pairs(), max_steps=3, save_steps=1)
    with pytest.raises(UserError, match="same command again"):
        run(init, pairs(), max_steps=3, save_steps=1, batch_size=2)


def test_divergence_right_after_resuming(init, pairs, run, kill_at, monkeypatch):
    options = {"max_steps": 6, "save_steps": 1, "learning_rate": 1e30, "warmup": 0}
    whole = run(init, pairs(), "whole", **options)
    assert whole.json["status"] == "diverged"
    kill_at(1)
    with pytest.raises(Killed):
        run(init, pairs(), "resumed", **options)
    monkeypatch.undo()
    assert run(init, pairs(), "resumed", **options).same_as(whole)


def test_steps_without_terms_are_counted_over_a_kill(init, pairs, run, kill_at, monkeypatch):
    options = {"max_steps": 20, "save_steps": 1, "collapse_patience": 5}
    quiet(init, -100)
    whole = run(init, pairs(), "whole", **options)
    assert whole.json["stopped_at"] == 5
    kill_at(3)
    with pytest.raises(Killed):
        run(init, pairs(), "resumed", **options)
    monkeypatch.undo()
    assert run(init, pairs(), "resumed", **options).same_as(whole)


@pytest.mark.parametrize("changed", ["seed", "settings", "rows", "init", "code"])
def test_checkpoints_of_another_run_are_not_taken(
    init, pairs, run, kill_at, monkeypatch, capsys, changed
):
    options = {"max_steps": 4, "save_steps": 2}
    kill_at(2)
    with pytest.raises(Killed):
        run(init, pairs(), "other", **options)
    monkeypatch.undo()
    rows, seed = pairs(), 1
    if changed == "seed":
        seed = 2
    elif changed == "settings":
        options["lambda_q"] = 0.1
    elif changed == "rows":
        rows = pairs(query=sentences(12, 4))
    elif changed == "init":
        quiet(init, 0.01)
    else:
        monkeypatch.setattr(checkpoints, "code_digest", lambda *stages: "another")
    capsys.readouterr()
    run(init, rows, "new", seed=seed, **options)
    assert "resuming" not in capsys.readouterr().err


def test_sigkill(init, pairs, run, tmp_path):
    rows, options = pairs(), {"max_steps": 60, "save_steps": 3, "log_steps": 7}
    out, folder = tmp_path / "killed", tmp_path / "ckpt"
    process = subprocess.Popen(
        [sys.executable, *command(init, rows, out, folder, **options)],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (saved := list(folder.glob("*/COMPLETE"))) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    errors = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL and saved, errors
    assert not out.exists()
    resumed = run(init, rows, "killed", **options)
    assert resumed.same_as(run(init, rows, "whole", **options))
    assert not folder.exists()
    assert not list(tmp_path.glob(".*"))


def test_finished_run_is_not_done_again(init, pairs, run, tmp_path, capsys):
    first = run(init, pairs(), max_steps=2)
    stamp = (first.out / "model.safetensors").stat().st_mtime_ns
    run(init, pairs(), max_steps=2)
    assert (first.out / "model.safetensors").stat().st_mtime_ns == stamp
    assert "already" in capsys.readouterr().err and not (tmp_path / "ckpt").exists()
    assert run(init, pairs(), max_steps=3).json["steps"] == 3


def test_living_predecessor_is_waited_for(init, pairs, run, tmp_path, capsys):
    rows, folder = pairs(), tmp_path / "ckpt"
    first = run(init, rows, "first", max_steps=2)
    with checkpoints.exclusive(folder):
        second = threading.Thread(
            target=run, args=(init, rows, "second"), kwargs={"max_steps": 2}, daemon=True
        )
        second.start()
        second.join(1)
        assert second.is_alive()
        shutil.copytree(first.out, tmp_path / "second")
        (tmp_path / "second" / "made-by-predecessor").touch()
    second.join(60)
    assert not second.is_alive()
    assert (tmp_path / "second" / "made-by-predecessor").exists()
    errors = capsys.readouterr().err
    assert f"process {os.getpid()} of" in errors and "waiting for its end" in errors


def test_two_trainings_never_share_their_checkpoints(tmp_path):
    folder, order = tmp_path / "ckpt", tmp_path / "order"
    # Each holder notes its coming and going, and leaves a checkpoint in between.
    code = """
import sys, time
from pathlib import Path
from splade_rescale.checkpoints import exclusive
folder, order, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
with exclusive(folder):
    with order.open("a") as file:
        print("in", name, file=file)
    time.sleep(0.3)
    with order.open("a") as file:
        print("out", name, file=file)
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder), str(order), name],
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    lines = order.read_text().split("\n")
    assert len(lines) == 7
    for came, went in zip(lines[0:6:2], lines[1:6:2], strict=True):
        assert came.replace("in", "out") == went
    assert any(
        f"{folder}: process {process.pid} of " in error for process in processes for error in errors
    )
    assert not folder.exists()


def test_a_dead_trainings_lock_holds_nothing(tmp_path):
    folder = tmp_path / "ckpt"
    folder.mkdir()
    (folder / "lock-0").write_text("process 1 of elsewhere\n")
    (folder / "checkpoint-7").mkdir()
    with checkpoints.exclusive(folder):
        assert (folder / "lock-0").read_text().startswith(f"process {os.getpid()} of ")
    assert [path.name for path in folder.iterdir()] == ["checkpoint-7"]


# Several processes


def test_two_processes_equal_one_with_the_joint_batch(tiny_checkpoint, pairs, run, tmp_path):
    init = quiet(tiny_checkpoint(**NO_DROPOUT))
    # All rows are one joint batch, so that their order does not matter.
    options = {
        "epochs": 3,
        "log_steps": 1,
        "negatives": "gathered",
        "flops": "gathered",
        "ramp": 0,
        "warmup": 0,
        "lambda_q": 0.1,
        "lambda_d": 0.1,
    }
    rows = pairs(8, negative=sentences(8, 5, start=2))
    together = run(init, rows, "together", batch_size=8, **options)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = command(init, rows, tmp_path / "two", tmp_path / "ckpt", **options)
    done = subprocess.run(
        [sys.executable, *launch, *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    two = Trained(tmp_path / "two")
    assert (two.json["processes"], two.json["steps"], two.json["status"]) == (2, 3, "ok")
    assert not (tmp_path / "ckpt").exists()
    assert two.log["mean_score"].notna().all()  # within each device
    logs = [log.drop(columns="mean_score") for log in (two.log, together.log)]
    pd.testing.assert_frame_equal(*logs, rtol=1e-4)
    weights = load_file(together.out / "model.safetensors")
    for name, tensor in load_file(two.out / "model.safetensors").items():
        if "attention.self.key.bias" not in name:  # its gradient is 0 but for rounding
            torch.testing.assert_close(tensor, weights[name], rtol=0, atol=1e-4, msg=name)


# Bad input

SCORES = {"positive_score": [1.0] * 12, "negative_score": [0.0] * 12}
NEGATIVES = {"negative": sentences(12, 5)}


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {"batch_size": 13}, "12 rows to train on, fewer than one batch of 13"),
        ({}, {"max_examples": 3}, "3 rows to train on, fewer than one batch of 4"),
        ({"positive": None}, {}, "there is no positive, found query"),
        ({}, {"loss": "kl"}, "there is no negative, positive_score, negative_score"),
        ({**SCORES}, {"loss": "margin-mse"}, "there is no negative, found"),
        ({"query": ["a", None] + ["b"] * 10}, {}, "column query has None in row 2"),
        (
            {**NEGATIVES, **SCORES, "positive_score": [1.0] * 11 + [math.nan]},
            {"loss": "kl"},
            "column positive_score has nan in row 12, expected a finite number",
        ),
        (
            {**NEGATIVES, **SCORES, "negative_score": [math.inf] * 12},
            {"loss": "kl"},
            "column negative_score has inf in row 1",
        ),
        (
            {**NEGATIVES, **SCORES, "negative_score": ["0"] * 12},
            {"loss": "kl"},
            "column negative_score is of type string, expected a number",
        ),
        ({"query": [[1.0]] * 12}, {}, "column query is of type list"),
    ],
)
def test_bad_rows(init, pairs, run, tmp_path, columns, options, message):
    rows = pairs(**columns)
    with pytest.raises(UserError) as error:
        run(init, rows, max_steps=1, **options)
    assert str(error.value).startswith(f"{rows}: ") and message in str(error.value)
    assert not (tmp_path / "model").exists() and not (tmp_path / "ckpt").exists()


def test_no_parquet(init, run, tmp_path):
    for name, text in (("missing.parquet", None), ("bad.parquet", "query,positive")):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=f"{name}: cannot be read as parquet"):
            run(init, tmp_path / name, max_steps=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_gpu_that_is_not_there(init, pairs, run):
    with pytest.raises(UserError, match=r"train\.gpus is 1, but torch finds no CUDA device"):
        run(init, pairs(), gpus=1)


def test_gpus_without_their_processes(init, pairs, run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match=r"train\.gpus is 4.*1 processes.*--nproc-per-node 4"):
        run(init, pairs(), gpus=4)


def test_texts_longer_than_the_model_takes_are_refused(init, pairs, run, tmp_path):
    for length in ("query_length", "document_length"):
        with pytest.raises(UserError, match="init: takes 80 tokens at most, settings say 81"):
            run(init, pairs(), max_steps=1, **{length: 81})
    assert not (tmp_path / "model").exists() and not (tmp_path / "ckpt").exists()


def test_folders_of_others_are_left_alone(init, pairs, run, tmp_path):
    for name, file in (("model", "thesis.tex"), ("ckpt", "checkpoint-3")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
        with pytest.raises(UserError, match=rf"{name}: .*name another folder"):
            run(init, pairs(), max_steps=1)
        assert [path.name for path in (tmp_path / name).iterdir()] == [file]
        shutil.rmtree(tmp_path / name)
