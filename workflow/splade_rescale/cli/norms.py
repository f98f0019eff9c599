"""Measure head norms."""

from pathlib import Path
from typing import Annotated

import typer

from splade_rescale.cli.options import SettingsText, Threads, read_settings
from splade_rescale.errors import UserError

commands = typer.Typer()


@commands.command()
def norms(
    model: Annotated[str, typer.Argument(help="Checkpoint folder, or a repository on the hub.")],
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    activation: Annotated[
        Path | None, typer.Option(help="CSV of initial activation statistics to write.")
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="Data set folder whose train.parquet is sampled for it.")
    ] = None,
    scales: Annotated[str, typer.Option(help="Scales k of it, separated by commas.")] = "1",
    query_length: Annotated[int, typer.Option(min=3, help="Tokens of a query.")] = 256,
    document_length: Annotated[int, typer.Option(min=3, help="Tokens of a document.")] = 256,
    settings: SettingsText = None,
    rescale: Annotated[str | None, typer.Option(help="Rescale settings as JSON.")] = None,
    revision: Annotated[str, typer.Option(help="Commit, tag or branch on the hub.")] = "main",
    threads: Threads = None,
) -> None:
    """Measure the row norms of a masked language model's output projection; print them."""
    from splade_rescale.hub import local_backbone
    from splade_rescale.norms import format_norms, measure
    from splade_rescale.settings import NormsSettings, RescaleSettings

    if (activation is None) != (dataset is None):
        raise UserError("--activation and --dataset go together: give both or neither")
    measured = measure(
        local_backbone(model, revision),
        read_settings(NormsSettings, settings),
        out=out,
        activation=activation,
        train=dataset / "train.parquet" if dataset else None,
        scales=scales.split(","),
        rescale=read_settings(RescaleSettings, rescale),
        query_length=query_length,
        document_length=document_length,
    )
    typer.echo(format_norms(model, measured))


@commands.command("norms-table")
def norms_table(
    backbones: Annotated[list[str], typer.Argument(help="Slugs, in the order of the rows.")],
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
) -> None:
    """Write results/norms.csv and results/activation.csv from the files of each backbone."""
    from splade_rescale.norms_table import write_norms_tables

    write_norms_tables(backbones, results)
