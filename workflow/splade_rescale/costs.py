"""What an experiment costs, on paper: operations, GPU hours, disk and memory.

Operations are counted from the sizes of the backbones and data sets; the rest follows from rates
and sizes that the reader can set. Nothing here is measured, except the bytes that an engine needs
per posting (see `Assumptions`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splade_rescale.config import Experiment
from splade_rescale.errors import UserError
from splade_rescale.files import read_text_csv


@dataclass(frozen=True)
class Size:
    """Sizes of a backbone.

    `feed_forward_matrices` is 2, or 3 where the feed-forward network is gated. `embedding` is the
    width of the output projection's rows, which differs from `hidden` in ALBERT.
    """

    layers: int
    hidden: int
    intermediate: int
    feed_forward_matrices: int
    embedding: int
    vocabulary: int

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of one layer."""
        feed_forward = self.feed_forward_matrices * self.hidden * self.intermediate
        return 4 * self.hidden**2 + feed_forward

    @property
    def head_weights(self) -> int:
        """Weights of the head's transform and of its output projection."""
        return self.hidden * self.embedding + self.embedding * self.vocabulary

    def forward(self, length: float) -> float:
        """Floating-point operations of one token's way through the model.

        Two (a product and a sum) per weight of every matrix; in attention, two products of `length`
        by `hidden` a layer. Norms, activations and the pool are left out: they move memory.

        Args:
            length: tokens of the text, which its tokens attend to.
        """
        layers = self.layers * (2 * self.layer_weights + 4 * length * self.hidden)
        return layers + 2 * self.head_weights

    @property
    def parameters(self) -> int:
        """Weights held in memory when every layer has its own and the head is tied; an upper bound.

        Biases, norms and positions are left out.
        """
        own = self.layers * self.layer_weights
        return own + self.hidden * self.embedding + self.embedding * self.vocabulary


@dataclass(frozen=True)
class Assumptions:
    """What is assumed; every field is an option of the command."""

    gpu_tflops: float = 312  # an A100's peak in bfloat16, dense
    share: float = 0.3  # of the peak that is reached; a guess, no measurement
    query_tokens: float = 32  # of a training query, padded to the longest of its batch
    passage_tokens: float = 200  # of a training passage, padded likewise
    pieces_per_word: float = 1.3
    padding: float = 1.05  # of batches sorted by length
    terms: float = 150  # active terms of a document
    index_bytes: float = 2.4  # of Lucene per posting; `make bench-engines`
    run_bytes: float = 25  # of a hit in a packed run file
    # kept for the backward pass per token, layer and unit of width (Korthikanti et al. 2022,
    # arXiv 2205.05198, without the scores of attention, which are not kept)
    activation_bytes: float = 34


def read_sizes(path: Path) -> dict[str, Size]:
    """Read backbones.csv: backbone -> its sizes.

    Raises:
        UserError: the file is missing, or a value is no whole number.
    """
    names = tuple(Size.__dataclass_fields__)
    return {
        slug: Size(**{name: int(row[name]) for name in names})
        for slug, row in _rows(path, "backbone", names).items()
    }


def _rows(path: Path, key: str, numbers: tuple[str, ...]) -> dict[str, dict[str, str]]:
    frame = read_text_csv(path)
    missing = [name for name in (key, *numbers) if name not in frame.columns]
    if missing:
        raise UserError(f"{path}: has no columns {', '.join(missing)}")
    rows = {}
    for line, row in enumerate(frame.to_dict("records"), start=2):
        for name in numbers:
            try:
                float(row[name] or 0)
            except ValueError:
                raise UserError(
                    f"{path}, line {line}: {name} is {row[name]!r}, expected a number"
                ) from None
        rows[row[key]] = row
    return rows


_DATASET_NUMBERS = ("documents", "queries", "document_words", "train_rows")


def read_dataset_sizes(path: Path) -> dict[str, dict[str, float]]:
    """Read datasets.csv: data set -> documents, queries, document_words, train_rows.

    Raises:
        UserError: the file is missing, or a value is no number.
    """
    return {
        slug: {name: float(row[name]) for name in _DATASET_NUMBERS if row[name]}
        for slug, row in _rows(path, "dataset", _DATASET_NUMBERS).items()
    }


def _size_of(table: Mapping[str, Any], slug: str, path: Path) -> Any:
    if slug not in table:
        raise UserError(f"{path}: has no row for {slug}; add one")
    return table[slug]


def costs(experiment: Experiment, sizes: Path, assume: Assumptions) -> dict[str, Any]:
    """Costs of an experiment's main arm and arms.

    Args:
        experiment: its grid is counted.
        sizes: folder with backbones.csv and datasets.csv.
        assume: rates and sizes.

    Returns:
        `models`: per backbone the trainings, and per model the operations of training and encoding
        (in 10^15), GPU hours, and GB of memory on the GPU in training. `totals`: documents encoded
        per model, queries searched per model, GPU hours of all trainings and encodings, and GB of
        disk.

    Raises:
        UserError: a backbone or data set has no row in the files.
    """
    backbones = read_sizes(sizes / "backbones.csv")
    datasets = read_dataset_sizes(sizes / "datasets.csv")
    grid = experiment.grid()
    rate = assume.gpu_tflops * 1e12 * assume.share * 3600
    documents = postings = queries = 0.0
    texts: list[tuple[float, float]] = []
    for owner in dict.fromkeys(grid.corpora.values()):
        size = _size_of(datasets, owner, sizes / "datasets.csv")
        count = size.get("documents", 0)
        documents += count
        limit = experiment.config.encode.document_length
        texts.append((count, min(limit, size["document_words"] * assume.pieces_per_word + 2)))
    for dataset in grid.measures:
        queries += _size_of(datasets, dataset, sizes / "datasets.csv").get("queries", 0)
    postings = documents * assume.terms

    models, totals = [], {"train": 0.0, "encode": 0.0, "models": 0, "checkpoints": 0.0}
    for name in grid.arms:
        config = experiment.arm(name)
        train = _size_of(datasets, config.train.dataset, sizes / "datasets.csv")
        rows = min(train.get("train_rows", 0), config.train.max_examples or float("inf"))
        examples = rows * config.train.epochs
        if config.train.max_steps is not None:
            step = config.train.batch_size * config.train.accumulation * max(1, config.train.gpus)
            examples = config.train.max_steps * step
        for backbone in config.backbones:
            size = _size_of(backbones, backbone, sizes / "backbones.csv")
            count = len(config.scales) * len(config.seeds)
            tokens = assume.query_tokens, assume.passage_tokens, assume.passage_tokens
            one_example = sum(length * size.forward(length) for length in tokens)
            training = 3 * examples * one_example
            encoding = sum(
                count_of * length * assume.padding * size.forward(length)
                for count_of, length in texts
            )
            held = 16 * size.parameters
            batch = config.train.batch_size
            kept = assume.activation_bytes * size.layers * size.hidden * batch * sum(tokens)
            models.append(
                {
                    "arm": name,
                    "backbone": backbone,
                    "trainings": count,
                    "train_pflop": training / 1e15,
                    "encode_pflop": encoding / 1e15,
                    "train_hours": training / rate,
                    "encode_hours": encoding / rate,
                    "gpu_gb": (held + kept) / 1e9,
                }
            )
            totals["train"] += count * training / rate
            totals["encode"] += count * encoding / rate
            totals["models"] += count
            totals["checkpoints"] += count * 2 * 4 * size.parameters / 1e9
    trained = totals.pop("models")
    hits = experiment.config.search.hits
    return {
        "models": models,
        "totals": {
            "models": trained,
            "documents": documents,
            "postings": postings,
            "queries": queries,
            "train_hours": totals["train"],
            "encode_hours": totals["encode"],
            "checkpoints_gb": totals["checkpoints"],
            "vectors_gb": trained * postings * 8 / 1e9,
            "indexes_gb": trained * postings * assume.index_bytes / 1e9,
            "runs_gb": trained * queries * hits * assume.run_bytes / 1e9,
            "largest_corpus_postings": max(count for count, _ in texts) * assume.terms,
            "dense_model_gb": documents * experiment.config.encode.max_terms * 8 / 1e9,
        },
    }


def format_costs(found: dict[str, Any], assume: Assumptions) -> str:
    """The costs as Markdown."""
    models, totals = found["models"], found["totals"]
    named = any(model["arm"] for model in models)
    rows = [["backbone", "trainings", "train PFLOP", "GPU h", "encode PFLOP", "GPU h", "GPU GB"]]
    for model in models:
        label = f"{model['arm']}/{model['backbone']}" if named else model["backbone"]
        numbers = ("train_pflop", "train_hours", "encode_pflop", "encode_hours", "gpu_gb")
        rows.append([label, str(model["trainings"]), *(f"{model[n]:.3g}" for n in numbers)])
    disk = ("checkpoints_gb", "vectors_gb", "indexes_gb", "runs_gb")
    hours = totals["train_hours"], totals["encode_hours"]
    lines = [
        f"{assume.gpu_tflops:g} TFLOP/s x {assume.share:g}; {totals['models']} models, each over "
        f"{totals['documents']:,.0f} documents and {totals['queries']:,.0f} queries. Per model:",
        "",
        _markdown(rows),
        "",
        "All models:",
        "",
        _markdown(
            [
                ["", "GPU hours"],
                ["training", f"{hours[0]:.0f}"],
                ["encoding", f"{hours[1]:.0f}"],
                ["both", f"{sum(hours):.0f}"],
            ]
        ),
        "",
        _markdown(
            [
                ["", "GB"],
                *([name.removesuffix("_gb"), f"{totals[name]:,.0f}"] for name in disk),
                ["all", f"{sum(totals[name] for name in disk):,.0f}"],
                ["vectors of one dense model", f"{totals['dense_model_gb']:,.0f}"],
            ]
        ),
    ]
    return "\n".join(lines)


def _markdown(rows: list[list[str]]) -> str:
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    first = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [
            row[0].ljust(widths[0]),
            *(v.rjust(w) for v, w in zip(row[1:], widths[1:], strict=True)),
        ]
        for row in (rows[0], first, *rows[1:])
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)
