"""Divide a head by k, or choose k."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from splade_rescale.cli.options import ExistingFolder, SettingsText, Threads, read_settings
from splade_rescale.errors import UserError

commands = typer.Typer()


@commands.command()
def rescale(
    model: Annotated[str, typer.Argument(help="Checkpoint folder, or a repository on the hub.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    k: Annotated[str | None, typer.Option(help="Divisor of the head, or auto.")] = None,
    k_from: Annotated[
        Path | None, typer.Option(help="auto.json that choose-k wrote, instead of --k.")
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            help="Text that k: auto is chosen on, .jsonl[.gz] or .parquet with query and positive; "
            "docstrings of installed packages if unset."
        ),
    ] = None,
    tying: Annotated[
        str, typer.Option(help="shared: scale the tied matrix; untied: the output projection only.")
    ] = "shared",
    bias: Annotated[str, typer.Option(help="scale or keep the output bias.")] = "scale",
    revision: Annotated[str, typer.Option(help="Commit, tag or branch on the hub.")] = "main",
    threads: Threads = None,
) -> None:
    """Divide a checkpoint's MLM head by k, once; write a plain transformers checkpoint."""
    from splade_rescale.config import validate
    from splade_rescale.files import read_json_object
    from splade_rescale.hub import local_backbone
    from splade_rescale.rescale import rescale as run
    from splade_rescale.scale import AUTO, canonical_k
    from splade_rescale.settings import NormsSettings, RescaleSettings

    options = validate(RescaleSettings, {"tying": tying, "bias": bias}, "rescale")
    if (k is None) == (k_from is None):
        raise UserError("give either --k or --k-from")
    if pairs is not None and k != AUTO:
        raise UserError("--pairs is what --k auto is chosen on; give both, or not --pairs")
    if k_from is not None:
        k = read_json_object(k_from).get("k")
        if k is None:
            raise UserError(f"{k_from}: has no k; expected the file that choose-k wrote")
    number = None if k == AUTO else float(canonical_k(k))
    folder = local_backbone(model, revision)
    if number is None:
        from splade_rescale.choose_k import choose_k as choose
        from splade_rescale.text_pairs import write_pairs

        with TemporaryDirectory() as scratch:
            sample = Path(scratch, "pairs.parquet")
            write_pairs(sample, pairs)
            choice = choose(folder, sample, NormsSettings(), options)
        typer.echo(_described(choice))
        number = float(choice["k"])
    run(folder, out, number, options)


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
    typer.echo(_described(choice))


def _described(choice: dict) -> str:
    doubt = "" if choice["reliable"] else " (no clear minimum: do not rely on it)"
    return (
        f"k = {choice['k']}: initial loss {choice['first_loss']:.4f}, "
        f"chance {choice['chance']:.4f}{doubt}"
    )
