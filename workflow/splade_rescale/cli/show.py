"""Look at one cell: what came out, and what it finds for a query."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from splade_rescale.cli.options import (
    MemoryMb,
    SettingsText,
    Threads,
    read_settings,
)

commands = typer.Typer()
Cell = Annotated[
    Path,
    typer.Argument(metavar="CELL", help="results/[arms/ARM/]BACKBONE/kK/seedSEED/DATASET"),
]


@commands.command()
def show(cell: Cell) -> None:
    """Show a cell: measures, statistics, course of the loss, logs, and what is not made yet."""
    from splade_rescale.cell_place import CellPlace
    from splade_rescale.show import show as run
    from splade_rescale.sparkline import levels_for

    typer.echo(run(CellPlace.of(cell), levels_for(sys.stdout.encoding)))


@commands.command()
def query(
    cell: Cell,
    text: Annotated[str, typer.Argument(help="The query.")],
    hits: Annotated[int, typer.Option(min=1, help="Documents to show.")] = 5,
    terms: Annotated[int, typer.Option(min=1, help="Terms to show of the query and a hit.")] = 10,
    settings: SettingsText = None,
    threads: Threads = None,
    memory_mb: MemoryMb = None,
) -> None:
    """Search a cell's corpus for a text; show the terms of the query and those that matched."""
    from splade_rescale.cell_place import CellPlace
    from splade_rescale.query import ask, format_answer
    from splade_rescale.settings import SearchSettings

    answer = ask(
        CellPlace.of(cell),
        text,
        hits,
        None if settings is None else read_settings(SearchSettings, settings),
        threads=threads or 1,
        memory_mb=memory_mb,
    )
    encoding = sys.stdout.encoding or "ascii"
    printable = format_answer(answer, terms).encode(encoding, "backslashreplace").decode(encoding)
    typer.echo(printable)
