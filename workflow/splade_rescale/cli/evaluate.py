"""Score runs; count active terms."""

import json
from pathlib import Path
from typing import Annotated

import typer

from splade_rescale.cli.options import ExistingFile

commands = typer.Typer()


@commands.command()
def evaluate(
    run: ExistingFile,
    qrels: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="qrels.parquet")],
    metrics: Annotated[Path, typer.Argument(help="metrics.json to write.")],
    per_query: Annotated[Path, typer.Argument(help="per_query.parquet to write.")],
    measures: Annotated[
        str, typer.Option(help="Measures as ir_measures prints them, separated by blanks.")
    ] = "nDCG@10 RR@10 R@100",
) -> None:
    """Score a run over all judged queries; a query without hits counts as 0."""
    from splade_rescale.evaluate import write_metrics

    found = write_metrics(run, qrels, measures.split(), metrics, per_query)
    typer.echo(json.dumps(found["measures"]))


@commands.command()
def sparsity(
    out: Annotated[Path, typer.Argument(help="JSON file to write.")],
    corpus: Annotated[list[Path], typer.Argument(exists=True, help=".npz shards of the corpus")],
    queries: Annotated[Path, typer.Option(exists=True, help="queries.npz")],
    quantization: Annotated[int, typer.Option(min=1, help="Quantisation of the index.")] = 100,
) -> None:
    """Count active terms and FLOPS of queries and documents."""
    from splade_rescale.files import write_json
    from splade_rescale.sparsity import sparsity as run

    write_json(out, run(queries, corpus, quantization))
