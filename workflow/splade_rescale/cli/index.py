"""Build an index."""

from pathlib import Path
from typing import Annotated

import typer

from splade_rescale.cli.options import MemoryMb, SettingsText, Workers, read_settings, show_bars

commands = typer.Typer(no_args_is_help=True, help="Build an index.")


@commands.command("impact")
def index_impact(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    vectors: Annotated[
        list[Path], typer.Argument(exists=True, dir_okay=False, help=".npz shards in corpus order")
    ],
    settings: SettingsText = None,
    threads: Workers = None,
    memory_mb: MemoryMb = None,
) -> None:
    """Index the vectors of a corpus, by the engine that the settings name (lucene if none)."""
    from splade_rescale.index import build_impact_index
    from splade_rescale.settings import IndexSettings

    build_impact_index(
        vectors,
        out,
        read_settings(IndexSettings, settings),
        threads=threads,
        memory_mb=memory_mb,
        progress=show_bars(),
    )


@commands.command("bm25")
def index_bm25(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    corpus: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="corpus.parquet")],
    threads: Workers = None,
    memory_mb: MemoryMb = None,
) -> None:
    """Build a BM25 index from the text of a corpus."""
    from splade_rescale.index import build_bm25_index

    build_bm25_index(
        corpus,
        out,
        threads=threads,
        memory_mb=memory_mb,
        progress=show_bars(),
    )
