"""Data sets and backbones from their sources into resources/, whole or not at all.

Each source's module is imported where the source is chosen, so that a change of one source's code
concerns nothing that comes from another.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from huggingface_hub.utils import disable_progress_bars

from splade_rescale.checkpoint_files import CHECKPOINT_FILES, check_checkpoint, copy_checkpoint
from splade_rescale.errors import UserError
from splade_rescale.files import atomic_folder, read_json, write_json
from splade_rescale.schemas import SCHEMAS, Batches, Parts, train_schema
from splade_rescale.settings import (
    Backbone,
    Dataset,
    DatasetEntry,
    HubBackbone,
    HubDataset,
    PathBackbone,
    PathDataset,
    PretrainBackbone,
    PydocsDataset,
    TwinBackbone,
)


def download_dataset(name: str, entry: Dataset, out: Path, corpus_from: Path | None = None) -> None:
    """Write the folder `out` of a data set: its tables as Parquet, and dataset.json (provenance).

    Tables (columns as in `schemas.SCHEMAS`): corpus, queries and qrels together, train, or both, as
    the entry provides. dataset.json counts the rows of each, judgements of documents outside the
    corpus (allowed) and queries without a judgement (kept). A corpus shared with the data set in
    the folder `corpus_from` is linked, or copied where the file system cannot link.

    Raises:
        UserError: the source cannot be read, is malformed, has a table without rows, or judges
            only documents that are not in its corpus; or `out` holds something else.
    """
    parts, origin = _parts(entry), getattr(entry, "path", entry.source)
    with atomic_folder(out, mark="dataset.json") as folder:
        rows = {}
        for table, batches in parts.tables.items():
            rows[table] = _write_table(folder / f"{table}.parquet", batches)
            if rows[table] == 0:
                raise UserError(f"data set {name} ({origin}): {table} has no rows")
        if corpus_from is not None:
            _link(corpus_from / "corpus.parquet", folder / "corpus.parquet")
        provenance = {
            "name": name,
            "source": entry.source,
            "settings": entry.model_dump(mode="json", exclude=set(DatasetEntry.model_fields)),
            "rows": rows,
            **parts.provenance,
        }
        if "qrels" in rows:
            provenance |= _judgement_counts(folder)
            if provenance["qrels_outside_corpus"] == rows["qrels"]:
                document = pq.read_table(folder / "qrels.parquet", columns=["doc_id"])["doc_id"][0]
                raise UserError(
                    f"data set {name} ({origin}): none of the {rows['qrels']} judged documents is "
                    f"in the corpus; the first is {document.as_py()!r}"
                )
        write_json(folder / "dataset.json", provenance)


def _parts(entry: Dataset) -> Parts:
    if isinstance(entry, PathDataset):
        from splade_rescale import beir

        return beir.read_folder(entry)
    if isinstance(entry, HubDataset):
        from splade_rescale import hub

        return hub.read_dataset(entry)
    assert isinstance(entry, PydocsDataset)
    from splade_rescale import pydocs

    frames = pydocs.build(entry)
    if frames["train"].empty:
        del frames["train"]
    return Parts({table: _frame_batches(table, frames[table]) for table in frames}, {})


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise UserError(f"{source}: no such file; expected the corpus to share") from None
    except OSError:
        shutil.copyfile(source, target)


def _frame_batches(table: str, frame: pd.DataFrame) -> list[pa.RecordBatch]:
    schema = train_schema(frame.columns) if table == "train" else SCHEMAS[table]
    return pa.Table.from_pandas(frame, schema=schema, preserve_index=False).to_batches()


def _write_table(path: Path, batches: Batches) -> int:
    """Stream batches into a Parquet file, a row group each; returns the number of rows."""
    writer, rows = None, 0
    try:
        for batch in batches:
            writer = writer or pq.ParquetWriter(path, batch.schema, write_page_checksum=True)
            writer.write_batch(batch)
            rows += len(batch)
    finally:
        if writer is not None:
            writer.close()
    return rows


def _judgement_counts(folder: Path) -> dict[str, int]:
    def column(table: str, name: str) -> pa.ChunkedArray:
        return pq.read_table(folder / f"{table}.parquet", columns=[name])[name]

    judged, documents = column("qrels", "query_id"), column("qrels", "doc_id")
    known = pc.is_in(documents, value_set=column("corpus", "doc_id"))
    asked = pc.is_in(column("queries", "query_id"), value_set=judged)
    return {
        "qrels_outside_corpus": pc.sum(pc.invert(known)).as_py(),
        "queries_unjudged": pc.sum(pc.invert(asked)).as_py(),
    }


def download_backbone(
    name: str, entry: Backbone, out: Path, *, of: Path | None, train: Path | None, progress: bool
) -> None:
    """Write the folder `out` of a backbone: plain checkpoint, tokenizer, backbone.json.

    Args:
        name: slug of the backbone.
        entry: where it comes from.
        out: folder to write.
        of: folder of the backbone whose weights a twin takes.
        train: train.parquet of the data set that a backbone is pretrained on.
        progress: whether to show progress bars.

    With `head_gain` other than 1 the head is untied and its output projection, weight and bias,
    multiplied by it; a twin's gain comes on top of the other backbone's.

    Raises:
        UserError: the source cannot be read, or is not a checkpoint with safetensors and
            tokenizer; or `out` holds something else.
    """
    with atomic_folder(out, mark="backbone.json", sums=True) as folder:
        provenance = _fetch(name, entry, folder, of=of, train=train, progress=progress)
        check_checkpoint(folder, origin=_origin(entry))
        if entry.head_gain != 1:
            trusted = isinstance(entry, HubBackbone) and entry.trust_remote_code
            _multiply_head(folder, entry.head_gain, trust_remote_code=trusted)
        write_json(
            folder / "backbone.json",
            {
                "name": name,
                "source": entry.source,
                "settings": entry.model_dump(mode="json"),
                **provenance,
            },
        )


def _origin(entry: Backbone) -> str:
    if isinstance(entry, HubBackbone):
        return f"hub repository {entry.id} at revision {entry.revision}"
    return entry.path if isinstance(entry, PathBackbone) else entry.source


def _fetch(
    name: str,
    entry: Backbone,
    folder: Path,
    *,
    of: Path | None,
    train: Path | None,
    progress: bool,
) -> dict[str, Any]:
    if isinstance(entry, HubBackbone):
        from splade_rescale import hub

        if not progress:
            disable_progress_bars()
        return hub.download_checkpoint(entry, folder, CHECKPOINT_FILES)
    if isinstance(entry, PathBackbone):
        # Path's own method fails on an unknown user
        return {"files": copy_checkpoint(Path(os.path.expanduser(entry.path)), folder)}
    if isinstance(entry, TwinBackbone):
        if of is None:
            raise UserError(f"backbone {name}: a twin needs the folder of backbone {entry.of}")
        files = copy_checkpoint(of, folder)
        return {"of": read_json(of / "backbone.json"), "files": files}
    assert isinstance(entry, PretrainBackbone)
    if train is None:
        raise UserError(f"backbone {name}: pretraining needs train.parquet of {entry.dataset}")
    from splade_rescale import pretrain

    pretrain.pretrain(entry, train, folder, progress=progress)
    return {}


def _multiply_head(folder: Path, gain: float, *, trust_remote_code: bool) -> None:
    import torch

    from splade_rescale import head

    model = head.load_masked_lm(folder, trust_remote_code=trust_remote_code)
    head.untie(model)
    _, projection = head.output_projection(model)
    with torch.no_grad():
        projection.weight.mul_(gain)
        if projection.bias is not None:
            projection.bias.mul_(gain)
    # The loaded tensors may be maps of the old files: those are unlinked, never written over.
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]:
        path.unlink()
    head.save_masked_lm(model, folder)
