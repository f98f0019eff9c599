"""What several commands share: options, threads, settings, bars."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from splade_rescale.errors import UserError


def limit_threads(threads: int | None) -> int | None:
    """Limit every thread pool of this process; spinning OpenMP threads slow their neighbours.

    The processes that torchrun starts on a machine share the threads of their job.
    """
    if threads is not None:
        threads = max(1, threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[variable] = str(threads)
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return threads


def workers(threads: int | None) -> int:
    """`limit_threads`, and one thread for each processor where none are asked for."""
    return limit_threads(threads) or os.cpu_count() or 1


def known_device(device: str | None) -> str | None:
    """Refuse what is no torch device of a kind that the stages know."""
    if device is not None and not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        raise UserError(f"--device: expected cpu, cuda or cuda:NUMBER, found {device!r}")
    return device


def java_heap(memory_mb: int | None) -> int | None:
    """Three quarters of a job's memory; the rest is for Java itself, for Python and its arrays."""
    return None if memory_mb is None else memory_mb * 3 // 4


def read_settings(model: type[Any], text: str | None) -> Any:
    """Read settings given as JSON text, or as a JSON file in which they stand.

    A file written beside a result, such as train.json, has them under the key `settings`.
    """
    from splade_rescale.config import validate

    if text is None:
        return validate(model, {}, "--settings")
    if not text.strip():
        raise UserError("--settings: empty; expected JSON text or the name of a JSON file")
    if text.lstrip().startswith("{"):
        try:
            return validate(model, json.loads(text), "--settings")
        except json.JSONDecodeError as error:
            raise UserError(f"--settings: not valid JSON ({error})") from None
    from splade_rescale.files import read_json_object

    data = read_json_object(text)
    return validate(model, data.get("settings", data), text)


def show_bars() -> bool:
    """Progress bars are for people; a log file gets none, those of the libraries included."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return sys.stderr.isatty()


Threads = Annotated[
    int | None,
    typer.Option(min=1, callback=limit_threads, help="CPU threads; all cores if unset."),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, callback=workers, help="CPU threads; all cores if unset."),
]
MemoryMb = Annotated[
    int | None,
    typer.Option(
        min=256, callback=java_heap, help="Memory of the job, MB; Java's heap gets 3/4 of it."
    ),
]
SettingsText = Annotated[
    str | None,
    typer.Option(help="Settings as JSON text, or a JSON file (such as the one beside a result)."),
]
Device = Annotated[
    str | None,
    typer.Option(callback=known_device, help="cpu or cuda; as the settings say if unset."),
]
ExistingFolder = Annotated[Path, typer.Argument(exists=True, file_okay=False)]
ExistingFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False)]
