"""Retrieve with an index."""

from pathlib import Path
from typing import Annotated

import typer

from splade_rescale.cli.options import MemoryMb, SettingsText, Workers, read_settings, show_bars

commands = typer.Typer(no_args_is_help=True, help="Retrieve with an index; write a TREC run.")


SelfHits = Annotated[
    bool, typer.Option("--remove-self-hits", help="Drop hits whose doc_id is the query_id.")
]
StatsFile = Annotated[Path | None, typer.Option(help="JSON file of statistics to write.")]


@commands.command("impact")
def search_impact_command(
    index_folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, metavar="INDEX")],
    queries: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="queries.npz")],
    run: Annotated[Path, typer.Argument(help="run.trec.gz to write.")],
    corpus: Annotated[
        list[Path] | None,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help=".npz shards that were indexed, to measure agreement with exact search.",
        ),
    ] = None,
    settings: SettingsText = None,
    stats: StatsFile = None,
    remove_self_hits: SelfHits = False,
    threads: Workers = None,
    memory_mb: MemoryMb = None,
) -> None:
    """Search an impact index with encoded queries, by the engine that built it."""
    from splade_rescale.files import write_json
    from splade_rescale.search import search_impact
    from splade_rescale.settings import SearchSettings

    found = search_impact(
        index_folder,
        queries,
        run,
        read_settings(SearchSettings, settings),
        remove_self_hits=remove_self_hits,
        corpus=corpus or [],
        threads=threads,
        memory_mb=memory_mb,
        progress=show_bars(),
    )
    if stats:
        write_json(stats, found)


@commands.command("bm25")
def search_bm25_command(
    index_folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, metavar="INDEX")],
    queries: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="queries.parquet")],
    run: Annotated[Path, typer.Argument(help="run.trec.gz to write.")],
    settings: SettingsText = None,
    bm25: Annotated[str | None, typer.Option(help="k1 and b as JSON.")] = None,
    stats: StatsFile = None,
    remove_self_hits: SelfHits = False,
    threads: Workers = None,
    memory_mb: MemoryMb = None,
) -> None:
    """Search a BM25 index with query text."""
    from splade_rescale.files import write_json
    from splade_rescale.search import search_bm25
    from splade_rescale.settings import Bm25Settings, SearchSettings

    found = search_bm25(
        index_folder,
        queries,
        run,
        read_settings(SearchSettings, settings),
        read_settings(Bm25Settings, bm25),
        remove_self_hits=remove_self_hits,
        threads=threads,
        memory_mb=memory_mb,
        progress=show_bars(),
    )
    if stats:
        write_json(stats, found)
