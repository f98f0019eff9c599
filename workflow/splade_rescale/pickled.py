"""Pickled weights into safetensors, without running what a pickle may hold.

Some repositories have no other weights (Ettin's main branch, many of the smaller BERTs).
"""

import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from splade_rescale.errors import UserError


def convert(pickles: Sequence[Path], out: Path) -> None:
    """Write the tensors of `pickles` (one file, or all shards of a model) into the file `out`.

    Raises:
        UserError: names the file that is damaged, or holds anything but tensors by name.
    """
    weights: dict[str, torch.Tensor] = {}
    for path in pickles:
        mapped = zipfile.is_zipfile(path)
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"{path}: cannot be read as pickled weights; damaged, or it asks for code to be "
                f"run ({reason})"
            ) from error
        tensors = isinstance(state, dict) and all(
            isinstance(name, str) and isinstance(value, torch.Tensor)
            for name, value in state.items()
        )
        if not tensors:
            raise UserError(f"{path}: expected tensors by name, found {type(state).__name__}")
        weights |= state
    # Tied matrices are two names of one storage, which safetensors refuses.
    own = {name: value.clone().contiguous() for name, value in weights.items()}
    save_file(own, out, metadata={"format": "pt"})
