"""The results table, and the paper's."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from splade_rescale.cli.options import SettingsText, read_settings
from splade_rescale.errors import UserError

commands = typer.Typer()


def chosen_grid(config_file: Path | None, grid: str | None, registries: Path) -> Any:
    """The grid of a configuration file, or that of JSON text; one of the two must be given."""
    from splade_rescale.config import Grid, read_experiment, validate

    if (config_file is None) == (grid is None):
        raise UserError("give either CONFIG or --grid")
    if config_file is not None:
        return read_experiment(config_file, registries).grid()
    try:
        return validate(Grid, json.loads(grid or ""), "--grid")
    except json.JSONDecodeError as error:
        raise UserError(f"--grid: not valid JSON ({error})") from None


@commands.command()
def table(
    config_file: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="Configuration whose cells are read.")
    ] = None,
    grid: Annotated[str | None, typer.Option(help="The cells as JSON, instead of CONFIG.")] = None,
    registries: Annotated[Path, typer.Option(help="Folder of the registries.")] = Path("config"),
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
    published: Annotated[Path | None, typer.Option(help="CSV file of published values.")] = None,
) -> None:
    """Put every cell of a grid into one table; print it."""
    from splade_rescale.cells import cells_of
    from splade_rescale.table import build_table, format_table, write_table

    chosen = chosen_grid(config_file, grid, registries)
    frame = build_table(
        cells_of(chosen, results), baseline=chosen.baseline_backbone, published=published
    )
    if out is not None:
        write_table(frame, out)
    typer.echo(format_table(frame))


@commands.command()
def paper(
    config_file: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="Configuration whose cells are read.")
    ] = None,
    grid: Annotated[str | None, typer.Option(help="The cells as JSON, instead of CONFIG.")] = None,
    registries: Annotated[Path, typer.Option(help="Folder of the registries.")] = Path("config"),
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    published: Annotated[Path, typer.Option(help="CSV file of published values.")] = Path(
        "config/published.csv"
    ),
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results/paper"),
    settings: SettingsText = None,
) -> None:
    """Write the paper's tables and figures from results/table.csv and the training logs."""
    from splade_rescale.cells import cells_of
    from splade_rescale.paper_files import write_paper
    from splade_rescale.settings import PaperSettings

    chosen = chosen_grid(config_file, grid, registries)
    write_paper(
        cells_of(chosen, results),
        results,
        published,
        out,
        read_settings(PaperSettings, settings),
    )
