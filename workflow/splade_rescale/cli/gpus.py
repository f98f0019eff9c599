"""GPUs of this machine."""

from typing import Annotated

import typer

commands = typer.Typer()


@commands.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def with_gpus(
    count: Annotated[int, typer.Argument(min=1, help="GPUs to take; waits until they are free.")],
    command: Annotated[list[str], typer.Argument(help="Program and its arguments: one job.")],
) -> None:
    """Run one job on GPUs of this machine that no other job of this tool has."""
    from splade_rescale.gpus import run

    run(count, command)
