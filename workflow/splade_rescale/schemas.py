"""The tables of a data set folder: their columns, and how readers hand them on."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa

SCHEMAS = {
    "corpus": pa.schema({"doc_id": pa.string(), "title": pa.string(), "text": pa.string()}),
    "queries": pa.schema({"query_id": pa.string(), "text": pa.string()}),
    "qrels": pa.schema({"query_id": pa.string(), "doc_id": pa.string(), "relevance": pa.int64()}),
    "train": pa.schema(
        {
            "query": pa.string(),
            "positive": pa.string(),
            "negative": pa.string(),
            "positive_score": pa.float64(),
            "negative_score": pa.float64(),
        }
    ),
}

Batches = Iterable[pa.RecordBatch]


class Parts(NamedTuple):
    """A data set on its way to disk: batches of each table by its name in SCHEMAS, provenance."""

    tables: dict[str, Batches]
    provenance: dict[str, Any]


def train_schema(columns: Iterable[str]) -> pa.Schema:
    """The part of the training schema that `columns` fill, in the schema's order."""
    present = set(columns)
    return pa.schema([field for field in SCHEMAS["train"] if field.name in present])
