"""Made-up data sets in the repositories, files and formats that config/datasets.yaml names.

Everything is derived from the registry's entries, so that the two cannot drift apart, and from
the data set's slug as seed.
"""

import gzip
import io
import json
import random
from collections import defaultdict
from fnmatch import fnmatch

import pyarrow as pa
import pyarrow.parquet as pq
from splade_rescale.settings import HubDataset, HubFiles

from .server import Repository

DOCUMENTS = 36
QUERIES = 8
_TOPICS = """
apple banana cherry river mountain ocean engine piston turbine violin cello organ copper silver
gold planet comet galaxy bread cheese pepper tiger falcon salmon doctor nurse surgeon lawyer judge
jury pilot rudder compass castle tower bridge winter summer autumn paint canvas marble theorem
lemma proof kernel thread socket island desert forest ballot senate mayor glacier volcano reef
"""
_FILLER = """
the of and in to is for that with as on are by this be from at which has about into more when how
what can its after other used between during each many most only over such than through where
"""
TOPICS, FILLER = _TOPICS.split(), _FILLER.split()


def commit_of(files: HubFiles) -> str:
    """The commit that a repository stands at: the pinned one, or one made up from its id."""
    pinned = files.revision != "main"
    return files.revision if pinned else random.Random(files.id).randbytes(20).hex()


def repositories(entries: dict[str, HubDataset]) -> list[Repository]:
    """One repository for each that the entries name, with the files of all of them."""
    rows: dict[tuple[str, str], dict[str, list[dict]]] = defaultdict(lambda: defaultdict(list))
    corpora = {slug: _documents(slug) for slug, entry in entries.items() if entry.queries}
    for slug, entry in entries.items():
        owner = entry.corpus_from or slug
        parts = {"train": _triplets(slug)} if entry.train else {}
        if entry.queries:
            queries, qrels = _judged(slug, corpora[owner], self_hits=entry.remove_self_hits)
            parts |= {"corpus": corpora[owner], "queries": queries, "qrels": qrels}
        for part, content in parts.items():
            files = getattr(entry, part)
            if files is not None:
                (pattern,) = files.files
                where = rows[files.id, commit_of(files)][pattern]
                where += [row for row in content if row not in where]
    made = []
    for (name, commit), patterns in rows.items():
        files = {"README.md": b"# Made up\n", ".gitattributes": b"", "load.py": b"raise SystemExit"}
        for pattern, content in patterns.items():
            files |= _files(pattern, content)
        made.append(Repository("dataset", name, commit, files))
    ids = [repository.id for repository in made]
    assert len(ids) == len(set(ids)), "a repository is named at two revisions"
    return made


def _words(draw: random.Random, topics: list[str], length: int) -> str:
    return " ".join(draw.choice(topics if draw.random() < 0.5 else FILLER) for _ in range(length))


def _documents(slug: str) -> list[dict]:
    draw = random.Random(f"{slug} corpus")
    documents = []
    for number in range(DOCUMENTS):
        topics = draw.sample(TOPICS, 4)
        text = _words(draw, topics, draw.randint(8, 40)) if number % 17 != 16 else ""
        title = " ".join(topics[:2]) if number % 3 else ""
        identifier = f"{slug}-{number:04}" if number % 2 else f"{7919 * (number + 1)}"
        documents.append({"_id": identifier, "title": title, "text": text, "metadata": {}})
    return documents


def _judged(slug: str, corpus: list[dict], *, self_hits: bool) -> tuple[list[dict], list[dict]]:
    """Queries, of which the last two are not judged, and graded judgements."""
    draw = random.Random(f"{slug} queries")
    queries, qrels = [], []
    texts = [document for document in corpus if document["text"]]
    graded = not slug.startswith(("nanobeir", "msmarco", "quora", "arguana"))
    for number, document in enumerate(draw.sample(texts, QUERIES)):
        # Where the data set has self-hits, its queries stand in the corpus under the same id.
        identifier = document["_id"] if self_hits else f"{slug}-q{number}"
        text = document["text"] if self_hits else " ".join(document["text"].split()[:5])
        queries.append({"_id": identifier, "text": text, "metadata": {}})
        if number >= QUERIES - 2:
            continue
        others = [d for d in texts if d is not document]
        judged = draw.sample(others, 3) if graded or self_hits else []
        grades = [3, 1, 0] if graded else [1, 1, 1]
        pairs = [(document, 2 if graded else 1)] if not self_hits else []
        pairs += zip(judged, grades, strict=False)
        for judged_document, grade in pairs:
            row = {"query-id": identifier, "corpus-id": judged_document["_id"], "score": grade}
            qrels.append(row)
    return queries, qrels


def _triplets(slug: str) -> list[dict]:
    draw = random.Random(f"{slug} train")
    rows = []
    for _ in range(400):
        topics = draw.sample(TOPICS, 4)
        positive = _words(draw, topics, draw.randint(10, 40))
        negative = _words(draw, draw.sample(TOPICS, 4), draw.randint(10, 40))
        rows.append({"query": " ".join(topics[:3]), "positive": positive, "negative": negative})
    return rows


def _files(pattern: str, rows: list[dict]) -> dict[str, bytes]:
    """The file or files that a name or glob of the registry stands for."""
    if pattern.endswith(".parquet"):
        shards = 2 if len(rows) > 100 else 1
        stem = pattern.removesuffix(".parquet").removesuffix("*")
        stem += "" if stem.endswith("-") else "train-"
        size = -(-len(rows) // shards)
        names = [f"{stem}{number:05}-of-{shards:05}.parquet" for number in range(shards)]
        assert all(fnmatch(name, pattern) for name in names), pattern
        slices = [rows[number * size : (number + 1) * size] for number in range(shards)]
        return {name: encode(name, part) for name, part in zip(names, slices, strict=True)}
    assert "*" not in pattern, pattern
    return {pattern: encode(pattern, rows)}


def encode(name: str, rows: list[dict]) -> bytes:
    """Rows in the format that the file's name says."""
    if name.endswith(".parquet"):
        return _parquet(rows)
    if name.endswith(".tsv"):
        head = ["query-id", "corpus-id", "score"]
        lines = ["\t".join(head), *("\t".join(str(row[key]) for key in head) for row in rows)]
        return "".join(f"{line}\n" for line in lines).encode()
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return gzip.compress(lines, mtime=0) if name.endswith(".gz") else lines


def _parquet(rows: list[dict]) -> bytes:
    """As in NanoBEIR: no titles, no metadata, no grades."""
    dropped = {"title", "metadata", "score"}
    rows = [{key: value for key, value in row.items() if key not in dropped} for row in rows]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()
