"""Check a configuration; write its JSON schemas."""

from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer(no_args_is_help=True, help="Check a configuration; write its JSON schemas.")


@commands.command("check")
def config_check(
    config_file: Annotated[Path, typer.Argument(metavar="CONFIG")],
    registries: Annotated[Path, typer.Option(help="Folder of the registries.")] = Path("config"),
) -> None:
    """Validate a configuration and say how large its grid is."""
    from splade_rescale.config import read_experiment

    experiment = read_experiment(config_file, registries)
    grid = experiment.grid()
    trainings = sum(
        len(arm.backbones) * len(arm.scales) * len(arm.seeds) for arm in grid.arms.values()
    )
    typer.echo(f"{config_file}: {trainings} trainings, {trainings * len(grid.measures)} cells")


@commands.command("schema")
def config_schema(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("config/schema"),
) -> None:
    """Write the JSON schemas that editors check the configuration with."""
    from splade_rescale.config import json_schemas
    from splade_rescale.files import write_json

    for file, schema in json_schemas().items():
        write_json(out / file, schema)
