"""Readers of what others wrote: whatever the bytes, a parse or an error that names the file."""

import copy
import gzip
import io
import json
import os
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from splade_rescale import beir, evaluate
from splade_rescale.checksums import SUMS, check_sums
from splade_rescale.config import load_experiment, read_yaml
from splade_rescale.errors import UserError
from splade_rescale.files import read_json_object, read_text_csv
from splade_rescale.pairs import read_pairs
from splade_rescale.published import read_published
from splade_rescale.runs import read_run, write_run
from splade_rescale.settings import TrainSettings
from splade_rescale.table import read_table
from splade_rescale.vectors import quantise, read_vectors, string_rows

from .miniature import CONFIG, ROOT

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=timedelta(seconds=20),
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def outcome(read, path):
    """Call a reader and use up what it gives; an error must name the file."""
    try:
        found = read(path)
        if not isinstance(found, dict | tuple | list) and hasattr(found, "__next__"):
            found = list(found)
    except UserError as error:
        assert str(path) in str(error), error
        assert max(map(len, str(error).splitlines())) < 1000
        return None
    return found


def qrels(path):
    return beir.read_qrels([path], {"q1", "q2", "0", ""})


READERS = {
    "corpus": lambda path: beir.read_corpus([path]),
    "queries": lambda path: beir.read_queries([path]),
    "qrels": qrels,
    "train": lambda path: beir.read_train([path]),
    "titles": lambda path: beir.read_titles([path]),
}

# Values that stand in JSON, and where text is expected: odd characters, lone surrogates.
text = st.text(st.characters(exclude_categories=[]), max_size=12)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | text | st.sampled_from(["q1", "1.0"])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
)
KEYS = ["_id", "title", "text", "query-id", "corpus-id", "score", "query", "positive", "negative"]
KEYS += ["positive_score", "negative_score"]
rows = st.dictionaries(st.sampled_from(KEYS) | text, values, max_size=11)
json_lines = st.lists(rows | values, max_size=5).map(
    lambda found: "\n".join(json.dumps(row) for row in found).encode()
)
fields = st.sampled_from(["q1", "q2", "d1", "d 2", "0", "1", "-1", "1.0", "2.5", "nan", "", "x"])
fields |= text
lines = st.builds(
    lambda found, between: "\n".join(between.join(line) for line in found).encode(
        "utf-8", errors="surrogatepass"
    ),
    st.lists(st.lists(fields, max_size=6), max_size=5),
    st.sampled_from(["\t", " ", "  ", ",", "\x1c", " "]),
)


def flipped(valid: bytes):
    """`valid` with some bytes changed, or cut short."""
    places = st.lists(
        st.tuples(st.integers(0, len(valid) - 1), st.integers(0, 255)), min_size=1, max_size=4
    )

    def change(changes, end):
        content = bytearray(valid)
        for place, value in changes:
            content[place] = value
        return bytes(content[:end])

    return st.builds(change, places, st.integers(0, len(valid)) | st.just(len(valid)))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("reader", READERS)
@fuzz
@given(content=json_lines | lines | st.binary(max_size=60), whole=st.booleans())
def test_json_lines(tmp_path, reader, packed, content, whole):
    path = tmp_path / ("x.jsonl.gz" if packed else "x.jsonl")
    if packed:
        content = gzip.compress(content, mtime=0) if whole else gzip.compress(content)[:-3]
    path.write_bytes(content)
    outcome(READERS[reader], path)


@pytest.mark.parametrize("name", ["x.tsv", "x.trec"])
@fuzz
@given(content=lines | st.binary(max_size=60))
def test_judgements_in_lines(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    outcome(qrels, tmp_path / name)


def parquet_bytes(table, **options):
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


ARROW = [
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.int64(),
    pa.float32(),
    pa.bool_(),
    pa.null(),
    pa.date32(),
    pa.timestamp("us"),
    pa.list_(pa.string()),
    pa.struct({"a": pa.int8()}),
    pa.dictionary(pa.int8(), pa.string()),
    pa.decimal128(5, 2),
]
EXAMPLE = {
    pa.string(): "q1", pa.large_string(): "d1", pa.binary(): b"\xff", pa.int64(): 1,
    pa.float32(): float("nan"), pa.bool_(): True, pa.null(): None, pa.date32(): 1,
    pa.timestamp("us"): 2**62, pa.list_(pa.string()): ["x"], pa.struct({"a": pa.int8()}): {"a": 1},
    pa.dictionary(pa.int8(), pa.string()): "x", pa.decimal128(5, 2): "1.50",
}  # fmt: skip


@st.composite
def tables(draw, names):
    """Tables whose columns are about those wanted, of all kinds of types, with nulls."""
    chosen = draw(st.lists(st.sampled_from(names) | text, min_size=1, max_size=6))
    height, columns = draw(st.integers(0, 3)), []
    for _ in chosen:
        kind = draw(st.sampled_from(ARROW))
        filled = draw(st.lists(st.booleans(), min_size=height, max_size=height))
        value = EXAMPLE[kind]
        if kind == pa.string():
            value = draw(st.sampled_from(["q1", "d1", "", "1"]))
        if pa.types.is_decimal(kind):
            column = pa.array(["1.50" if f else None for f in filled], pa.string()).cast(kind)
        else:
            column = pa.array([value if f else None for f in filled], kind)
        columns.append(column)
    try:
        return parquet_bytes(pa.Table.from_arrays(columns, chosen))
    except (pa.ArrowException, UnicodeEncodeError):  # not every name is one for Arrow
        return b""


PARQUET = {
    **READERS,
    "judged": evaluate.read_qrels,
    "rows": lambda path: string_rows(path, ["id"], 10),
    "pairs": lambda path: read_pairs(path, TrainSettings(dataset="x", batch_size=1)).to_pylist(),
    "distilled": lambda path: read_pairs(
        path, TrainSettings(dataset="x", batch_size=1, loss="kl")
    ).to_pylist(),
}
NAMES = [*KEYS, "query_id", "doc_id", "relevance", "id"]


@pytest.mark.parametrize("reader", PARQUET)
@fuzz
@given(content=tables(NAMES) | st.binary(max_size=60))
def test_parquet(tmp_path, reader, content):
    (tmp_path / "x.parquet").write_bytes(content)
    outcome(PARQUET[reader], tmp_path / "x.parquet")


WHOLE = {
    "corpus": pa.table({"_id": ["d1", "d2"], "title": ["a", ""], "text": ["b", "c"]}),
    "queries": pa.table({"_id": ["d1", "d2"], "text": ["b", "c"]}),
    "qrels": pa.table({"query-id": ["q1", "q2"], "corpus-id": ["d1", "d1"], "score": [1, 0]}),
    "train": pa.table({"query": ["q1", "q2"], "positive": ["d1", "d1"]}),
    "titles": pa.table({"_id": ["d1", "d2"], "title": ["a", ""], "text": ["b", "c"]}),
    "judged": pa.table({"query_id": ["q1", "q2"], "doc_id": ["d1", "d1"], "relevance": [1, 0]}),
    "rows": pa.table({"id": ["q1", "q2"]}),
    "pairs": pa.table({"query": ["q1", "q2"], "positive": ["d1", "d1"]}),
    "distilled": pa.table(
        {"query": ["q1"], "positive": ["d1"], "negative": ["d2"]}
        | {"positive_score": [1.0], "negative_score": [0.5]}
    ),
}


@pytest.mark.parametrize("reader", PARQUET)
def test_damaged_parquet_is_never_other_data(tmp_path, reader):
    """Page checksums: a flipped byte is an error, or changes nothing that is read."""
    valid = parquet_bytes(WHOLE[reader], write_page_checksum=True)
    path = tmp_path / "x.parquet"
    path.write_bytes(valid)
    expected = outcome(PARQUET[reader], path)
    assert expected

    @fuzz
    @given(content=flipped(valid))
    def check(content):
        path.write_bytes(content)
        assert outcome(PARQUET[reader], path) in (None, expected)

    check()


@fuzz
@given(content=lines | st.binary(max_size=80), whole=st.booleans())
def test_runs(tmp_path, content, whole):
    packed = gzip.compress(content, mtime=0)
    (tmp_path / "run.trec.gz").write_bytes(packed if whole else packed[: len(packed) // 2])
    outcome(read_run, tmp_path / "run.trec.gz")


def test_a_damaged_run_is_never_another(tmp_path):
    path = tmp_path / "run.trec.gz"
    write_run(path, [("q 1", [("d1", 2.5), ("d2", 1.0)]), ("q2", [("d1", 0.5)])], "tag")
    valid, expected = path.read_bytes(), read_run(path)

    @fuzz
    @given(content=flipped(valid))
    def check(content):
        path.write_bytes(content)
        assert outcome(read_run, path) in (None, expected)

    check()


def test_damaged_vectors_are_never_others(tmp_path):
    path = tmp_path / "x.npz"
    with path.open("wb") as file:
        sp.save_npz(file, sp.random_array((3, 40), density=0.3, rng=0, format="csr"), False)
    pq.write_table(pa.table({"id": ["a", "b", "c"]}), tmp_path / "x.ids.parquet")
    valid, (expected, _) = path.read_bytes(), read_vectors(path)

    @fuzz
    @given(content=flipped(valid))
    def check(content):
        path.write_bytes(content)
        found = outcome(read_vectors, path)
        assert found is None or (found[0] != expected).nnz == 0

    check()


@fuzz
@given(
    data=st.lists(st.floats(width=32), min_size=3, max_size=3),
    indices=st.lists(st.integers(-5, 50), min_size=3, max_size=3),
    indptr=st.lists(st.integers(-5, 8), min_size=1, max_size=4),
    shape=st.lists(st.integers(-2, 8), max_size=3),
    form=st.sampled_from([b"csr", b"csc", b"coo", b"dense", b""]),
)
def test_vectors_of_any_content(tmp_path, data, indices, indptr, shape, form):
    """A whole npz whose arrays make no sense."""
    path = tmp_path / "x.npz"
    arrays = {"data": np.float32(data), "indices": indices, "indptr": indptr, "shape": shape}
    with path.open("wb") as file:
        np.savez(file, format=np.array(form), **arrays)
    pq.write_table(pa.table({"id": ["a", "b"]}), tmp_path / "x.ids.parquet")
    outcome(lambda path: quantise(read_vectors(path)[0], 100, path), path)


@pytest.mark.parametrize("read", [read_json_object, read_text_csv, read_published, read_table])
@fuzz
@given(content=json_lines | lines | st.binary(max_size=60))
def test_small_files(tmp_path, read, content):
    (tmp_path / "x").write_bytes(content)
    outcome(read, tmp_path / "x")


@fuzz
@given(content=lines | st.binary(max_size=60) | flipped(b"0" * 64 + b"  name\n"))
def test_sums(tmp_path, content):
    (tmp_path / SUMS).write_bytes(content)
    (tmp_path / "name").write_text("")
    outcome(check_sums, tmp_path)


yaml_text = st.text(st.sampled_from("ab:-[]{}&*!|>'\"%@`#,? \n\t<01.~"), max_size=40)


@fuzz
@given(content=yaml_text.map(str.encode) | st.binary(max_size=60))
def test_yaml(tmp_path, content):
    (tmp_path / "x.yaml").write_bytes(content)
    outcome(read_yaml, tmp_path / "x.yaml")


def places(value, path=()):
    """The way to every value in a configuration."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


ODD = st.sampled_from(
    ["$(touch /tmp/x)", "../..", "a b", "it's", "", "auto", 10**400, -1, float("nan"), 2**63, True]
)
EVERYWHERE = [place for place in places(CONFIG) if place]


@fuzz
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(EVERYWHERE), ODD | values, st.booleans()), min_size=1, max_size=3
    )
)
def test_configurations(tmp_path, changes):
    """The miniature's, with values and keys changed at any depth."""
    data = copy.deepcopy(CONFIG)
    for place, value, renamed in changes:
        inner = data
        try:
            for key in place[:-1]:
                inner = inner[key]
            if renamed and isinstance(inner, dict):
                inner[value] = inner.pop(place[-1])
            else:
                inner[place[-1]] = value
        except (KeyError, TypeError, IndexError):  # an earlier change took that place away
            continue
    try:
        load_experiment(data, ROOT / "config", "my.yaml")
    except UserError as error:
        assert "my.yaml" in str(error)


@fuzz
@given(value=values)
def test_configurations_of_any_kind(tmp_path, value):
    path = tmp_path / "my.yaml"
    try:
        path.write_text(yaml.safe_dump({"registry": value, "train": value, "arms": value}))
    except (yaml.YAMLError, UnicodeEncodeError):
        return
    outcome(lambda path: load_experiment(read_yaml(path), ROOT / "config", str(path)), path)
