"""Train."""

import os
from pathlib import Path
from typing import Annotated

import typer

from splade_rescale.cli.options import (
    ExistingFolder,
    SettingsText,
    Threads,
    read_settings,
    show_bars,
)

commands = typer.Typer()


@commands.command()
def train(
    init: ExistingFolder,
    pairs: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="train.parquet")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    settings: SettingsText = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of order and dropout.")] = 42,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="What an interrupted run resumes from."),
    ] = None,
    threads: Threads = None,
) -> None:
    """Train SPLADE-max from a rescaled checkpoint. A collapsed run is a result, not an error."""
    from splade_rescale.gpus import acquire
    from splade_rescale.memory import keep_large_apart
    from splade_rescale.settings import TrainSettings

    recipe = read_settings(TrainSettings, settings)
    acquire(recipe.gpus, "train.gpus")
    if recipe.gpus == 0:
        keep_large_apart()  # before torch is imported
    from splade_rescale.train import train as run

    run(
        init,
        pairs,
        out,
        checkpoints or out.with_name(f"{out.name}.checkpoints"),
        recipe,
        seed,
        progress=show_bars(),
    )
    if os.environ.get("RANK", "0") == "0":  # the first process alone writes
        from splade_rescale.card import write_card

        write_card(out)
