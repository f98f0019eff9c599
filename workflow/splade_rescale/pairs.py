"""Rows of train.parquet, and batches of them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from splade_rescale.errors import UserError
from splade_rescale.loss_table import LOSSES
from splade_rescale.parquet_files import ERRORS, read_table
from splade_rescale.settings import TrainSettings


def read_pairs(path: Path, settings: TrainSettings, processes: int = 1) -> pa.Table:
    """The columns of train.parquet that a training takes, and the rows, checked.

    Args:
        path: parquet file. Query and positive are taken, negative if it is there, and all that the
            loss needs.
        settings: loss, batch size, most rows.
        processes: each takes a batch of its own in every step.

    Raises:
        UserError: unreadable, a column is missing or of another type, a value is missing or not
            finite, or there are too few rows for one batch.
    """
    needs = LOSSES[settings.loss].needs
    texts = ["query", "positive"]
    scores = [name for name in needs if name != "negative"]
    try:
        present = pq.read_schema(path).names
        if "negative" in (*needs, *present):
            texts.append("negative")
        missing = [name for name in [*texts, *scores] if name not in present]
        if missing:
            raise UserError(
                f"{path}: loss {settings.loss} needs the columns {', '.join([*texts, *scores])}; "
                f"there is no {', '.join(missing)}, found {', '.join(present)}"
            )
        table = read_table(path, [*texts, *scores])
    except ERRORS as error:
        raise UserError(f"{path}: cannot be read as parquet ({error})") from None
    table = table.slice(0, settings.max_examples)
    for name in table.column_names:
        _check(path, name, table[name], is_text=name in texts)
    needed = settings.batch_size * processes
    if table.num_rows < needed:
        raise UserError(
            f"{path}: {table.num_rows} rows to train on, fewer than one batch of {needed}"
        )
    return table


def _check(path: Path, name: str, column: pa.ChunkedArray, *, is_text: bool) -> None:
    kind = column.type
    if is_text:
        fits = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    else:
        fits = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    if not fits:
        expected = "string" if is_text else "a number"
        raise UserError(f"{path}: column {name} is of type {kind}, expected {expected}")
    good = column.is_valid() if is_text else pc.fill_null(pc.is_finite(column), False)
    row = pc.index(good, False).as_py()
    if row >= 0:
        expected = "a text" if is_text else "a finite number"
        raise UserError(
            f"{path}: column {name} has {column[row]} in row {row + 1}, expected {expected}"
        )


class Pairs(Dataset):
    """Rows of an Arrow table as dicts."""

    def __init__(self, table: pa.Table) -> None:
        self.columns = {name: table[name] for name in table.column_names}
        self.rows = table.num_rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {name: column[row].as_py() for name, column in self.columns.items()}


class Collator:
    """Rows -> token tensors per column, each padded to its own longest text.

    Scores of a teacher become `teacher`, `[batch, 2]`: positive, negative.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: TrainSettings) -> None:
        self.tokenizer = tokenizer
        self.lengths = {
            "query": settings.query_length,
            "positive": settings.document_length,
            "negative": settings.document_length,
        }

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Tokenize the texts of `rows`; tensors are `[batch, seq]`."""
        batch: dict[str, Any] = {
            name: dict(
                self.tokenizer(
                    [row[name] for row in rows],
                    padding=True,
                    truncation=True,
                    max_length=length,
                    return_tensors="pt",
                )
            )
            for name, length in self.lengths.items()
            if name in rows[0]
        }
        if "positive_score" in rows[0]:
            scores = [[row["positive_score"], row["negative_score"]] for row in rows]
            batch["teacher"] = torch.tensor(scores, dtype=torch.float32)
        return batch
