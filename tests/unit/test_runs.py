import gzip

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from splade_rescale.errors import UserError
from splade_rescale.runs import escape_id, read_run, unescape_id, write_run

RESULTS = [
    ("q1", [("d2", 12.5), ("007", 3.0), ("7", 3.0)]),
    ("empty", []),
    ("a query\twith 100%", [("naïve 😀", 0.1), (" lead", 1e-7)]),
]


def packed(path, text):
    path.write_bytes(gzip.compress(text.encode() if isinstance(text, str) else text))
    return path


def test_round_trip(tmp_path):
    path = tmp_path / "run.trec.gz"
    assert write_run(path, RESULTS, "tag") == 5
    run = read_run(path)
    assert run == {query: dict(hits) for query, hits in RESULTS if hits}
    assert [*run["q1"]] == ["d2", "007", "7"]


def test_lines_are_trec_lines_and_ordinary_ids_stand_as_they_are(tmp_path):
    path = tmp_path / "run.trec.gz"
    write_run(path, RESULTS, "tag")
    assert gzip.decompress(path.read_bytes()).decode().splitlines() == [
        "q1 Q0 d2 1 12.5 tag",
        "q1 Q0 007 2 3 tag",
        "q1 Q0 7 3 3 tag",
        "a%20query%09with%20100%25 Q0 naïve%20😀 1 0.1 tag",
        "a%20query%09with%20100%25 Q0 %20lead 2 1e-07 tag",
    ]


def test_equal_results_give_equal_bytes(tmp_path, monkeypatch):
    paths = [tmp_path / "one.trec.gz", tmp_path / "deep" / "two.trec.gz"]
    for path, clock in zip(paths, (1e9, 2e9), strict=True):
        monkeypatch.setattr("time.time", lambda clock=clock: clock)
        write_run(path, iter(RESULTS), "tag")
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("score", [2.0**24 - 1, 2.0**31, 1 / 3, 1.0000001, 3.4e38, 1e-45])
def test_single_precision_scores_survive(tmp_path, score):
    score = float(np.float32(score))
    write_run(tmp_path / "r.gz", [("q", [("d", score)])], "tag")
    assert np.float32(read_run(tmp_path / "r.gz")["q"]["d"]) == np.float32(score)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@example("\x85 \u3000\u2028\x1c\x00%41\u200b")
def test_every_id_is_one_field(text):
    escaped = escape_id(text)
    assert f"a {escaped} b\n".split() == ["a", escaped, "b"]
    assert f"{escaped}\n".splitlines() == [escaped]
    assert unescape_id(escaped) == text


def test_empty_ids_are_refused_and_nothing_is_left(tmp_path):
    for results in ([("", [("d", 1.0)])], [("q", [("d", 2.0), ("", 1.0)])]):
        with pytest.raises(UserError, match="empty query or document id"):
            write_run(tmp_path / "r.gz", results, "tag")
    assert [*tmp_path.iterdir()] == []


def test_a_run_of_nothing(tmp_path):
    assert write_run(tmp_path / "r.gz", [], "tag") == 0
    assert read_run(tmp_path / "r.gz") == {}


LINE = "q Q0 d1 1 2.5 tag\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINE + "q Q0 d2 2 1.5\n", r":2: expected 6 fields .* found 5: 'q Q0 d2 2 1\.5'"),
        (LINE + "\n", r":2: expected 6 fields .* found 0"),
        (LINE + LINE, r":2: document 'd1' stands twice for query 'q'"),
        ("q Q0 d1 1 much tag\n", r":1: expected a finite number as score, found 'much'"),
        (LINE + "q Q0 d2 2 nan tag\n", r":2: expected a finite number as score, found 'nan'"),
        (LINE + "q Q0 d2 2 -inf tag\n", r":2: expected a finite number as score"),
        (LINE + "q Q0 %ff 2 1 tag\n", r":2: '%ff' is not percent-escaped UTF-8"),
        (LINE.encode() + b"q Q0 \xff 2 1 tag\n", "damaged"),
    ],
)
def test_bad_lines_are_named(tmp_path, text, message):
    with pytest.raises(UserError, match=f"run.trec.gz:?.*{message}"):
        read_run(packed(tmp_path / "run.trec.gz", text))


def test_a_truncated_or_damaged_file_is_named(tmp_path):
    path = tmp_path / "run.trec.gz"
    rng = np.random.default_rng(0)
    hits = [(f"d{n}", float(score)) for n, score in enumerate(rng.random(5000))]
    write_run(path, [("q", hits)], "tag")
    whole = path.read_bytes()
    for size in (len(whole) - 4, len(whole) // 2, 5):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"run\.trec\.gz:\d+: damaged or truncated"):
            read_run(path)
    spoilt = bytearray(whole)
    for at in range(len(whole) // 2, len(whole) // 2 + 8):
        spoilt[at] ^= 0xFF
    path.write_bytes(spoilt)
    with pytest.raises(UserError, match=r"run\.trec\.gz"):
        read_run(path)
    path.write_text(LINE)
    with pytest.raises(UserError, match=r"run\.trec\.gz:1: damaged"):
        read_run(path)
    path.unlink()
    with pytest.raises(UserError, match=r"run\.trec\.gz: no such file"):
        read_run(path)
