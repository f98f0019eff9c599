import gzip
import json

import pyarrow.parquet as pq
import pytest
from splade_rescale.errors import UserError
from splade_rescale.text_pairs import write_pairs


@pytest.mark.parametrize("name", ["own.jsonl", "own.jsonl.gz"])
def test_pairs_of_a_file(name, tmp_path):
    rows = [{"query": "a", "positive": "b"}, {"query": "c", "positive": "d"}]
    text = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    write_pairs(tmp_path / "pairs.parquet", tmp_path / name)
    assert pq.read_table(tmp_path / "pairs.parquet").to_pylist() == rows


def test_without_a_file_the_pairs_are_docstrings(tmp_path):
    write_pairs(tmp_path / "pairs.parquet")
    table = pq.read_table(tmp_path / "pairs.parquet")
    assert table.column_names == ["query", "positive"]
    assert table.num_rows > 1000


def test_a_file_without_pairs_is_refused(tmp_path):
    (tmp_path / "own.jsonl").write_text("")
    with pytest.raises(UserError, match=r"own\.jsonl: holds no pairs"):
        write_pairs(tmp_path / "pairs.parquet", tmp_path / "own.jsonl")
    (tmp_path / "own.jsonl").write_text('{"query": "a"}\n')
    with pytest.raises(UserError, match=r"own\.jsonl:1: .*positive"):
        write_pairs(tmp_path / "pairs.parquet", tmp_path / "own.jsonl")
