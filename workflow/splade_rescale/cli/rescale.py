"""Divide a head by k, or choose k."""

from pathlib import Path
from typing import Annotated

import typer

from splade_rescale.cli.options import ExistingFolder, SettingsText, Threads, read_settings
from splade_rescale.errors import UserError

commands = typer.Typer()


@commands.command()
def rescale(
    model: ExistingFolder,
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    k: Annotated[
        str | None, typer.Option(help="Divisor of the head, or auto (needs --dataset).")
    ] = None,
    k_from: Annotated[
        Path | None, typer.Option(help="auto.json that choose-k wrote, instead of --k.")
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="Data set folder whose train.parquet k: auto is chosen on.")
    ] = None,
    tying: Annotated[
        str, typer.Option(help="shared: scale the tied matrix; untied: the output projection only.")
    ] = "shared",
    bias: Annotated[str, typer.Option(help="scale or keep the output bias.")] = "scale",
    threads: Threads = None,
) -> None:
    """Divide a checkpoint's MLM head by k, once; write a plain transformers checkpoint."""
    from splade_rescale.config import validate
    from splade_rescale.files import read_json_object
    from splade_rescale.rescale import rescale as run
    from splade_rescale.scale import AUTO, canonical_k
    from splade_rescale.settings import NormsSettings, RescaleSettings

    options = validate(RescaleSettings, {"tying": tying, "bias": bias}, "rescale")
    if (k is None) == (k_from is None):
        raise UserError("give either --k or --k-from")
    if k_from is not None:
        k = read_json_object(k_from).get("k")
        if k is None:
            raise UserError(f"{k_from}: has no k; expected the file that choose-k wrote")
    elif k == AUTO:
        from splade_rescale.choose_k import choose_k as choose

        if dataset is None:
            raise UserError("--k auto needs --dataset, a folder with train.parquet to choose on")
        k = choose(model, dataset / "train.parquet", NormsSettings(), options)["k"]
        typer.echo(f"k = {k}")
    run(model, out, float(canonical_k(k)), options)


@commands.command("choose-k")
def choose_k(
    model: ExistingFolder,
    out: Annotated[Path, typer.Argument(help="JSON file to write.")],
    dataset: Annotated[Path, typer.Option(help="Data set folder whose train.parquet is sampled.")],
    query_length: Annotated[int, typer.Option(min=3, help="Tokens of a query.")] = 256,
    document_length: Annotated[int, typer.Option(min=3, help="Tokens of a document.")] = 256,
    settings: SettingsText = None,
    rescale: Annotated[str | None, typer.Option(help="Rescale settings as JSON.")] = None,
    threads: Threads = None,
) -> None:
    """Choose k for a backbone before training, where its initial contrastive loss is smallest."""
    from splade_rescale.choose_k import choose_k as run
    from splade_rescale.settings import NormsSettings, RescaleSettings

    choice = run(
        model,
        dataset / "train.parquet",
        read_settings(NormsSettings, settings),
        read_settings(RescaleSettings, rescale),
        out=out,
        query_length=query_length,
        document_length=document_length,
    )
    doubt = "" if choice["reliable"] else " (no clear minimum: do not rely on it)"
    typer.echo(
        f"k = {choice['k']}: initial loss {choice['first_loss']:.4f}, "
        f"chance {choice['chance']:.4f}{doubt}"
    )
