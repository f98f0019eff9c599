"""Snapshots of hub repositories: data sets in data files, and checkpoints.

The hub client honours HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE and the login of `hf auth login`.
"""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import huggingface_hub
from huggingface_hub import constants, errors
from huggingface_hub.utils import disable_progress_bars, filter_repo_objects, validate_repo_id

from splade_rescale.beir import judged_tables, read_train
from splade_rescale.checkpoint_files import CHECKPOINT_FILES
from splade_rescale.checksums import sha256
from splade_rescale.errors import UserError
from splade_rescale.schemas import Batches, Parts
from splade_rescale.settings import HubBackbone, HubDataset, HubFiles

_PICKLED = "pytorch_model*.bin"


class Snapshot(NamedTuple):
    """Files of a repository at one commit, in the hub's cache (there they may be links)."""

    folder: Path
    commit: str
    files: list[str]


@contextmanager
def explained(repository: str, revision: str) -> Iterator[None]:
    """Turn what the hub client raises into a UserError that says what to do."""
    where = f"hub repository {repository} at revision {revision}"
    login = "log in with `hf auth login` (or set HF_TOKEN)"
    cache = f"HF_HOME cache {constants.HF_HUB_CACHE}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(
            f"{where}: access is gated; accept its conditions on its page at "
            f"{constants.ENDPOINT} and {login}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{where}: not found at {constants.ENDPOINT}; check the id, and if it is private, "
            f"{login}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(
            f"{where}: no such revision; check it, expected a commit, tag or branch"
        ) from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        if constants.HF_HUB_OFFLINE:
            raise UserError(
                f"{where}: not (wholly) in the {cache} and HF_HUB_OFFLINE is set; unset it, or "
                "download once where there is a network and set HF_HOME to that cache"
            ) from error
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise UserError(
            f"{where}: {constants.ENDPOINT} gave no usable answer and the repository is not "
            f"(wholly) in the {cache}; check network, proxy and HF_ENDPOINT ({reason})"
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        advice = login if status in (401, 403) else "try again later"
        raise UserError(f"{where}: the hub answered {status}; {advice} ({error})") from error
    except (errors.HTTPError, ConnectionError, TimeoutError) as error:
        raise UserError(
            f"{where}: connection to {constants.ENDPOINT} failed; check network, proxy and "
            f"HF_ENDPOINT ({type(error).__name__}: {error})"
        ) from error
    except ValueError as error:
        # The client's validation: a malformed id, or a file name that leads out of its folder.
        raise UserError(f"{where}: refused by the hub client ({error})") from error


def snapshot(
    repository: str,
    revision: str,
    patterns: tuple[str, ...],
    *,
    kind: str,
    ignore: tuple[str, ...] = (),
) -> Snapshot:
    """Download (or find in the cache) the files that match the globs `patterns`.

    Args:
        repository: `owner/name`.
        revision: commit, tag or branch.
        patterns: file names or globs, where `*` also crosses `/`.
        kind: "model" or "dataset".
        ignore: globs of files left out.

    Raises:
        UserError: unreachable, not found, not allowed; a pattern that matches no file or leads out
            of the repository.
    """
    where = f"hub repository {repository} at revision {revision}"
    for pattern in patterns:
        if PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts:
            raise UserError(f"{where}: file {pattern!r} leads out of the repository")
    if not sys.stderr.isatty():
        disable_progress_bars()  # The client would draw them into a log file
    with explained(repository, revision):
        folder = Path(
            huggingface_hub.snapshot_download(
                repository,
                repo_type=kind,
                revision=revision,
                allow_patterns=list(patterns),
                ignore_patterns=list(ignore),
            )
        )
    # The cache may hold other files of this commit from earlier downloads.
    present = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    files = sorted(filter_repo_objects(present, allow_patterns=patterns, ignore_patterns=ignore))
    commit = folder.name
    if not re.fullmatch("[0-9a-f]{40}", commit):
        raise UserError(f"{where}: {folder} is not the cached snapshot of a commit")
    for name in files:
        _check_blob(where, folder / name)
    return Snapshot(folder, commit, files)


def _check_blob(where: str, path: Path) -> None:
    """Check a file of the cache against the hash that it is named after, where it is a link.

    The client checks the size of what it downloads, and nothing of what it finds.

    Raises:
        UserError: the file is damaged.
    """
    blob = path.resolve()
    if not path.is_symlink() or not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
        return
    if len(blob.name) == 64:
        digest = sha256(blob)
    else:  # of small files, git's own
        content = blob.read_bytes()
        header = f"blob {len(content)}\0".encode()
        digest = hashlib.sha1(header + content, usedforsecurity=False).hexdigest()
    if digest != blob.name:
        raise UserError(
            f"{where}: {path} is not what the hub sent, it was damaged in the cache; remove {blob} "
            "to have it fetched again"
        )


def _data_files(wanted: HubFiles) -> tuple[list[Path], dict[str, Any]]:
    found = snapshot(wanted.id, wanted.revision, tuple(wanted.files), kind="dataset")
    for pattern in wanted.files:
        if not any(filter_repo_objects(found.files, allow_patterns=pattern)):
            raise UserError(
                f"hub repository {wanted.id} at revision {wanted.revision}: "
                f"no file matches {pattern!r}"
            )
    provenance = {"id": wanted.id, "commit": found.commit, "files": found.files}
    return [found.folder / name for name in found.files], provenance


def read_dataset(entry: HubDataset) -> Parts:
    """The tables of a hub data set; provenance has the commit and the files of each part.

    Queries without a judgement are left out: repositories hold the queries of all splits.

    Raises:
        UserError: as `snapshot` does, and (when the tables are used) as the readers of beir.py do.
    """
    parts = {
        part: _data_files(files)
        for part in ("corpus", "queries", "qrels", "train")
        if (files := getattr(entry, part)) is not None
    }
    files = {part: paths for part, (paths, _) in parts.items()}
    tables: dict[str, Batches] = {}
    if entry.queries is not None:
        tables |= judged_tables(
            files.get("corpus", []), files["queries"], files["qrels"], only_judged=True
        )
        if entry.corpus_from is not None:
            del tables["corpus"]
    if entry.train is not None:
        tables["train"] = read_train(files["train"])
    return Parts(tables, {"hub": {part: provenance for part, (_, provenance) in parts.items()}})


def download_checkpoint(
    entry: HubBackbone, folder: Path, patterns: tuple[str, ...]
) -> dict[str, Any]:
    """Put a repository's files that match `patterns` into the existing `folder`, as plain files.

    The repository's own code comes along only where the entry trusts it. Where it has no
    safetensors and the entry allows it, its pickled weights become a model.safetensors, without
    running any code.

    Returns:
        provenance: commit and files.

    Raises:
        UserError: as `snapshot` and `pickled.convert` do, or there are only pickled weights and
            the entry does not allow them.
    """
    patterns += ("*.py",) if entry.trust_remote_code else ()

    def fetch(*more: str) -> Snapshot:
        # Subfolders hold other formats (onnx, coreml) of the same weights.
        wanted = patterns + more
        return snapshot(entry.id, entry.revision, wanted, kind="model", ignore=("*/*",))

    found, pickles = fetch(), []
    if not any(name.endswith(".safetensors") for name in found.files):
        if not entry.allow_pickled_weights:
            raise UserError(
                f"hub repository {entry.id} at revision {entry.revision}: has no *.safetensors; "
                "choose a revision that has, or set allow_pickled_weights: true in its registry "
                "entry to convert pytorch_model*.bin without running the code in it"
            )
        found = fetch(_PICKLED)
        pickles = sorted(filter_repo_objects(found.files, allow_patterns=_PICKLED))
    if pickles:
        from splade_rescale.pickled import convert

        convert([found.folder / name for name in pickles], folder / "model.safetensors")
    for name in found.files:
        # The index of pickled shards would be of no use to what is one file now.
        if name not in pickles and not name.endswith(".bin.index.json"):
            shutil.copyfile(found.folder / name, folder / name)
    return {"commit": found.commit, "files": found.files}


def local_backbone(model: str, revision: str = "main") -> Path:
    """The folder of a checkpoint that lies in a folder or on the hub.

    Args:
        model: an existing folder, which is taken as it is, or a repository id (`owner/name`, or
            `name` for the oldest), whose configuration, tokenizer and weights are fetched into
            the hub's cache. A folder goes before a repository of the same name.
        revision: commit, tag or branch of the repository.

    Raises:
        UserError: neither a folder nor a repository id; for a repository, as `snapshot` does.
    """
    folder = Path(os.path.expanduser(model))  # Path's own method fails on an unknown user
    if model and folder.is_dir():  # an empty path would be the working directory
        return folder
    try:
        validate_repo_id(model)
    except errors.HFValidationError:
        raise UserError(
            f"{model!r} is neither an existing folder nor the id of a hub repository (owner/name)"
        ) from None
    try:
        return snapshot(model, revision, CHECKPOINT_FILES, kind="model", ignore=("*/*",)).folder
    except UserError as error:
        raise UserError(f"{model!r} is no existing folder, and {error}") from error
