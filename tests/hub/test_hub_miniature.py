"""Downloads through the real client libraries from a hub on 127.0.0.1, faults included."""

import io
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from splade_rescale.config import Registry, read_yaml
from splade_rescale.head import load_masked_lm, load_tokenizer, verify_head
from splade_rescale.settings import HubBackbone, HubDataset

from . import data, models
from .client import environment
from .server import TOKEN, Hub, Repository

ROOT = Path(__file__).parents[2]
REGISTRY = Registry(
    backbones=read_yaml(ROOT / "config/backbones.yaml"),
    datasets=read_yaml(ROOT / "config/datasets.yaml"),
)
BACKBONES = {s: e for s, e in REGISTRY.backbones.items() if isinstance(e, HubBackbone)}
DATASETS = {s: e for s, e in REGISTRY.datasets.items() if isinstance(e, HubDataset)}


@pytest.fixture(scope="session")
def content():
    return data.repositories(DATASETS) + models.repositories(BACKBONES)


@pytest.fixture
def hub(content):
    with Hub([replace(repository, files={**repository.files}) for repository in content]) as server:
        yield server


@pytest.fixture
def download(hub, tmp_path):
    """A function: kind, slug -> finished `splade-rescale download`, and the folder it wrote."""

    def run(kind, slug, *, out="out", arguments=(), **variables):
        folder = tmp_path / out
        command = [sys.executable, "-m", "splade_rescale", "download", kind, slug, str(folder)]
        done = subprocess.run(
            [*command, *arguments],
            env=environment(hub.endpoint, tmp_path / "home", **variables),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        return done, folder

    return run


def ok(result):
    done, folder = result
    assert done.returncode == 0, done.stderr
    return folder


def refused(result):
    done, folder = result
    assert done.returncode != 0
    assert not folder.exists()
    assert "Traceback" not in done.stderr
    return done.stderr


def test_every_pin_is_a_commit_and_every_repository_has_one_revision():
    files = [
        part
        for entry in DATASETS.values()
        for part in (entry.corpus, entry.queries, entry.qrels, entry.train)
        if part
    ]
    pins = {(part.id, part.revision) for part in files}
    pins |= {(entry.id, entry.revision) for entry in BACKBONES.values()}
    assert len({name for name, _ in pins}) == len(pins)
    for name, revision in pins:
        assert revision == "main" or len(revision) == 40, name
    assert not any(entry.trust_remote_code for entry in BACKBONES.values())


def test_a_data_set_in_gzipped_json_lines_and_tsv(download, hub):
    folder = ok(download("dataset", "arguana"))
    corpus = pd.read_parquet(folder / "corpus.parquet")
    queries = pd.read_parquet(folder / "queries.parquet")
    qrels = pd.read_parquet(folder / "qrels.parquet")
    assert len(corpus) == data.DOCUMENTS
    assert len(queries) == data.QUERIES - 2  # the others belong to another split
    assert set(queries["query_id"]) == set(qrels["query_id"])
    assert set(queries["query_id"]) <= set(corpus["doc_id"]), "self-hits"
    provenance = json.loads((folder / "dataset.json").read_text())
    entry = DATASETS["arguana"]
    assert provenance["hub"]["qrels"]["commit"] == entry.qrels.revision
    assert sorted(hub.fetched()) == ["corpus.jsonl.gz", "queries.jsonl.gz", "test.tsv"]


def test_graded_judgements_of_a_data_set_that_shares_a_corpus(download):
    owner = ok(download("dataset", "msmarco-dev", out="owner"))
    for slug in ("trec-dl-2019", "trec-dl-2020"):
        arguments = ("--corpus-from", str(owner))
        folder = ok(download("dataset", slug, out=slug, arguments=arguments))
        assert set(pd.read_parquet(folder / "qrels.parquet")["relevance"]) == {0, 1, 2, 3}
        provenance = json.loads((folder / "dataset.json").read_text())
        assert provenance["qrels_outside_corpus"] == 0


def test_training_rows_in_parquet_shards_and_nano_sets_without_grades(download, hub):
    folder = ok(download("dataset", "msmarco-train"))
    train = pd.read_parquet(folder / "train.parquet")
    assert train.columns.tolist() == ["query", "positive", "negative"]
    assert len(train) == 400
    assert [name[:7] for name in hub.fetched()] == ["train-0"] * 2
    folder = ok(download("dataset", "nanobeir-quora", out="nano"))
    assert set(pd.read_parquet(folder / "qrels.parquet")["relevance"]) == {1}


@pytest.mark.parametrize("slug", BACKBONES)
def test_every_backbone_of_the_registry_loads_without_code_of_its_own(slug, download, hub):
    if slug in ("ettin-32m", "ettin-68m", "ettin-1b", "modernbert-large"):
        pytest.skip("the same as another size")
    folder = ok(download("backbone", slug))
    commit = json.loads((folder / "backbone.json").read_text())["commit"]
    assert commit == hub.repository("model", BACKBONES[slug].id).commit
    pickled = slug == "ettin-400m"
    assert ("pytorch_model.bin" in hub.fetched()) == pickled
    assert not {"tf_model.h5", "model.onnx", "modeling.py"} & set(hub.fetched())
    model, tokenizer = load_masked_lm(folder), load_tokenizer(folder)
    verify_head(model)
    ids = tokenizer("the river bank", return_tensors="pt")["input_ids"]
    assert ids.shape[1] >= 5 and tokenizer.unk_token_id not in ids[0][1:4]


MEGABYTE = 2**20


@pytest.fixture
def large(hub):
    """Training rows in a small file and one of 24 MiB (the client writes 10 MiB at a time)."""
    rows = [
        {"query": f"q{i}", "positive": random.Random(i).randbytes(8192).hex()} for i in range(1600)
    ]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer, compression="none", use_dictionary=False)
    files = {"a.parquet": data.encode("a.parquet", rows[:1]), "b.parquet": buffer.getvalue()}
    assert 24 * MEGABYTE < len(files["b.parquet"]) < 30 * MEGABYTE
    hub.repositories.append(Repository("dataset", "made/large", "1" * 40, files))
    entry = {"source": "hub", "train": {"id": "made/large", "files": ["*.parquet"]}}
    return len(files["b.parquet"]), ("--entry", json.dumps(entry))


def of_file(requests, name):
    return [r for r in requests if r.path.endswith(f"/{name}") and r.sent]


def test_a_broken_connection_is_taken_up_where_it_broke(download, hub, large):
    size, arguments = large
    hub.breaks["b.parquet"] = 12 * MEGABYTE
    folder = ok(download("dataset", "large", arguments=arguments))
    assert len(pd.read_parquet(folder / "train.parquet")) == 1601
    first, second = of_file(hub.requests, "b.parquet")
    assert second.range == f"bytes={10 * MEGABYTE}-"
    assert first.sent + second.sent == size + 2 * MEGABYTE


def test_a_server_that_dies_is_named_and_the_next_run_fetches_the_rest(download, hub, large):
    size, arguments = large
    hub.breaks["b.parquet"] = 12 * MEGABYTE
    hub.mortal = True
    message = refused(download("dataset", "large", arguments=arguments))
    assert "made/large" in message and "network" in message

    # What is there is no smaller data set either
    message = refused(download("dataset", "large", arguments=arguments, HF_HUB_OFFLINE="1"))
    assert "made/large" in message and "HF_HUB_OFFLINE is set" in message

    hub.dead = False
    before = len(hub.requests)
    folder = ok(download("dataset", "large", arguments=arguments))
    assert len(pd.read_parquet(folder / "train.parquet")) == 1601
    assert [r.sent for r in of_file(hub.requests[before:], "b.parquet")] == [size]
    assert of_file(hub.requests[before:], "a.parquet") == []


def test_a_revision_that_is_gone(download, hub):
    hub.repository("dataset", "BeIR/fiqa-qrels").commit = "0" * 40
    message = refused(download("dataset", "fiqa"))
    revision = DATASETS["fiqa"].qrels.revision
    assert f"BeIR/fiqa-qrels at revision {revision}: no such revision" in message


@pytest.mark.parametrize(("kind", "slug"), [("dataset", "nq"), ("backbone", "bert-base")])
def test_a_gated_repository_says_which_and_how_to_log_in(kind, slug, download, hub):
    entry = DATASETS["nq"].corpus if kind == "dataset" else BACKBONES[slug]
    hub.repository(kind.replace("backbone", "model"), entry.id).gated = True
    message = refused(download(kind, slug))
    assert f"hub repository {entry.id}" in message
    assert "gated" in message and "hf auth login" in message and hub.endpoint in message
    ok(download(kind, slug, HF_TOKEN=TOKEN))


def test_a_repository_that_is_not_there(download, hub):
    hub.repositories = [r for r in hub.repositories if r.id != "BeIR/scifact"]
    message = refused(download("dataset", "scifact"))
    assert "BeIR/scifact" in message and "not found" in message and "hf auth login" in message


def test_offline_with_a_full_cache_and_with_an_empty_one(download, hub):
    message = refused(download("dataset", "scifact", HF_HUB_OFFLINE="1"))
    assert "BeIR/scifact" in message and "HF_HUB_OFFLINE is set" in message
    assert hub.requests == []
    first = ok(download("dataset", "scifact", out="first"))
    seen = len(hub.requests)
    second = ok(download("dataset", "scifact", out="second", HF_HUB_OFFLINE="1"))
    assert len(hub.requests) == seen
    for path in first.iterdir():
        assert (second / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("slug", "repository", "file", "rows", "words"),
    [
        (
            "nanobeir-nq",
            "zeta-alpha-ai/NanoNQ",
            "corpus/train-00000-of-00001.parquet",
            [{"id": "1", "contents": "x"}],
            ["found columns ['id', 'contents']", "expected ['_id', 'text']"],
        ),
        (
            "scidocs",
            "BeIR/scidocs",
            "corpus.jsonl.gz",
            [{"id": "1", "contents": "x"}],
            ["corpus.jsonl.gz:1", "'_id'"],
        ),
        (
            "msmarco-train",
            "sentence-transformers/msmarco-bm25",
            "triplet/train-00000-of-00002.parquet",
            [{"anchor": "q", "passage": "x"}],
            ["found columns ['anchor', 'passage']", "expected ['query', 'positive']"],
        ),
    ],
)
def test_a_data_file_with_other_columns(slug, repository, file, rows, words, download, hub):
    files = hub.repository("dataset", repository).files
    files[file] = data.encode(file, rows)
    message = refused(download("dataset", slug))
    for word in [file.rpartition("/")[2], *words]:
        assert word in message


def test_datasets_reads_the_same_repositories(hub, tmp_path):
    code = (
        "import datasets; d = datasets.load_dataset('zeta-alpha-ai/NanoNQ', "
        "data_files='corpus/*.parquet', split='train'); print(d.num_rows, d.column_names)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(hub.endpoint, tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=1)[0] == str(data.DOCUMENTS)


def test_content_is_the_same_in_every_run(content):
    again = {(r.kind, r.id): r for r in data.repositories(DATASETS)}
    few = {slug: BACKBONES[slug] for slug in ("albert", "roberta", "gte-mlm")}
    again |= {(r.kind, r.id): r for r in models.repositories(few)}
    for repository in content:
        if other := again.get((repository.kind, repository.id)):
            assert repository.files == other.files, repository.id
            assert repository.commit == other.commit


def test_the_miniature_follows_the_registry(content):
    named = {("model", entry.id) for entry in BACKBONES.values()}
    text = yaml.safe_dump([entry.model_dump() for entry in DATASETS.values()])
    served = {(r.kind, r.id) for r in content}
    assert named <= served
    assert all(f"id: {name}\n" in text for kind, name in served if kind == "dataset")
