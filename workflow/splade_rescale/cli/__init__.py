"""The command line `splade-rescale`: a thin layer over the stage modules.

Stage modules are imported inside the commands, so that `--help` and light stages do not pay for
torch, and so that thread limits are in the environment before any library reads them.
"""

import os
import sys
import traceback

import typer

from splade_rescale.cli import (
    card,
    config,
    costs,
    doctor,
    download,
    encode,
    evaluate,
    gpus,
    index,
    norms,
    report,
    rescale,
    search,
    show,
    table,
    train,
)
from splade_rescale.cli.options import limit_threads, show_bars
from splade_rescale.errors import UserError, without_secrets

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Which pretrained encoder, at which MLM-head scale, makes the best learned sparse "
    "retriever? One command per stage; the Snakemake workflow calls the same commands.",
)
# Commands of a module without a name stand beside the groups.
app.add_typer(download.commands, name="download")
app.add_typer(norms.commands)
app.add_typer(rescale.commands)
app.add_typer(train.commands)
app.add_typer(gpus.commands)
app.add_typer(encode.commands, name="encode")
app.add_typer(index.commands, name="index")
app.add_typer(search.commands, name="search")
app.add_typer(evaluate.commands)
app.add_typer(table.commands)
app.add_typer(card.commands)
app.add_typer(doctor.commands)
app.add_typer(show.commands)
app.add_typer(report.commands, name="report")
app.add_typer(config.commands, name="config")
app.add_typer(costs.commands)


def main() -> None:
    """Run the command line; a user's mistake is printed as one message and exits with 1."""
    limit_threads(None)
    show_bars()
    try:
        app()
    except UserError as error:
        typer.echo(f"error: {without_secrets(str(error))}", err=True)
        sys.exit(1)
    except OSError as error:
        # Of a named file: no permission, no space, a file where a folder is expected, ...
        if error.filename is None:
            _echo_traceback()
            sys.exit(2)
        # Of two names, the second is what the file is renamed to.
        name = os.fsdecode(error.filename2 or error.filename)
        typer.echo(f"error: {name}: {error.strerror}", err=True)
        sys.exit(1)
    except Exception:
        _echo_traceback()
        sys.exit(2)


def _echo_traceback() -> None:
    typer.echo(without_secrets(traceback.format_exc()), err=True, nl=False)
