"""Batches of a Parquet file whose damage may show only when they are read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from splade_rescale.errors import UserError


def read_batches(file: pq.ParquetFile, path: Path, **options: Any) -> Iterator[pa.RecordBatch]:
    """`file.iter_batches` with the errors of a damaged file as what they are.

    Raises:
        UserError: names `path`; its content cannot be read, or is not what was written.
    """
    try:
        yield from file.iter_batches(**options)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: damaged parquet file ({error})") from None
