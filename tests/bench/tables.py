"""How the benchmarks print tables."""

from typing import Any


def markdown(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[short(value, 3) for value in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def short(value: Any, digits: int) -> str:
    """A value of a table: a float to so many digits; nothing where there is none."""
    if value is None:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
