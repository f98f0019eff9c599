"""Search the corpus of a cell for any text, and say which terms made each hit."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy.sparse as sp

from splade_rescale.batches import encode_texts
from splade_rescale.cell_place import CellPlace
from splade_rescale.config import validate
from splade_rescale.encode import stats_path
from splade_rescale.engines import Documents, engine
from splade_rescale.errors import UserError
from splade_rescale.files import read_json_object
from splade_rescale.head import load_tokenizer
from splade_rescale.index import STATISTICS
from splade_rescale.parquet_files import ERRORS
from splade_rescale.search import statistics_of
from splade_rescale.settings import EncodeSettings, SearchSettings
from splade_rescale.splade import Splade
from splade_rescale.text import document_text
from splade_rescale.tokens import readable_terms
from splade_rescale.vectors import ids_file, quantise, read_vectors

_SNIPPET = 160


class Hit(NamedTuple):
    """A document found: the engine's score, and what each matched term adds, largest first."""

    doc_id: str
    score: float
    text: str
    matched: list[tuple[str, int]]


class Answer(NamedTuple):
    """The terms of a query with their quantised weights, largest first, and the hits in order."""

    terms: list[tuple[str, int]]
    hits: list[Hit]
    engine: str
    quantization: int


def ask(
    place: CellPlace,
    text: str,
    hits: int,
    settings: SearchSettings | None = None,
    *,
    threads: int = 1,
    memory_mb: int | None = None,
) -> Answer:
    """Encode `text` as the cell's queries were, and search the cell's index with it.

    Args:
        place: of a cell that has its model, vectors and index.
        text: the query.
        hits: documents wanted.
        settings: options of the engine; if unset, those of the cell's own search, or the defaults
            where the cell has not been searched.
        threads: processors to use.
        memory_mb: largest Java heap in MiB.

    Raises:
        UserError: a part of the cell is missing, damaged, or of another vocabulary.
    """
    files = place.files
    model_folder, index = files.model_folder, files.corpus_folder / "index"
    assert model_folder is not None
    needed = {
        model_folder / "train.json": model_folder,
        files.folder / "vectors" / "queries.json": files.folder / "vectors" / "queries.json",
        index / STATISTICS: index,
    }
    for path, target in needed.items():
        if not path.is_file():
            raise UserError(f"{path}: no such file; make it with: {place.command(target)}")
    shards = _shards(place, files.corpus_folder / "vectors")
    built = statistics_of(index, "impact")
    made = read_json_object(stats_path(files.folder / "vectors" / "queries.npz"))
    encode = EncodeSettings.model_validate(made["settings"])

    tokenizer = load_tokenizer(model_folder)
    model = Splade.load(model_folder).eval()
    vectors, _, _ = encode_texts(model, tokenizer, [text], encode, encode.query_length)
    query = quantise(sp.csr_matrix(vectors), built["quantization"], model_folder)
    query.sort_indices()
    if query.shape[1] != built["vocabulary"]:
        raise UserError(
            f"{model_folder}: has {query.shape[1]} terms, the index {index} {built['vocabulary']}; "
            "index again"
        )
    found: list[tuple[str, float]] = []
    if built["indexed"] and query.nnz:
        search = engine(built["engine"]).search
        chosen = settings or _search_settings(files.folder / "search.json")
        options = {"most": hits, "threads": threads, "memory_mb": memory_mb}
        found = next(iter(search(index, query, chosen, **options))).hits[:hits]

    ids = [doc_id for doc_id, _ in found]
    documents = _vectors_of(ids, shards, built["quantization"])
    corpus = Path(read_json_object(stats_path(shards[0]))["source"])
    texts = _texts_of(ids, corpus if corpus.is_absolute() else place.root / corpus)
    names = dict(
        zip(query.indices.tolist(), readable_terms(tokenizer, query.indices.tolist()), strict=True)
    )
    weights = dict(zip(query.indices.tolist(), query.data.tolist(), strict=True))
    return Answer(
        _largest_first((names[term], weight) for term, weight in weights.items()),
        [
            Hit(
                doc_id,
                score,
                texts[doc_id],
                _largest_first(
                    (names[term], weights[term] * weight)
                    for term, weight in documents[doc_id].items()
                    if term in weights
                ),
            )
            for doc_id, score in found
        ],
        built["engine"],
        built["quantization"],
    )


def _search_settings(path: Path) -> SearchSettings:
    recorded = read_json_object(path).get("settings", {}) if path.is_file() else {}
    return validate(SearchSettings, recorded, str(path))


def format_answer(answer: Answer, terms: int) -> str:
    """The answer as text; of the query and of each hit the `terms` largest terms.

    What a matched term adds to the score is the product of its two weights.
    """
    shown = ", ".join(f"{name} {weight}" for name, weight in answer.terms[:terms])
    lines = [
        f"{len(answer.terms)} terms (weights x {answer.quantization}): {shown or 'none'}"
        f"{_more(len(answer.terms) - terms)}"
    ]
    for number, hit in enumerate(answer.hits, start=1):
        total = sum(part for _, part in hit.matched)
        parts = ", ".join(
            f"{name} {part} ({part / total:.0%})" for name, part in hit.matched[:terms]
        )
        lines += [
            "",
            f"{number}. {hit.doc_id}  score {hit.score:g}"
            + (f" by {answer.engine}, {total} exactly" if total != hit.score else ""),
            f"   {_snippet(hit.text)}",
            f"   {parts}{_more(len(hit.matched) - terms)}",
        ]
    return "\n".join(lines if answer.hits else [*lines, "", "no document shares a term with it"])


def _more(count: int) -> str:
    return f", {count} more" if count > 0 else ""


def _snippet(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SNIPPET else f"{line[: _SNIPPET - 3]}..."


def _largest_first(weights: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(weights, key=lambda item: (-item[1], item[0]))


def _shards(place: CellPlace, folder: Path) -> list[Path]:
    shards = sorted(folder.glob("corpus-*-of-*.npz"))
    counts = {path.stem.rpartition("-of-")[2] for path in shards}
    if len(counts) != 1 or len(shards) != int(counts.pop()):
        target = place.files.folder / "metrics.json"
        raise UserError(
            f"{folder}: the vectors of the corpus are not complete; make them with: "
            f"{place.command(target)}"
        )
    return shards


def _vectors_of(
    ids: Sequence[str], shards: Sequence[Path], quantization: int
) -> dict[str, dict[int, int]]:
    """Quantised weights by term of each document; only shards with such documents are read."""
    wanted, found = pa.array(ids, pa.large_string()), {}
    for npz in shards:
        there = pc.is_in(Documents.read(ids_file(npz)).ids, value_set=wanted).to_numpy(
            zero_copy_only=False
        )
        if not there.any():
            continue
        vectors, names = read_vectors(npz)
        for row in np.flatnonzero(there):
            one = quantise(vectors[row], quantization, npz)
            found[names[row]] = dict(zip(one.indices.tolist(), one.data.tolist(), strict=True))
    if lost := set(ids) - found.keys():
        raise UserError(
            f"{shards[0].parent}: {min(lost)!r} is in the index and has no vector; index again"
        )
    return found


def _texts_of(ids: Sequence[str], corpus: Path) -> dict[str, str]:
    columns = ["doc_id", "title", "text"]
    try:
        rows = pq.read_table(corpus, columns=columns, filters=[("doc_id", "in", [*ids])])
    except FileNotFoundError:
        raise UserError(f"{corpus}: no such file, but its vectors are there") from None
    except ERRORS as error:
        raise UserError(f"{corpus}: not a readable parquet file ({error})") from None
    texts = {row["doc_id"]: document_text(row["title"], row["text"]) for row in rows.to_pylist()}
    if lost := set(ids) - texts.keys():
        raise UserError(f"{corpus}: has no document {min(lost)!r}; encode the corpus again")
    return texts
