"""The report: figures, expansions and the page."""

import json
from pathlib import Path
from typing import Annotated

import typer

from splade_rescale.cli.options import SettingsText, Threads, read_settings
from splade_rescale.cli.table import chosen_grid
from splade_rescale.errors import UserError

commands = typer.Typer(no_args_is_help=True, help="One page that shows the results.")

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG]", help="Configuration whose cells are read.")
]
GridText = Annotated[str | None, typer.Option(help="The cells as JSON, instead of CONFIG.")]
Registries = Annotated[Path, typer.Option(help="Folder of the registries.")]
Results = Annotated[Path, typer.Option(help="Folder of results.")]


@commands.command()
def figures(
    config_file: ConfigFile = None,
    grid: GridText = None,
    registries: Registries = Path("config"),
    results: Results = Path("results"),
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results/report/figures"),
) -> None:
    """Draw the figures of the report, each with its data as CSV beside it."""
    from splade_rescale.cells import cells_of
    from splade_rescale.report_figures import write_figures

    write_figures(cells_of(chosen_grid(config_file, grid, registries), results), results, out)


@commands.command()
def expansions(
    dataset: Annotated[Path, typer.Argument(help="Folder of the data set that gives the texts.")],
    config_file: ConfigFile = None,
    grid: GridText = None,
    registries: Registries = Path("config"),
    results: Results = Path("results"),
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = Path(
        "results/report/expansions.json"
    ),
    settings: SettingsText = None,
    encode: Annotated[str | None, typer.Option(help="Encode settings as JSON.")] = None,
    threads: Threads = None,
) -> None:
    """Write what the models make of a few texts, before training and after it."""
    from splade_rescale.cells import cells_of
    from splade_rescale.expansions import write_expansions
    from splade_rescale.settings import EncodeSettings, ReportSettings

    write_expansions(
        cells_of(chosen_grid(config_file, grid, registries), results),
        results,
        dataset,
        out,
        read_settings(ReportSettings, settings),
        read_settings(EncodeSettings, encode),
    )


@commands.command()
def page(
    config_file: ConfigFile = None,
    grid: GridText = None,
    experiment: Annotated[
        str | None, typer.Option(help="The settings of all stages as JSON, instead of CONFIG.")
    ] = None,
    registries: Registries = Path("config"),
    results: Results = Path("results"),
    resources: Annotated[Path, typer.Option(help="Folder of downloads.")] = Path("resources"),
    published: Annotated[Path, typer.Option(help="CSV file of published values.")] = Path(
        "config/published.csv"
    ),
    command: Annotated[
        list[str] | None, typer.Option(help="A command that made the results, to be shown.")
    ] = None,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path(
        "results/report/index.html"
    ),
) -> None:
    """Write the page from the table, the figures and the expansions."""
    from splade_rescale.cells import cells_of
    from splade_rescale.config import read_experiment
    from splade_rescale.provenance import settings_of
    from splade_rescale.report import write_report

    if (config_file is None) == (experiment is None):
        raise UserError("give either CONFIG, or --grid and --experiment")
    if config_file is not None:
        settings = settings_of(read_experiment(config_file, registries))
    else:
        try:
            settings = json.loads(experiment or "")
        except json.JSONDecodeError as error:
            raise UserError(f"--experiment: not valid JSON ({error})") from None
    cells = cells_of(chosen_grid(config_file, grid, registries), results)
    write_report(cells, results, resources, published, out, settings, command or [])
