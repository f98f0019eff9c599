"""Get a data set or a backbone."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from splade_rescale.cli.options import Threads, show_bars
from splade_rescale.errors import UserError

commands = typer.Typer(no_args_is_help=True, help="Get a data set or a backbone.")


def _registry_entry(kind: str, name: str, text: str | None) -> Any:
    from splade_rescale.config import Registry, read_yaml, validate

    if text is not None:
        try:
            entries, source = {name: json.loads(text)}, "--entry"
        except json.JSONDecodeError as error:
            raise UserError(f"--entry: not valid JSON ({error})") from None
    else:
        path = Path("config") / f"{kind}.yaml"
        entries, source = read_yaml(path), str(path)
    registry = getattr(validate(Registry, {kind: entries}, source), kind)
    if name not in registry:
        raise UserError(f"{source}: no entry {name!r}; known: {', '.join(sorted(registry))}")
    return registry[name]


Entry = Annotated[
    str | None,
    typer.Option(help="Registry entry as JSON; looked up in config/ of this folder if unset."),
]


@commands.command("dataset")
def download_dataset_command(
    name: Annotated[str, typer.Argument(help="Slug of the data set.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    entry: Entry = None,
    corpus_from: Annotated[
        Path | None, typer.Option(help="Data set folder whose corpus this one shares.")
    ] = None,
) -> None:
    """Write corpus.parquet, queries.parquet, qrels.parquet and train.parquet of a data set."""
    from splade_rescale.download import download_dataset

    download_dataset(name, _registry_entry("datasets", name, entry), out, corpus_from)


@commands.command("backbone")
def download_backbone_command(
    name: Annotated[str, typer.Argument(help="Slug of the backbone.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    entry: Entry = None,
    of: Annotated[Path | None, typer.Option(help="Folder of a twin's backbone.")] = None,
    train: Annotated[
        Path | None, typer.Option(help="Data set folder whose train.parquet is pretrained on.")
    ] = None,
    threads: Threads = None,
) -> None:
    """Write a backbone as a plain transformers checkpoint folder."""
    from splade_rescale.download import download_backbone

    download_backbone(
        name,
        _registry_entry("backbones", name, entry),
        out,
        of=of,
        train=train / "train.parquet" if train else None,
        progress=show_bars(),
    )
