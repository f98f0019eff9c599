"""Turn texts into sparse vectors."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splade_rescale.cli.options import (
    Device,
    ExistingFolder,
    SettingsText,
    Workers,
    read_settings,
    show_bars,
)

if TYPE_CHECKING:
    from splade_rescale.settings import EncodeSettings

commands = typer.Typer(no_args_is_help=True, help="Turn texts into sparse vectors.")


def _settings(text: str | None, device: str | None) -> "EncodeSettings":
    """Read the settings, and take the GPU that they ask for unless a device is named."""
    from splade_rescale.gpus import acquire
    from splade_rescale.settings import EncodeSettings

    settings = read_settings(EncodeSettings, text)
    if device is None:
        acquire(settings.gpus, "encode.gpus")
    return settings


@commands.command("dataset")
def encode_dataset_command(
    model: ExistingFolder,
    dataset: ExistingFolder,
    corpus_out: Annotated[Path, typer.Argument(help="The .npz of the corpus to write.")],
    queries_out: Annotated[Path, typer.Argument(help="The .npz of the queries to write.")],
    settings: SettingsText = None,
    device: Device = None,
    threads: Workers = None,
) -> None:
    """Encode corpus and queries of a data set folder; ids and statistics lie beside each .npz."""
    chosen = _settings(settings, device)
    from splade_rescale.encode import encode_corpus, encode_queries

    options = {"device": device, "threads": threads, "progress": show_bars()}
    encode_corpus(model, dataset / "corpus.parquet", corpus_out, chosen, **options)
    encode_queries(model, dataset / "queries.parquet", queries_out, chosen, **options)


@commands.command("corpus")
def encode_corpus_command(
    model: ExistingFolder,
    corpus: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="corpus.parquet")],
    out: Annotated[Path, typer.Argument(help="The .npz to write; ids and statistics lie beside.")],
    shard: Annotated[int, typer.Option(min=0, help="Number of the shard, from 0.")] = 0,
    shards: Annotated[int, typer.Option(min=1, help="Shards of the corpus.")] = 1,
    settings: SettingsText = None,
    device: Device = None,
    threads: Workers = None,
) -> None:
    """Encode one shard of a corpus."""
    chosen = _settings(settings, device)
    from splade_rescale.encode import encode_corpus

    encode_corpus(
        model,
        corpus,
        out,
        chosen,
        shard=shard,
        shards=shards,
        device=device,
        threads=threads,
        progress=show_bars(),
    )


@commands.command("queries")
def encode_queries_command(
    model: ExistingFolder,
    queries: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="queries.parquet")],
    out: Annotated[Path, typer.Argument(help="The .npz to write; ids and statistics lie beside.")],
    settings: SettingsText = None,
    device: Device = None,
    threads: Workers = None,
) -> None:
    """Encode all queries of a data set."""
    chosen = _settings(settings, device)
    from splade_rescale.encode import encode_queries

    encode_queries(
        model,
        queries,
        out,
        chosen,
        device=device,
        threads=threads,
        progress=show_bars(),
    )
