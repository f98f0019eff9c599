"""Divide the MLM head of a checkpoint by k, once, and write an ordinary checkpoint again."""

import math
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForMaskedLM, PreTrainedModel

from splade_rescale.checksums import SUMS, sha256
from splade_rescale.errors import UserError
from splade_rescale.files import atomic_folder, read_json, write_json
from splade_rescale.head import (
    check_vocabulary,
    load_masked_lm,
    load_tokenizer,
    save_masked_lm,
    scale_head,
)
from splade_rescale.row_norms import head_norms
from splade_rescale.settings import RescaleSettings

PROVENANCE = "rescale.json"


def rescale(
    source: str | Path,
    out: str | Path,
    k: float,
    settings: RescaleSettings,
    *,
    trust_remote_code: bool = False,
) -> None:
    """Write the checkpoint `source` with W <- W / k to `out`; nothing is ever scaled twice.

    Weights are read as float32, divided once and written as float32, also where the source holds
    half-precision ones. With k = 1 all values stay as they are. `out` gets model, tokenizer and
    rescale.json: k and options, digests of the source's files, its backbone.json, the head's norms
    before and after. Plain `AutoModelForMaskedLM.from_pretrained` reloads the scaled weights,
    which is checked before `out` appears. Where `out` already is this very result, it is left
    untouched.

    Args:
        source: checkpoint folder with tokenizer.
        out: folder to write.
        k: finite and above 0.
        settings: what is divided.
        trust_remote_code: run Python code that the checkpoint names.

    Raises:
        UserError: k is out of range; the source cannot be used, or is already rescaled; `out` is
            the source, or holds something else than a rescaled checkpoint.
    """
    source, out = Path(source), Path(out)
    if not (math.isfinite(k) and k > 0):
        raise UserError(f"k must be a finite number above 0, found {k!r}")
    if (source / PROVENANCE).exists():
        found = read_json(source / PROVENANCE).get("k")
        raise UserError(
            f"{source}: already rescaled by k = {found}; start from the original checkpoint"
        )
    if source.resolve() == out.resolve():
        raise UserError(f"{out}: the rescaled checkpoint cannot replace its source")
    if not source.is_dir():
        raise UserError(f"{source}: no such checkpoint folder")

    made_of: dict[str, Any] = {
        "k": int(k) if k == int(k) else k,
        "tying": settings.tying,
        "bias": settings.bias,
        "source_files": _digests(source),
    }
    if _is_result(out, made_of):
        return

    model = load_masked_lm(source, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
    try:
        tokens = check_vocabulary(model, tokenizer)
        before = head_norms(model)
        scale_head(model, k, tying=settings.tying, bias=settings.bias)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error

    backbone = source / "backbone.json"
    with atomic_folder(out, sums=True) as folder:
        save_masked_lm(model, folder)
        tokenizer.save_pretrained(folder)
        _check_reload(folder, model, trust_remote_code=trust_remote_code)
        write_json(
            folder / PROVENANCE,
            {
                **made_of,
                "source": str(source),
                "backbone": read_json(backbone) if backbone.exists() else None,
                "tokens": tokens,
                "norms_before": before,
                "norms_after": head_norms(model),
                "files": _digests(folder),
                "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            },
        )


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the folder's files: weights, configuration and tokenizer."""
    digests = {}
    for path in sorted(folder.iterdir()):
        hidden = path.name.startswith(".")
        if path.is_file() and not hidden and path.name not in {PROVENANCE, "backbone.json", SUMS}:
            digests[path.name] = sha256(path)
    return digests


def _is_result(out: Path, made_of: dict[str, Any]) -> bool:
    """Whether `out` is already, whole and unchanged, what `made_of` gives.

    Raises:
        UserError: `out` holds files that this command did not write, and would be lost.
    """
    if not (out / PROVENANCE).exists():
        if out.exists() and (
            not out.is_dir() or any(not path.name.startswith(".") for path in out.iterdir())
        ):
            raise UserError(f"{out}: exists, and is no rescaled checkpoint; choose another folder")
        return False
    found = read_json(out / PROVENANCE)
    same = all(found.get(key) == value for key, value in made_of.items())
    return same and found.get("files") == _digests(out)


def _check_reload(folder: Path, model: PreTrainedModel, *, trust_remote_code: bool) -> None:
    """Check that plain transformers finds exactly the weights that were saved."""
    reloaded = AutoModelForMaskedLM.from_pretrained(
        folder, local_files_only=True, trust_remote_code=trust_remote_code, dtype=torch.float32
    )
    found = reloaded.state_dict()
    for name, saved in model.state_dict().items():
        if name not in found or not torch.equal(saved, found[name]):
            raise UserError(
                f"{type(model).__name__}: {name} does not survive saving and loading; this "
                "architecture cannot be rescaled so (try the other tying)"
            )
