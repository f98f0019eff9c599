import json

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from httpx2 import ConnectError, Request, Response
from huggingface_hub import constants, errors
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file
from splade_rescale import hub
from splade_rescale.errors import UserError
from splade_rescale.hub import (
    download_checkpoint,
    explained,
    local_backbone,
    read_dataset,
    snapshot,
)
from splade_rescale.settings import HubBackbone, HubDataset, HubFiles

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A cached snapshot as the hub client leaves it, links to blobs included; and its calls."""
    folder = tmp_path / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    calls = []

    def snapshot_download(repo_id, **options):
        calls.append((repo_id, options))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    def add(name, content):
        blob = tmp_path / "blobs" / f"{len(list(tmp_path.rglob('*')))}"
        blob.parent.mkdir(exist_ok=True)
        if isinstance(content, pa.Table):
            pq.write_table(content, blob)
        elif isinstance(content, list):
            blob.write_text("".join(json.dumps(row) + "\n" for row in content))
        else:
            blob.write_text(content)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(blob)

    return folder, add, calls


def tables(entry):
    parts = read_dataset(entry)
    read = {
        name: [row for batch in batches for row in batch.to_pylist()]
        for name, batches in parts.tables.items()
    }
    return read, parts.provenance


def files(*patterns, revision="main"):
    return HubFiles(id="someone/data", revision=revision, files=list(patterns))


def test_a_data_set_in_parquet_shards(repository):
    _, add, calls = repository
    # Shards in the order of their names; extra columns and files are left alone.
    for shard, names in [(1, ["007", "c"]), (0, ["a b", "é"])]:
        columns = {"_id": names, "title": [None, "t"], "text": ["x", "y"], "meta": [{"u": 1}] * 2}
        add(f"corpus/test-{shard}.parquet", pa.table(columns))
    add("queries/test.parquet", pa.table({"_id": [1, 2, 3], "text": ["q", "r", "s"]}))
    judged = {"query-id": [3, 1], "corpus-id": ["007", "gone"], "score": [2, 0]}
    add("qrels/test.parquet", pa.table(judged))
    add("corpus/train.parquet", pa.table({"nothing": [1]}))
    entry = HubDataset(
        source="hub",
        corpus=files("corpus/test-*.parquet", revision="v1"),
        queries=files("queries/test.parquet"),
        qrels=files("qrels/*"),
    )
    read, provenance = tables(entry)
    assert [row["doc_id"] for row in read["corpus"]] == ["a b", "é", "007", "c"]
    assert [row["title"] for row in read["corpus"]] == ["", "t", "", "t"]
    # The second query belongs to another split: nothing judges it.
    assert read["queries"] == [{"query_id": "1", "text": "q"}, {"query_id": "3", "text": "s"}]
    assert read["qrels"] == [
        {"query_id": "3", "doc_id": "007", "relevance": 2},
        {"query_id": "1", "doc_id": "gone", "relevance": 0},
    ]
    assert provenance["hub"]["corpus"] == {
        "id": "someone/data",
        "commit": COMMIT,
        "files": ["corpus/test-0.parquet", "corpus/test-1.parquet"],
    }
    assert calls[0] == (
        "someone/data",
        {
            "repo_type": "dataset",
            "revision": "v1",
            "allow_patterns": ["corpus/test-*.parquet"],
            "ignore_patterns": [],
        },
    )


def test_a_data_set_in_json_lines_and_tsv(repository):
    _, add, _ = repository
    add("corpus.jsonl", [{"_id": "007", "text": "x"}])
    add("queries.jsonl", [{"_id": "1", "text": "q"}])
    add("qrels/test.tsv", "query-id\tcorpus-id\tscore\n1\t007\t1\n")
    entry = HubDataset(
        source="hub",
        corpus=files("corpus.jsonl"),
        queries=files("queries.jsonl"),
        qrels=files("qrels/test.tsv"),
    )
    assert tables(entry)[0]["qrels"] == [{"query_id": "1", "doc_id": "007", "relevance": 1}]


def test_training_rows_alone(repository):
    _, add, _ = repository
    add("triplet/train-0.parquet", pa.table({"query": ["q"], "positive": ["p"], "negative": ["n"]}))
    read, _ = tables(HubDataset(source="hub", train=files("triplet/*.parquet")))
    assert read == {"train": [{"query": "q", "positive": "p", "negative": "n"}]}


def test_each_pattern_must_match_a_file(repository):
    _, add, _ = repository
    add("a.parquet", pa.table({"query": ["q"], "positive": ["p"]}))
    entry = HubDataset(source="hub", train=files("a.parquet", "b/*.parquet", revision="v2"))
    with pytest.raises(UserError, match=r"someone/data at revision v2: no file matches 'b/\*"):
        read_dataset(entry)


@pytest.mark.parametrize("pattern", ["../x.parquet", "a/../../x", "/etc/passwd"])
def test_patterns_that_lead_out_of_the_repository_are_refused(repository, pattern):
    with pytest.raises(UserError, match="leads out of the repository"):
        read_dataset(HubDataset(source="hub", train=files(pattern)))
    assert repository[2] == []


def test_missing_columns_are_named_with_file_and_what_is_there(repository):
    _, add, _ = repository
    add("a.parquet", pa.table({"id": ["1"], "text": ["q"]}))
    entry = HubDataset(source="hub", train=files("a.parquet"))
    message = r"a\.parquet: found columns \['id', 'text'\], expected \['query', 'positive'\] and"
    with pytest.raises(UserError, match=message):
        tables(entry)


def test_a_null_in_parquet_is_named_with_its_row(repository):
    _, add, _ = repository
    add("a.parquet", pa.table({"query": ["q", "q"], "positive": ["p", None]}))
    with pytest.raises(UserError, match=r"a\.parquet row 2: 'positive' must be a string, found No"):
        tables(HubDataset(source="hub", train=files("a.parquet")))


def test_duplicate_ids_across_shards_are_refused(repository):
    _, add, _ = repository
    for shard in "ab":
        add(f"{shard}.parquet", pa.table({"_id": ["1"], "text": ["x"]}))
    part = files("*.parquet")
    entry = HubDataset(source="hub", corpus=part, queries=part, qrels=part)
    with pytest.raises(UserError, match=r"b\.parquet row 1: duplicate .* at .*a\.parquet row 1"):
        tables(entry)


def test_files_of_unknown_format_are_refused(repository):
    _, add, _ = repository
    add("a.csv", "query,positive\nq,p\n")
    with pytest.raises(UserError, match=r"a\.csv: unknown format, expected \.jsonl"):
        tables(HubDataset(source="hub", train=files("a.csv")))


def checkpoint(add):
    for name in ("config.json", "tokenizer.json", "vocab.txt", "model.safetensors", "modeling.py"):
        add(name, name)
    for name in ("pytorch_model.bin", "README.md", "onnx/config.json", "onnx/model.safetensors"):
        add(name, name)


@pytest.mark.parametrize("trust", [False, True])
def test_a_checkpoint_is_copied_as_plain_files_without_pickles_or_untrusted_code(
    repository, tmp_path, trust
):
    _, add, calls = repository
    checkpoint(add)
    entry = HubBackbone(source="hub", id="a/b", revision=COMMIT, trust_remote_code=trust)
    out = tmp_path / "out"
    out.mkdir()
    patterns = ("*.json", "*.txt", "*.safetensors")
    provenance = download_checkpoint(entry, out, patterns)
    expected = ["config.json", "model.safetensors", *["modeling.py"] * trust]
    expected += ["tokenizer.json", "vocab.txt"]
    assert provenance == {"commit": COMMIT, "files": expected}
    assert sorted(path.name for path in out.iterdir()) == expected
    assert not any(path.is_symlink() for path in out.iterdir())
    assert (out / "config.json").read_text() == "config.json"
    assert calls[0][1]["repo_type"] == "model"


def pickled(add, folder, name, content):
    torch.save(content, folder / "pickle")
    (folder / name).unlink(missing_ok=True)
    add(name, "")
    (folder / name).write_bytes((folder / "pickle").read_bytes())
    (folder / "pickle").unlink()


def test_pickled_weights_become_safetensors_where_there_are_no_others(repository, tmp_path):
    folder, add, _ = repository
    shared = torch.arange(6.0).view(2, 3)
    first = {"embeddings.weight": shared, "decoder.weight": shared}
    pickled(add, folder, "pytorch_model-00001-of-00002.bin", first)
    pickled(add, folder, "pytorch_model-00002-of-00002.bin", {"decoder.bias": shared[:, 1]})
    for name in ("config.json", "pytorch_model.bin.index.json", "training_args.bin"):
        add(name, name)
    (tmp_path / "out").mkdir()
    unasked = HubBackbone(source="hub", id="a/b")
    with pytest.raises(UserError, match=r"a/b.*no \*\.safetensors.*allow_pickled_weights: true"):
        download_checkpoint(unasked, tmp_path / "out", ("*.json", "*.safetensors"))
    assert not any((tmp_path / "out").iterdir())
    entry = HubBackbone(source="hub", id="a/b", allow_pickled_weights=True)
    provenance = download_checkpoint(entry, tmp_path / "out", ("*.json", "*.safetensors"))
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert found == ["config.json", "model.safetensors"]
    weights = load_file(tmp_path / "out/model.safetensors")
    assert set(weights) == {"embeddings.weight", "decoder.weight", "decoder.bias"}
    assert torch.equal(weights["decoder.weight"], shared)
    assert torch.equal(weights["decoder.bias"], torch.tensor([1.0, 4.0]))
    assert provenance["files"][2] == "pytorch_model-00002-of-00002.bin"


class Harmful:
    def __reduce__(self):
        return print, ("code of a pickle is run",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weight": Harmful()}, "cannot be read as pickled weights; damaged, or it asks for code"),
        ([torch.ones(1)], "expected tensors by name, found list"),
        ({"step": 3}, "expected tensors by name, found dict"),
        (None, "cannot be read as pickled weights"),
    ],
)
def test_pickles_run_no_code(repository, tmp_path, capsys, content, message):
    folder, add, _ = repository
    add("config.json", "{}")
    pickled(add, folder, "pytorch_model.bin", content)
    if content is None:
        path = folder / "pytorch_model.bin"
        path.write_bytes(path.read_bytes()[:-200])
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=rf"pytorch_model\.bin: {message}"):
        entry = HubBackbone(source="hub", id="a/b", allow_pickled_weights=True)
        download_checkpoint(entry, tmp_path / "out", ("*.json",))
    assert "code of a pickle" not in capsys.readouterr().out


def http_error(kind, status):
    request = Request("GET", "https://hub.invalid/api/models/a/b")
    return kind(f"{status} Client Error", response=Response(status, request=request))


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (http_error(errors.RepositoryNotFoundError, 401), r"not found.*hf auth login"),
        (http_error(errors.GatedRepoError, 403), r"gated; accept .*hf auth login"),
        (http_error(errors.RevisionNotFoundError, 404), r"no such revision"),
        (http_error(errors.HfHubHTTPError, 401), r"answered 401; log in with `hf auth login`"),
        (http_error(errors.HfHubHTTPError, 503), r"answered 503; try again later"),
        (ConnectError("refused"), r"connection .* failed; check network.*ConnectError: refused"),
        (errors.LocalEntryNotFoundError("cannot find"), r"no usable answer.*check network"),
        (errors.HFValidationError("Repo id must be"), r"refused by the hub client \(Repo id must"),
    ],
)
def test_what_the_client_raises_is_explained(raised, message):
    with (
        pytest.raises(UserError, match=f"^hub repository a/b at revision v1: .*{message}"),
        explained("a/b", "v1"),
    ):
        raise raised


def test_the_reason_is_the_first_line_of_the_cause():
    error = errors.LocalEntryNotFoundError("An error happened; read the docs")
    error.__cause__ = ConnectError("no route to host\nand more")
    with (
        pytest.raises(UserError, match=r"network, proxy and HF_ENDPOINT \(no route to host\)$"),
        explained("a/b", "v1"),
    ):
        raise error


def test_offline_without_a_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"HF_HUB_OFFLINE is set; unset it, or download once"):
        snapshot("someone/data", "main", ("*.parquet",), kind="dataset")


def test_a_malformed_id_never_reaches_the_network(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="refused by the hub client"):
        snapshot("not a/repository/id", "main", ("*.parquet",), kind="dataset")


def test_progress_bars_are_for_terminals(repository, monkeypatch):
    _, add, _ = repository
    add("a.parquet", pa.table({"query": ["q"], "positive": ["p"]}))
    disabled = []
    monkeypatch.setattr(hub, "disable_progress_bars", lambda: disabled.append(True))
    for terminal in (True, False):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        snapshot("a/b", "main", ("*.parquet",), kind="dataset")
        assert len(disabled) == (not terminal)


def test_a_local_backbone_is_an_existing_folder(repository, tmp_path, monkeypatch):
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a/b", "./a/b", str(tmp_path / "a/b"), "~/a/b"):
        assert local_backbone(name).samefile(tmp_path / "a/b")
    assert repository[2] == []


@pytest.mark.parametrize("model", ["a/b", "bert-base-uncased"])
def test_a_local_backbone_is_otherwise_fetched_without_other_formats(repository, model):
    folder, add, calls = repository
    checkpoint(add)
    assert local_backbone(model, "v1") == folder
    ((name, options),) = calls
    assert (name, options["repo_type"], options["revision"]) == (model, "model", "v1")
    present = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    fetched = filter_repo_objects(
        present,
        allow_patterns=options["allow_patterns"],
        ignore_patterns=options["ignore_patterns"],
    )
    assert sorted(fetched) == ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"]


@pytest.mark.parametrize(
    "model", ["", "/no/such/folder", "./a", "a/b/c", "a b", "a/b.git", "~nobody-by-this-name/a/b"]
)
def test_a_local_backbone_that_is_neither_is_refused(repository, tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="neither an existing folder nor the id of a hub reposito"):
        local_backbone(model)
    assert repository[2] == []


def test_a_file_is_no_local_backbone(repository, tmp_path):
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(UserError, match=r"model\.safetensors' is neither an existing folder nor"):
        local_backbone(str(tmp_path / "model.safetensors"))


def test_an_unknown_repository_may_be_a_mistyped_folder(tmp_path, monkeypatch):
    def not_found(*_, **__):
        raise http_error(errors.RepositoryNotFoundError, 404)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", not_found)
    message = "'results/bert' is no existing folder, and hub repository results/bert .*: not found"
    with pytest.raises(UserError, match=message):
        local_backbone("results/bert")
