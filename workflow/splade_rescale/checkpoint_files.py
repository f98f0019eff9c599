"""The files that make a checkpoint folder."""

import shutil
from pathlib import Path

from safetensors import SafetensorError, safe_open

from splade_rescale.checksums import check_sums
from splade_rescale.errors import UserError

# Configuration, vocabulary, and weights in safetensors, which run no code when they are loaded.
CHECKPOINT_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
# One of these is there in every checkpoint with a tokenizer that transformers loads.
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


def copy_checkpoint(source: Path, folder: Path) -> list[str]:
    """Copy the checkpoint's own files (not, say, optimizer states), following links.

    Returns:
        The names of the files, sorted.

    Raises:
        UserError: there is no such folder, or a file of it differs from its SHA256SUMS.
    """
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; expected a checkpoint folder")
    check_sums(source, *CHECKPOINT_FILES)
    files = {path.name for glob in CHECKPOINT_FILES for path in source.glob(glob)}
    files = sorted(name for name in files - {"backbone.json"} if (source / name).is_file())
    for name in files:
        shutil.copyfile(source / name, folder / name)
    return files


def check_checkpoint(folder: Path, origin: str) -> None:
    """Check that configuration, weights and tokenizer are there, and that weights are whole.

    Raises:
        UserError: names `origin` and what is missing or damaged.
    """
    for wanted, globs in {
        "config.json": ("config.json",),
        "weights (*.safetensors; convert others with transformers' save_pretrained)": (
            "*.safetensors",
        ),
        f"tokenizer ({', '.join(TOKENIZER_FILES)})": TOKENIZER_FILES,
    }.items():
        if not any(path.is_file() for glob in globs for path in folder.glob(glob)):
            found = sorted(path.name for path in folder.iterdir())
            raise UserError(f"{origin}: no {wanted}; usable files found: {found}")
    for path in folder.glob("*.safetensors"):
        try:
            with safe_open(path, framework="numpy"):
                pass
        except SafetensorError as error:
            raise UserError(
                f"{origin}: {path.name} is truncated, or not a safetensors file ({error})"
            ) from None
