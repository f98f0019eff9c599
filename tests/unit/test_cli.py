"""What the command line itself adds to the stage modules: options, messages, exit codes."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from splade_rescale import cli

REGISTRIES = Path(__file__).parents[2] / "config"


@pytest.fixture
def command(monkeypatch, capfd, tmp_path):
    """A function: arguments -> exit code, standard output, standard error; runs in tmp_path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["splade-rescale", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capfd.readouterr()

    return run


def test_config_check_counts_trainings_and_cells_of_all_arms(command, tmp_path):
    config = {
        "backbones": ["tiny-bert"],
        "scales": [1, 16],
        "datasets": ["pydocs", "pydocs-ood"],
        "train": {"dataset": "pydocs"},
        "arms": {"slow": {"train": {"ramp": 1}, "scales": [2]}},
    }
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    code, out, _ = command("config", "check", "my.yaml", "--registries", REGISTRIES)
    assert (code, out) == (0, "my.yaml: 3 trainings, 6 cells\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["config", "check", "absent.yaml"], ["absent.yaml: no such file"]),
        (["download", "dataset", "x", "out", "--entry", "{bad"], ["--entry: not valid JSON"]),
        (["norms", "empty", "--settings", "list.json"], ["list.json: expected a JSON object"]),
        (["norms", "empty", "--settings", ""], ["--settings: empty"]),
        (["norms", "empty", "--settings", "empty"], ["empty: Is a directory"]),
        (
            ["rescale", "empty", "--out", "out", "--k-from", "list.json"],
            ["list.json: expected a JSON obj"],
        ),
        (
            ["rescale", "empty", "--out", "out", "--k-from", "object.json"],
            ["object.json: has no k"],
        ),
        (["rescale", "empty", "--out", "out"], ["give either --k or --k-from"]),
        (["rescale", "empty", "--out", "out", "--k", "no"], ["k must be a finite number above 0"]),
        (
            ["rescale", "empty", "--out", "out", "--k", "2", "--pairs", "list.json"],
            ["--pairs is what --k auto is chosen on"],
        ),
        (
            ["rescale", "empty", "--out", "out", "--k", "auto", "--pairs", "absent.jsonl"],
            ["absent.jsonl: no such file"],
        ),
        (
            ["rescale", "empty", "--out", "out", "--k", "auto", "--pairs", "list.json"],
            ["list.json: expected a file .jsonl[.gz] or .parquet"],
        ),
        (["rescale", "no such model", "--out", "out", "--k", "2"], ["'no such model' is neither"]),
        (["config", "schema", "--out", "list.json/x"], ["list.json/x: Not a directory"]),
        (["config", "schema", "--out", "taken"], ["taken/config.schema.json: Is a directory"]),
        (
            ["encode", "queries", "empty", "list.json", "o.npz", "--device", "tpu"],
            ["--device: expected cpu, cuda or cuda:NUMBER, found 'tpu'"],
        ),
    ],
)
def test_mistakes_are_one_message_and_exit_code_1(command, tmp_path, arguments, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken" / "config.schema.json").mkdir(parents=True)
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "object.json").write_text(json.dumps({"scale": 4}))
    code, _, error = command(*arguments)
    assert code == 1
    for word in ["error: ", *words]:
        assert word in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_an_error_of_ours_shows_where_it_arose(command, monkeypatch):
    def broken() -> dict:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("splade_rescale.config.json_schemas", broken)
    code, _, error = command("config", "schema")
    assert code == 2
    assert "Traceback" in error and "in broken" in error


def test_a_data_set_in_one_process_is_encoded_as_in_two(command, tiny_checkpoint, tmp_path):
    texts = {"text": ["one two", "three", ""]}
    (tmp_path / "data").mkdir()
    for name, ids in {"corpus": "doc_id", "queries": "query_id"}.items():
        columns = {ids: ["a", "b", "c"], "title": ["", "x", "y"], **texts}
        pq.write_table(pa.table(columns), tmp_path / "data" / f"{name}.parquet")
    model = tiny_checkpoint()
    lengths = ("--settings", '{"query_length": 8, "document_length": 16}')
    for name in ("corpus", "queries"):
        command("encode", name, model, f"data/{name}.parquet", f"two/{name}.npz", *lengths)
    outputs = ("one/corpus.npz", "one/queries.npz")
    assert command("encode", "dataset", model, "data", *outputs, *lengths)[0] == 0
    for name in ("corpus", "queries"):
        for kind in ("npz", "ids.parquet"):
            file = f"{name}.{kind}"
            assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_rescale_chooses_k_on_pairs_of_ones_own_or_on_docstrings(
    command, tiny_checkpoint, tmp_path
):
    tiny_checkpoint("bert")
    words = ["cat", "dog", "fish", "bird", "house", "tree"]
    rows = [{"query": f"{a} {b}", "positive": f"the {a} sees {b}"} for a in words for b in words]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    chosen = []
    for out, options in {"own": ["--pairs", "pairs.jsonl"], "docstrings": []}.items():
        code, printed, _ = command("rescale", "backbone", "--k", "auto", "--out", out, *options)
        assert code == 0
        chosen.append(printed.split()[2].rstrip(":"))
        assert json.loads((tmp_path / out / "rescale.json").read_text())["k"] == float(chosen[-1])
    (tmp_path / "data").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / "train.parquet")
    command("choose-k", "backbone", "auto.json", "--dataset", "data")
    assert json.loads((tmp_path / "auto.json").read_text())["k"] == chosen[0]
