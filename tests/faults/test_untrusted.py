"""What a hostile repository, registry entry or environment cannot do."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from hub import data, models
from hub.client import environment
from hub.server import TOKEN, Hub, Repository
from splade_rescale.config import load_experiment
from splade_rescale.errors import UserError
from splade_rescale.head import load_masked_lm, load_tokenizer
from splade_rescale.settings import HubBackbone

from .miniature import CONFIG, ROOT, Miniature, variables

COMMIT = "1" * 40
DOCUMENTS = [{"_id": f"d{i}", "title": "", "text": f"text number {i}"} for i in range(4)]
FILES = {
    "corpus.parquet": data.encode("corpus.parquet", DOCUMENTS),
    "queries.jsonl": data.encode("queries.jsonl", [{"_id": "q1", "text": "number 1"}]),
    "test.tsv": b"query-id\tcorpus-id\tscore\nq1\td1\t1\n",
}


def part(name):
    return {"id": "made/set", "revision": COMMIT, "files": [name]}


ENTRY = {
    "source": "hub",
    "corpus": part("corpus.parquet"),
    "queries": part("queries.jsonl"),
    "qrels": part("test.tsv"),
    "measures": ["RR@10"],
}


@pytest.fixture
def hub():
    with Hub([Repository("dataset", "made/set", COMMIT, {**FILES})]) as server:
        yield server


@pytest.fixture
def download(hub, tmp_path):
    """A function: registry entry, environment -> the finished command, and its folder."""

    def run(entry=ENTRY, prefix=(), **other):
        out = tmp_path / "work" / "out"
        out.parent.mkdir(exist_ok=True)
        home = {"HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT / "workflow")}
        command = [*prefix, sys.executable, "-m", "splade_rescale", "download", "dataset", "it"]
        done = subprocess.run(
            [*command, str(out), "--entry", json.dumps(entry)],
            env=environment(hub.endpoint, tmp_path / "home") | home | other,
            cwd=out.parent,
            capture_output=True,
            text=True,
        )
        return done, out

    return run


def refused(result, *words):
    done, folder = result
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert not folder.exists()
    return done.stderr


# Names of files on the hub


@pytest.mark.parametrize(
    "name", ["../../evil.jsonl", "/tmp/evil.jsonl", "a/../../../evil.jsonl", "..\\..\\evil.jsonl"]
)
def test_file_names_of_a_repository_stay_in_its_folder(download, hub, tmp_path, name):
    hub.repository("dataset", "made/set").files[name] = FILES["queries.jsonl"]
    before = {path for path in tmp_path.parent.rglob("*evil*")}
    entry = ENTRY | {"queries": part("*.jsonl")}
    done, out = download(entry)
    assert {path for path in tmp_path.parent.rglob("*evil*")} - before <= {
        path for path in (tmp_path / "home").rglob("*evil*")
    }
    assert not Path("/tmp/evil.jsonl").exists()
    if done.returncode == 0:  # the client may leave such a file out
        assert sorted(path.name for path in out.iterdir()) == [
            "corpus.parquet", "dataset.json", "qrels.parquet", "queries.parquet",
        ]  # fmt: skip
    else:
        refused((done, out), "made/set")


# The hub's cache


def blob_of(home, name):
    (path,) = home.rglob(f"snapshots/{COMMIT}/{name}")
    return path, path.resolve()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("corpus.parquet", "flipped bit"),
        ("queries.jsonl", "cut short"),
        ("test.tsv", "flipped bit"),
    ],
)
def test_a_damaged_cache_is_named_and_mended_by_removal(download, tmp_path, name, kind):
    done, out = download()
    assert done.returncode == 0, done.stderr
    expected = {path.name: path.read_bytes() for path in out.iterdir()}
    shutil.rmtree(out)
    path, blob = blob_of(tmp_path / "home", name)
    content = bytearray(blob.read_bytes())
    if kind == "cut short":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    blob.write_bytes(content)
    refused(download(), str(path), str(blob), "damaged in the cache")
    refused(download(HF_HUB_OFFLINE="1"), str(blob))
    blob.unlink()
    done, out = download()
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == expected


def test_a_cache_that_is_a_file_is_named(download, tmp_path):
    (tmp_path / "home").write_text("not a folder")
    refused(download(), str(tmp_path / "home"))


def test_a_cache_without_permission_is_named(download, tmp_path):
    prefix = []
    if os.geteuid() == 0:  # whom no permission stops, unless it gives up that privilege
        prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        if shutil.which("setpriv") is None:
            pytest.skip("permissions do not stop root, and there is no setpriv")
    (tmp_path / "home").mkdir(mode=0)
    try:
        refused(download(prefix=prefix), str(tmp_path / "home"), "Permission denied")
    finally:
        (tmp_path / "home").chmod(0o700)


# Code in a checkpoint


class Harmful:
    def __reduce__(self):
        return exec, ("open('INJECTED', 'w')",)


def test_a_checkpoint_runs_no_code_of_its_own(tmp_path, monkeypatch):
    """Code beside the weights that the configuration names, and pickles in place of weights."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "checkpoint"
    (repository,) = models.repositories({"bert-mini": HubBackbone(source="hub", id="a/b")})
    for name, content in repository.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        config = json.loads(path.read_text()) if path.exists() else {}
        config["auto_map"] = {
            "AutoConfig": "evil.Config",
            "AutoModelForMaskedLM": "evil.Model",
            "AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"],
        }
        path.write_text(json.dumps(config))
    (folder / "evil.py").write_text("open('INJECTED', 'w')\nclass Model: pass\n")
    load_tokenizer(folder)
    load_masked_lm(folder)
    assert not (tmp_path / "INJECTED").exists()

    (folder / "model.safetensors").unlink()
    torch.save({"weight": Harmful()}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="no safetensors weights"):
        load_masked_lm(folder)
    assert not (tmp_path / "INJECTED").exists()


# Secrets

WRONG = "hf_" + "wRoNg0123456789" * 2


def all_text(folder):
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path, path.read_bytes()


def ordinary(hub):
    pass


def gated(hub):
    hub.repository("dataset", "made/set").gated = True


def missing(hub):
    hub.repositories.clear()


def gone(hub):
    hub.repository("dataset", "made/set").commit = "2" * 40


def breaking(hub):
    hub.breaks["corpus.parquet"] = 10
    hub.mortal = True


@pytest.mark.parametrize(
    ("trouble", "token"),
    [
        (ordinary, TOKEN),
        (gated, TOKEN),
        (gated, WRONG),
        (missing, WRONG),
        (gone, WRONG),
        (breaking, WRONG),
    ],
)
def test_tokens_reach_no_log(download, hub, tmp_path, trouble, token):
    trouble(hub)
    done, _ = download(HF_TOKEN=token, HF_HUB_VERBOSITY="debug", HF_DEBUG="1")
    assert (done.returncode == 0) == (trouble is ordinary or (trouble is gated and token == TOKEN))
    assert "Traceback" not in done.stderr
    for secret in (token, token[3:]):
        assert secret not in done.stdout + done.stderr
        for path, content in all_text(tmp_path):
            assert secret.encode() not in content, path


def test_passwords_in_urls_reach_no_log(download, hub, tmp_path):
    where = hub.endpoint.replace("http://", "http://user:PassW0rd@")
    for other in (
        {"HF_ENDPOINT": where},
        {"HF_ENDPOINT": where.replace("127.0.0.1", "127.0.0.2")},
        {"HF_ENDPOINT": "https://user:PassW0rd@127.0.0.1:1"},
        {"HTTP_PROXY": "http://user:PassW0rd@127.0.0.1:1", "NO_PROXY": ""},
    ):
        done, _ = download(**other)
        assert "PassW0rd" not in done.stdout + done.stderr
        assert not [path for path, content in all_text(tmp_path / "work") if b"PassW0rd" in content]


def test_a_workflow_keeps_the_token_to_itself(hub, tmp_path):
    """Snakemake's own records and output included, with a job that fails."""
    gated(hub)
    config = CONFIG | {"registry": CONFIG["registry"] | {"datasets": {"mini": ENTRY}}}
    config = yaml.safe_load(yaml.safe_dump(config))
    config["train"]["dataset"] = "pydocs"
    config["backbones"] = ["tiny-bert"]
    del config["registry"]["backbones"]
    home = environment(hub.endpoint, tmp_path / "home", HF_TOKEN=WRONG)
    home["PYTHONPATH"] = str(ROOT / "workflow")
    miniature = Miniature(tmp_path / "work", home, config=config)
    status, output = miniature.run("resources/datasets/mini")
    assert status and "gated" in output
    assert WRONG not in output
    for path, content in all_text(tmp_path / "work"):
        assert WRONG.encode() not in content, path


# Shells

HOSTILE = "it's $(touch INJECTED) `touch INJECTED` \"; touch INJECTED; echo {wildcards} %s\\n #"


def test_paths_and_entries_run_no_shell(tmp_path):
    """A data set and its folder, with all that a shell would take for more than text."""
    folder = tmp_path / HOSTILE
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (
        ("corpus.jsonl", [{"_id": f"d{i} {HOSTILE}", "text": f"some text {i}"} for i in range(3)]),
        ("queries.jsonl", [{"_id": f"q {HOSTILE}", "text": HOSTILE}]),
    ):
        (folder / name).write_bytes(data.encode(name, rows))
    judged = f"q {HOSTILE}\td1 {HOSTILE}\t1\n"
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    config = yaml.safe_load(yaml.safe_dump(CONFIG))
    config["registry"]["datasets"]["hostile"] = {
        "source": "path", "path": str(folder), "measures": ["RR@10", "R@10"],
    }  # fmt: skip
    config["datasets"] = ["hostile"]
    miniature = Miniature(tmp_path / "work", variables(), config=config)
    miniature.make("results/bm25/hostile/metrics.json")
    assert not [*tmp_path.rglob("INJECTED")] and not Path("INJECTED").exists()
    found = pd.read_parquet(tmp_path / "work" / "resources/datasets/hostile/queries.parquet")
    assert list(found["query_id"]) == [f"q {HOSTILE}"]
    (path,) = (tmp_path / "work").rglob("per_query.parquet")
    assert set(pd.read_parquet(path)["query_id"]) == {f"q {HOSTILE}"}


@pytest.mark.parametrize("kind", ["datasets", "backbones", "arms"])
@pytest.mark.parametrize(
    "slug", ["a b", "a;b", "$(touch x)", "it's", "../up", "A", "", "-x", "{k}", "a\nb", "a/b"]
)
def test_slugs_are_no_shell_words(tmp_path, slug, kind):
    config = yaml.safe_load(yaml.safe_dump(CONFIG))
    if kind == "arms":
        config["arms"] = {slug: {"rescale": {"bias": "keep"}}}
    else:
        config["registry"][kind][slug] = {"source": "path", "path": str(tmp_path)}
    with pytest.raises(UserError, match=r"my\.yaml: "):
        load_experiment(config, ROOT / "config", "my.yaml")
