"""Model cards."""

from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer()


@commands.command()
def card(
    models: Annotated[
        list[Path], typer.Argument(exists=True, file_okay=False, help="Trained model folders.")
    ],
) -> None:
    """Write README.md into trained model folders: what they are, scores, how to load them."""
    from splade_rescale.card import write_card

    for model in models:
        write_card(model)
