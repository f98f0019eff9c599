"""What an experiment costs."""

from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer()


@commands.command("costs")
def costs_command(
    config_file: Annotated[Path, typer.Argument(metavar="CONFIG")],
    registries: Annotated[Path, typer.Option(help="Folder of the registries.")] = Path("config"),
    sizes: Annotated[Path, typer.Option(help="Folder with backbones.csv and datasets.csv.")] = Path(
        "config/sizes"
    ),
    gpu_tflops: Annotated[
        float | None, typer.Option(min=0.001, help="A GPU's peak, 10^12 operations a second.")
    ] = None,
    share: Annotated[
        float | None, typer.Option(min=0.001, max=1, help="Part of the peak that is reached.")
    ] = None,
    query_tokens: Annotated[
        float | None, typer.Option(min=1, help="Of a training query, padding included.")
    ] = None,
    passage_tokens: Annotated[
        float | None, typer.Option(min=1, help="Of a training passage, padding included.")
    ] = None,
    pieces_per_word: Annotated[float | None, typer.Option(min=0.1, help="Tokens per word.")] = None,
    padding: Annotated[
        float | None, typer.Option(min=1, help="Tokens with padding over tokens, in encoding.")
    ] = None,
    terms: Annotated[float | None, typer.Option(min=0, help="Active terms of a document.")] = None,
    index_bytes: Annotated[
        float | None, typer.Option(min=0, help="Bytes of the index per posting.")
    ] = None,
    run_bytes: Annotated[
        float | None, typer.Option(min=0, help="Bytes of a run file per hit.")
    ] = None,
) -> None:
    """Count operations, GPU hours, disk and memory of a configuration, on paper."""
    from splade_rescale.config import read_experiment
    from splade_rescale.costs import Assumptions, costs, format_costs

    given = {
        "gpu_tflops": gpu_tflops,
        "share": share,
        "query_tokens": query_tokens,
        "passage_tokens": passage_tokens,
        "pieces_per_word": pieces_per_word,
        "padding": padding,
        "terms": terms,
        "index_bytes": index_bytes,
        "run_bytes": run_bytes,
    }
    assume = Assumptions(**{name: value for name, value in given.items() if value is not None})
    experiment = read_experiment(config_file, registries)
    typer.echo(format_costs(costs(experiment, sizes, assume), assume))
