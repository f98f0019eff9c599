import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from splade_rescale.beir import (
    check_folder,
    read_corpus,
    read_folder,
    read_qrels,
    read_queries,
    read_titles,
    read_train,
)
from splade_rescale.errors import UserError
from splade_rescale.settings import PathDataset


def rows(batches):
    return [row for batch in batches for row in batch.to_pylist()]


def write_lines(path: Path, lines) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def corpus_of(tmp_path, *lines, name="corpus.jsonl"):
    return rows(read_corpus([write_lines(tmp_path / name, lines)]))


def qrels_of(tmp_path, *lines, name="test.tsv", queries=("q1", "q2", "a query", "007")):
    read = rows(read_qrels([write_lines(tmp_path / name, lines)], set(queries)))
    return [(row["query_id"], row["doc_id"], row["relevance"]) for row in read]


AWKWARD_IDS = [
    "007",
    "7",
    "1e3",
    "a b",
    "a\tb",
    " a b",
    "é",
    "e\u0301",
    "A",
    "a",
    "null",
    "線\u2028",
]


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_corpus_keeps_ids_and_text_as_they_are(tmp_path, name):
    lines = [{"_id": i, "title": f"t {i}", "text": f" x {i}\u2028y "} for i in AWKWARD_IDS]
    assert corpus_of(tmp_path, *lines, name=name) == [
        {"doc_id": i, "title": f"t {i}", "text": f" x {i}\u2028y "} for i in AWKWARD_IDS
    ]


def test_unescaped_line_separators_and_a_bom_do_not_split_or_break_lines(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(
        '\ufeff{"_id": "é", "text": "a\u2028b\x85c"}\r\n\n{"_id": "2", "text": ""}'.encode()
    )
    assert [row["text"] for row in rows(read_corpus([path]))] == ["a\u2028b\x85c", ""]


def test_title_may_be_null_or_missing_and_text_empty(tmp_path):
    read = corpus_of(tmp_path, {"_id": "1", "title": None, "text": ""}, {"_id": "2", "text": "x"})
    assert [(row["title"], row["text"]) for row in read] == [("", ""), ("", "x")]


def test_corpus_comes_in_batches_and_in_order(tmp_path):
    lines = [{"_id": str(i), "text": "x"} for i in range(25_001)]
    batches = list(read_corpus([write_lines(tmp_path / "corpus.jsonl", lines)]))
    assert [len(batch) for batch in batches] == [10_000, 10_000, 5_001]
    assert [row["doc_id"] for row in rows(batches)] == [line["_id"] for line in lines]


GOOD = {"_id": "1", "title": "t", "text": "x"}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"_id": 7, "text": "x"}, r"'_id' is the number 7, expected a string"),
        ({"_id": True, "text": "x"}, r"'_id' must be a string, found True"),
        ({"_id": 7.5, "text": "x"}, r"'_id' must be a string, found 7.5"),
        ({"_id": None, "text": "x"}, r"'_id' must be a string, found None"),
        ({"_id": "", "text": "x"}, r"'_id' is empty"),
        ({"id": "2", "text": "x"}, r"'_id' must be a string, found no such key among \['id'"),
        ({"_id": "2", "title": "x"}, r"'text' must be a string, found no such key"),
        ({"_id": "2", "text": None}, r"'text' must be a string, found None"),
        ({"_id": "2", "text": ["x"]}, r"'text' must be a string, found \['x'\]"),
        ({"_id": "2", "title": 5, "text": "x"}, r"'title' must be a string, found 5"),
        ('{"_id": "2", "text": "\\ud800"}', r"'text' is not valid Unicode"),
        ('{"_id": "2", "text": "x"', r"not valid JSON"),
        ("[" * 100_000, r"not valid JSON"),
        ('["_id"]', r"found '\[\"_id\"\]', expected a JSON object"),
        ({"_id": "1", "text": "y"}, r"duplicate '_id' '1', first found at .*corpus\.jsonl:1"),
    ],
)
def test_a_bad_document_is_refused_with_its_line(tmp_path, bad, message):
    with pytest.raises(UserError, match=rf"corpus\.jsonl:3: {message}"):
        corpus_of(tmp_path, GOOD, "", bad)


def test_bytes_that_are_not_utf8_are_refused_with_their_line(tmp_path):
    (tmp_path / "c.jsonl").write_bytes(b'{"_id": "1", "text": "x"}\n{"_id": "2", "text": "\xe9"}\n')
    with pytest.raises(UserError, match=r"c\.jsonl:2: not UTF-8"):
        rows(read_corpus([tmp_path / "c.jsonl"]))


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b[:50] + b"\0" * 40 + b[90:]])
def test_damaged_gzip_is_refused(tmp_path, damage):
    lines = [{"_id": str(i), "text": str(hash(i * 7919))} for i in range(2000)]
    path = write_lines(tmp_path / "corpus.jsonl.gz", lines)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"corpus\.jsonl\.gz:\d+: truncated or damaged gzip"):
        rows(read_corpus([path]))


def test_a_plain_file_named_gz_is_refused(tmp_path):
    (tmp_path / "corpus.jsonl.gz").write_text('{"_id": "1", "text": "x"}\n')
    with pytest.raises(UserError, match="truncated or damaged gzip"):
        rows(read_corpus([tmp_path / "corpus.jsonl.gz"]))


def test_duplicate_query_names_both_lines(tmp_path):
    path = write_lines(tmp_path / "queries.jsonl", [GOOD, {"_id": "2", "text": "x"}, GOOD])
    with pytest.raises(UserError, match=r"queries\.jsonl:3: duplicate .* found at .*jsonl:1$"):
        rows(read_queries([path]))


@pytest.mark.parametrize(
    "lines",
    [
        ["query-id\tcorpus-id\tscore", "q1\td1\t1", "a query\t a doc \t0.0", "007\t08\t-1.0"],
        ["q1\td1\t1", "", "a query\t a doc \t0", "007\t08\t-1\r"],
    ],
)
@pytest.mark.parametrize("name", ["test.tsv", "test.tsv.gz"])
def test_beir_qrels(tmp_path, lines, name):
    expected = [("q1", "d1", 1), ("a query", " a doc ", 0), ("007", "08", -1)]
    assert qrels_of(tmp_path, *lines, name=name) == expected


@pytest.mark.parametrize("name", ["qrels.trec", "qrels.tsv", "qrels.trec.gz"])
def test_trec_qrels(tmp_path, name):
    read = qrels_of(tmp_path, "q1 0 d1 2", "q1\t0\td2\t0", "007  Q0  010 -1 ", name=name)
    assert read == [("q1", "d1", 2), ("q1", "d2", 0), ("007", "010", -1)]


def test_qrels_in_json_lines_and_parquet(tmp_path):
    line = {"query-id": "q1", "corpus-id": "d1", "score": 2.0}
    assert qrels_of(tmp_path, line, name="test.jsonl") == [("q1", "d1", 2)]
    table = pa.table({"query-id": [7, 8], "corpus-id": [10, 2**40], "score": [1.0, 0.0]})
    pq.write_table(table, tmp_path / "test.parquet")
    read = rows(read_qrels([tmp_path / "test.parquet"], {"7", "8"}))
    assert [tuple(row.values()) for row in read] == [("7", "10", 1), ("8", str(2**40), 0)]


def test_qrels_table_without_scores_lists_what_is_relevant(tmp_path):
    pq.write_table(pa.table({"query-id": ["q"], "corpus-id": ["d"]}), tmp_path / "q.parquet")
    read = rows(read_qrels([tmp_path / "q.parquet"], {"q"}))
    assert read == [{"query_id": "q", "doc_id": "d", "relevance": 1}]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["q1\td1\t1", "q1\td2\t1.5"], r":2: relevance must be a whole number, found '1.5'"),
        (["q1\td1\t1", "q1\td2\t"], r":2: relevance must be a whole number, found ''"),
        (["q1\td1\t1", "q1\td2\t1_0"], r":2: relevance must be a whole number, found '1_0'"),
        (["q1\td1\t1", "q1\td2\t" + "9" * 30], r":2: relevance must be a whole number"),
        (["corpus-id\tquery-id\tscore"], r":1: query 'corpus-id' is not among the queries"),
        (["q1\td1\t1", "q9\td1\t1"], r":2: query 'q9' is not among the queries"),
        (
            ["q1\td1\t1", "q1\td1\t0"],
            r":2: relevance 0 of document 'd1' .* contradicts relevance 1 at .*test\.tsv:1$",
        ),
        (["q1\td1\t1", "q1 0 d2 1"], r":2: found 'q1 0 d2 1', expected 3 columns between tabs"),
        (["q1\td1\t1", "\td2\t1"], r":2: found .* expected 3 columns"),
        (["q1 0 d1 1", "q1 0 d2"], r":2: found 'q1 0 d2', expected 4 columns"),
        (["q1 0 d1 x"], r":1: relevance must be a whole number, found 'x'"),
        (["q1,d1,1"], r":1: found 'q1,d1,1', expected 4 columns between blanks .* or 3 between"),
    ],
)
def test_bad_qrels_are_refused_with_their_line(tmp_path, lines, message):
    with pytest.raises(UserError, match=rf"test\.tsv{message}"):
        qrels_of(tmp_path, *lines)


def test_a_repeated_judgement_counts_once(tmp_path):
    read = qrels_of(tmp_path, "q1\td1\t1", "q1\td2\t0", "q1\td1\t+1")
    assert read == [("q1", "d1", 1), ("q1", "d2", 0)]


def test_a_score_missing_in_one_json_line_is_refused(tmp_path):
    lines = [{"query-id": "q1", "corpus-id": d, "score": 1} for d in ("d1", "d2")]
    del lines[1]["score"]
    with pytest.raises(UserError, match=r"test\.jsonl:2: relevance must be .* found None"):
        qrels_of(tmp_path, *lines, name="test.jsonl")


SCORED = {"query": "q", "positive": "p", "negative": "n", "positive_score": 3, "negative_score": -1}


@pytest.mark.parametrize("names", [2, 3, 5])
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_train_rows(tmp_path, names, suffix):
    row = dict(list(SCORED.items())[:names])
    path = tmp_path / f"train.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist([row | {"other": 1}] * 2), path)
    else:
        write_lines(path, [row | {"other": 1}] * 2)
    batches = list(read_train([path]))
    assert rows(batches) == [row] * 2
    assert batches[0].schema.names == list(row)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"query": "q"}, {}, r":1: found \['query'\], expected query and positive"),
        ({"positive": "q"}, {}, r":1: found \['positive'\]"),
        (SCORED | {"negative_score": None}, {}, r":1: found .*'positive_score'\], expected"),
        (SCORED | {"negative": None}, {}, r":1: found"),
        (SCORED, SCORED | {"positive_score": float("nan")}, r":2: 'positive_score' must be a fin"),
        (SCORED, SCORED | {"positive_score": "3"}, r":2: 'positive_score' must be a finite"),
        (SCORED, SCORED | {"positive_score": True}, r":2: 'positive_score' must be a finite"),
        (SCORED, SCORED | {"positive_score": [3]}, r":2: 'positive_score' must be a finite"),
        (SCORED, SCORED | {"positive_score": 10**400}, r":2: 'positive_score' must be a finite"),
        (SCORED, {"query": "q", "positive": "p"}, r":2: 'negative' must be a string"),
        ({"query": "q", "positive": "p"}, SCORED, r":2: 'negative' is here but not in the first"),
    ],
)
def test_bad_train_rows_are_refused_with_their_line(tmp_path, first, second, message):
    with pytest.raises(UserError, match=rf"t\.jsonl{message}"):
        rows(read_train([write_lines(tmp_path / "t.jsonl", [first, second])]))


def test_titles_give_training_pairs_of_documents_with_both_parts(tmp_path):
    documents = [
        GOOD,
        {"_id": "2", "title": " ", "text": "y"},
        {"_id": "3", "title": "t", "text": ""},
    ]
    path = write_lines(tmp_path / "corpus.jsonl", documents)
    assert rows(read_titles([path])) == [{"query": "t", "positive": "x"}]


@pytest.mark.parametrize("content", [b"", b"PAR1 this is not parquet PAR1"])
def test_a_file_that_is_not_parquet_is_refused(tmp_path, content):
    (tmp_path / "c.parquet").write_bytes(content)
    with pytest.raises(UserError, match=r"c\.parquet: cannot be read as Parquet"):
        rows(read_corpus([tmp_path / "c.parquet"]))


@pytest.fixture
def folder(tmp_path):
    write_lines(tmp_path / "corpus.jsonl", [GOOD])
    write_lines(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "x"}])
    return tmp_path


def open_folder(folder, **keys):
    return read_folder(PathDataset(source="path", path=str(folder), **keys))


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        (["qrels/test.tsv", "qrels/dev.tsv", "qrels.trec"], "qrels/test.tsv"),
        (["qrels/test.tsv.gz", "qrels/dev.tsv"], "qrels/test.tsv.gz"),
        (["qrels.trec"], "qrels.trec"),
        (["qrels/dev.tsv.gz"], "qrels/dev.tsv.gz"),
    ],
)
def test_the_qrels_file_is_found(folder, present, chosen):
    for name in present:
        score = 5 if name == chosen else 1
        write_lines(folder / name, [f"q1 0 d {score}"])
    parts = open_folder(folder)
    assert rows(parts.tables["qrels"])[0]["relevance"] == 5
    assert str(folder / chosen) in parts.provenance["files"]


def test_qrels_named_in_the_entry_win(folder):
    write_lines(folder / "qrels/test.tsv", ["q1 0 d 1"])
    write_lines(folder / "other/judged.txt", ["q1 0 d 3"])
    parts = open_folder(folder, qrels="other/judged.txt")
    assert rows(parts.tables["qrels"])[0]["relevance"] == 3


@pytest.mark.parametrize("function", [check_folder, read_folder])
def test_ambiguous_or_missing_files_are_refused(folder, function):
    def open_folder(folder, **keys):
        function(PathDataset(source="path", path=str(folder), **keys))

    with pytest.raises(UserError, match=r"no qrels file .* expected qrels\.trec or"):
        open_folder(folder)
    for name in ("qrels/dev.tsv", "qrels.trec"):
        write_lines(folder / name, ["q1 0 d 1"])
    with pytest.raises(UserError, match=r"more than one qrels file.*: qrels/dev\.tsv, qrels\.trec"):
        open_folder(folder)
    with pytest.raises(UserError, match=r"qrels/none\.tsv: no such file"):
        open_folder(folder, qrels="qrels/none.tsv")
    with pytest.raises(UserError, match=r"pairs\.jsonl: no such file"):
        open_folder(folder, qrels="qrels.trec", train="pairs.jsonl")
    write_lines(folder / "corpus.jsonl.gz", [GOOD])
    with pytest.raises(UserError, match=r"more than one corpus file: corpus\.jsonl, corpus\.jso"):
        open_folder(folder)
    with pytest.raises(UserError, match=r"nowhere: no such folder"):
        open_folder(folder / "nowhere")
    for name in ("nowhere", "~nobody-by-this-name/data"):
        with pytest.raises(UserError, match=rf"{name}: no such folder; expected .* BEIR layout"):
            function(PathDataset(source="path", path=name))


def test_a_folder_may_lie_in_the_home_folder(folder, monkeypatch):
    write_lines(folder / "qrels.trec", ["q1 0 d 1"])
    monkeypatch.setenv("HOME", str(folder.parent))
    entry = PathDataset(source="path", path=f"~/{folder.name}")
    check_folder(entry)
    assert rows(read_folder(entry).tables["corpus"])[0]["doc_id"] == "1"


@pytest.mark.parametrize("train", [None, "title", "pairs.jsonl"])
def test_a_folder_is_checked_without_reading_it(folder, monkeypatch, train):
    for name in ("corpus.jsonl", "queries.jsonl", "qrels.trec", "pairs.jsonl"):
        (folder / name).write_bytes(b"\xff not to be read")
    monkeypatch.setattr(Path, "open", None)
    entry = PathDataset(source="path", path=str(folder), train=train)
    assert check_folder(entry) is None
    with pytest.raises(UserError, match=r"queries\.jsonl:1: not UTF-8"):
        read_folder(entry)


def test_provenance_has_size_and_digest_of_each_file(folder):
    write_lines(folder / "qrels.trec", ["q1 0 d 1"])
    files = open_folder(folder).provenance["files"]
    assert files[str(folder / "qrels.trec")] == {
        "bytes": 9,
        # printf 'q1 0 d 1\n' | sha256sum
        "sha256": "e6621f020f6b82df2a4dabfe21f71882ed9c8690d9bc4fe78173f07d7d88d1c4",
    }
    assert len(files) == 3
