"""Pairs of texts to choose k on, where there is no data set."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from splade_rescale.beir import read_train
from splade_rescale.errors import UserError
from splade_rescale.pydocs import build
from splade_rescale.rows import stem
from splade_rescale.settings import PydocsDataset

PACKAGES = ("numpy", "pandas")
"""Distributions whose docstrings are taken: every installation has them, and they parse fast."""

_SUFFIXES = (".jsonl", ".parquet")


def write_pairs(out: Path, source: Path | None = None) -> None:
    """Write a train.parquet (query, positive, ...).

    Args:
        out: file to write.
        source: file of pairs, `.jsonl[.gz]` or `.parquet` with query and positive; summaries and
            bodies of docstrings where it is None.

    Raises:
        UserError: the file is missing, of another kind, or malformed.
    """
    if source is None:
        train = build(
            PydocsDataset(
                source="pydocs",
                split="in-domain",
                packages=[*PACKAGES],
                documents=1,
                queries=1,
            )
        )["train"]
        train.to_parquet(out, index=False)
        return
    if not source.is_file():
        raise UserError(f"{source}: no such file")
    if not stem(source).endswith(_SUFFIXES):
        raise UserError(f"{source}: expected a file .jsonl[.gz] or .parquet with query, positive")
    batches = [*read_train([source])]
    if not batches:
        raise UserError(f"{source}: holds no pairs")
    pq.write_table(pa.Table.from_batches(batches), out)
