"""Check the installation, the machine and a configuration."""

import sys
from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer()


@commands.command()
def doctor(
    config_file: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="Configuration to be run.")
    ] = None,
    registries: Annotated[Path, typer.Option(help="Folder of the registries.")] = Path("config"),
) -> None:
    """Say what is wrong here, and the command that mends it; exits with 1 where a check fails."""
    from splade_rescale.doctor import examine, format_findings

    findings = [*examine(config_file, registries, Path.cwd())]
    text, encoding = format_findings(findings), sys.stdout.encoding or "ascii"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding))
    if any(each.state == "fail" for each in findings):
        sys.exit(1)
