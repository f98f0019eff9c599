"""Reading Parquet files whose damage may show only when they are read.

Page checksums, which this package writes, cover the content of pages. A flipped bit in a page's
header can still make it hold fewer rows, so these are counted.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from splade_rescale.errors import UserError

#: What pyarrow raises on files that are no Parquet, cut short or damaged; names in a damaged
#: footer may not even be text.
ERRORS = (OSError, ValueError, KeyError, pa.ArrowException)


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """The columns of a Parquet file, or all of them, checked against checksums and row count.

    Raises:
        ERRORS: missing or damaged file, or a column that is not there. Callers say what they
            expected.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        found = file.schema_arrow.names
        if not set(columns or ()) <= set(found):
            raise ValueError(f"found columns {found}, expected {columns}")
        table = file.read(columns)
        rows = file.metadata.num_rows
    table.validate()
    _count(table.num_rows, rows)
    return table


def read_batches(file: pq.ParquetFile, path: Path, **options: Any) -> Iterator[pa.RecordBatch]:
    """`file.iter_batches` with the errors of a damaged file as what they are.

    Raises:
        UserError: names `path`; its content cannot be read, or is not what was written.
    """
    groups = options.get("row_groups", range(file.num_row_groups))
    rows = 0
    try:
        expected = sum(file.metadata.row_group(group).num_rows for group in groups)
        for batch in file.iter_batches(**options):
            rows += batch.num_rows
            yield batch
        _count(rows, expected)
    except ERRORS as error:
        raise UserError(f"{path}: damaged parquet file ({error})") from None


def _count(found: int, expected: int) -> None:
    if found != expected:
        raise OSError(f"{found} rows can be read of {expected}")
