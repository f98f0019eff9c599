"""Published values, to stand beside ours."""

import math
from pathlib import Path

from splade_rescale.errors import UserError
from splade_rescale.files import read_text_csv
from splade_rescale.scale import canonical_k

COLUMNS = ["backbone", "k", "dataset", "measure", "value", "source"]

Published = dict[tuple[str, str, str, str], float]


def read_published(path: Path) -> Published:
    """Read published values as {(backbone, k, dataset, measure): value}.

    k is canonical, or empty where it does not apply, as with norms.

    Raises:
        UserError: names the file and the line that is wrong.
    """
    frame = read_text_csv(path)
    if list(frame.columns) != COLUMNS:
        raise UserError(
            f"{path}: has the columns {', '.join(frame.columns)}, expected {', '.join(COLUMNS)}"
        )
    values: Published = {}
    for line, row in enumerate(frame.itertuples(index=False), start=2):
        try:
            k = canonical_k(row.k) if row.k else ""
            value = float(row.value)
        except (UserError, ValueError) as error:
            raise UserError(f"{path}, line {line}: {error}") from None
        key = (row.backbone, k, row.dataset, row.measure)
        if not math.isfinite(value):
            raise UserError(f"{path}, line {line}: value is {value}, expected a finite number")
        if key in values:
            raise UserError(f"{path}, line {line}: a second value of {', '.join(key)}")
        values[key] = value
    return values
