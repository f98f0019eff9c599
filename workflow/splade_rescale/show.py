"""What is known of a cell, for people: read from the files of its stages."""

import math
from pathlib import Path
from typing import Any

from splade_rescale.cell_place import CellPlace
from splade_rescale.errors import UserError
from splade_rescale.files import read_json_object, read_text_csv
from splade_rescale.sparkline import BLOCKS, sparkline

_WIDTH = 11


def show(place: CellPlace, levels: str = BLOCKS) -> str:
    """A few lines on the cell: training, head, measures, sparsity, search, losses, logs.

    What is not there is named with the command that makes it.

    Args:
        place: of the cell; nothing of it need exist.
        levels: characters of the sparkline.

    Raises:
        UserError: a file that is there is damaged.
    """
    files = place.files
    arm = f", arm {place.arm}" if place.arm else ""
    lines = [f"{place.backbone}, k = {place.k}, seed {place.seed}, {place.dataset}{arm}"]
    model, corpus = files.model_folder, files.corpus_folder
    assert model is not None
    assert files.init_folder is not None
    missing: list[Path] = []
    for path, describe in (
        (files.init_folder / "rescale.json", _head),
        (model / "train.json", _training),
        (model / "train_log.csv", lambda path: _course(path, levels)),
        (files.folder / "metrics.json", _measures),
        (files.folder / "sparsity.json", _sparsity),
        (corpus / "index" / "index.json", _index),
        (files.folder / "search.json", _search),
    ):
        if path.is_file():
            try:
                lines += describe(path)
            except KeyError as error:
                raise UserError(f"{path}: lacks {error}; delete it and make it again") from None
        else:
            missing.append(path)
    checkpoints = model.with_name("checkpoints")
    if checkpoints.is_dir() and not (model / "train.json").is_file():
        lines.append(_line("training", f"not finished; it goes on from {checkpoints}"))
    logs = place.logs()
    lines += [_line("logs" if not n else "", str(path)) for n, path in enumerate(logs)]
    if missing:
        lines += ["", "not there:", *(f"  {path}" for path in missing)]
        metrics = files.folder / "metrics.json"
        targets = [metrics] if metrics in missing else missing
        # A folder is one output of its rule
        whole = {"init", "model", "index"}
        targets = [path.parent if path.parent.name in whole else path for path in targets]
        lines += ["to be made by (with the --configfile of the experiment, if it has one):"]
        lines += [f"  {place.command(path)}" for path in dict.fromkeys(targets)]
        if not files.folder.exists() and (close := place.like()):
            lines.append(f"did you mean {close}?")
    return "\n".join(lines)


def _line(name: str, text: str) -> str:
    return f"{name:<{_WIDTH}}{text}"


def _head(path: Path) -> list[str]:
    made = read_json_object(path)
    before, after = made["norms_before"], made["norms_after"]
    return [
        _line(
            "head",
            f"{after['V']:,} x {after['d']}, mean row norm {before['mean']:.4f}, divided by "
            f"{made['k']:g}: {after['mean']:.4f} (tying: {made['tying']}, bias: {made['bias']})",
        )
    ]


def _training(path: Path) -> list[str]:
    made = read_json_object(path)
    settings: dict[str, Any] = made["settings"]
    stopped = f" of {made['steps']}" if made["stopped_at"] != made["steps"] else ""
    return [
        _line("training", f"{made['status']}, {made['stopped_at']}{stopped} steps, "
              f"{settings['loss']} loss on {settings['dataset']}, batch {settings['batch_size']}, "
              f"learning rate {settings['learning_rate']:g}"),
    ]  # fmt: skip


def _course(path: Path, levels: str) -> list[str]:
    log = read_text_csv(path)
    lines = []
    for name, column in {"loss": "loss", "terms q": "active_q", "terms d": "active_d"}.items():
        try:
            values = [float(value or "nan") for value in log[column]]
        except ValueError as error:
            raise UserError(f"{path}: column {column}: {error}") from None
        if values:
            course = f"{sparkline(values, levels)}  {values[0]:.4g} to {values[-1]:.4g}"
            finite = [value for value in values if math.isfinite(value)]
            course += f", at most {max(finite):.4g}" if finite else ""
            lines.append(_line(name, course))
    return lines


def _measures(path: Path) -> list[str]:
    made = read_json_object(path)
    values = ", ".join(f"{name} {value:.4f}" for name, value in made["measures"].items())
    without = made["queries_without_hits"]
    hits = f", {without} without hits" if without else ""
    return [_line("measures", f"{values} ({made['queries']} queries{hits})")]


def _sparsity(path: Path) -> list[str]:
    made = read_json_object(path)
    empty = made["empty_documents"] + made["empty_queries"]
    counts = f"; empty: {made['empty_queries']} queries, {made['empty_documents']} documents"
    return [
        _line(
            "sparsity",
            f"{made['active_terms_q']:.2f} terms a query, {made['active_terms_d']:.2f} a document, "
            f"FLOPS {made['flops']:.4f}{counts if empty else ''}",
        )
    ]


def _index(path: Path) -> list[str]:
    made = read_json_object(path)
    return [
        _line(
            "index",
            f"{made['engine']}, {made['indexed']:,} of {made['documents']:,} documents, "
            f"{made['postings']:,} postings, {made['bytes'] / 1e6:.2f} MB",
        )
    ]


def _search(path: Path) -> list[str]:
    made = read_json_object(path)
    recall = made["exact_recall@10"]
    agreement = "" if recall is None else f", exact_recall@10 {recall:.4f}"
    return [_line("search", f"{made['engine']}, {made['ms_per_query']:.3f} ms a query{agreement}")]
