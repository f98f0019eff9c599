import os
import shlex
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from threading import Thread

import pytest
import yaml
from huggingface_hub import constants
from splade_rescale import cli, doctor
from splade_rescale.config import read_experiment
from splade_rescale.hub_needs import repositories_of

CONFIG = Path(__file__).parents[2] / "config"


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def answering(monkeypatch):
    """A function: status -> the hub's endpoint answers with it."""
    servers = []

    def start(status: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield start
    for server in servers:
        server.shutdown()


@pytest.mark.parametrize(
    ("version", "state"), [((3, 11), "ok"), ((3, 10), "fail"), ((3, 12), "warn")]
)
def test_python(version, state):
    found = doctor.python(version)
    assert found.state == state
    assert bool(found.mend) == (state != "ok")


def test_packages_against_the_lock(tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text("# pins\na==1.0\nb==2.0\nc==1 ; sys_platform == 'no such'\n")
    versions = {"a": "1.0+cpu", "b": "2.0"}

    def installed(name):
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    assert doctor.packages(lock, installed)[:3] == (
        "packages",
        "ok",
        "all 2 as lock.txt pins them",
    )
    versions["b"] = "2.1"
    found = doctor.packages(lock, installed)
    assert (found.state, found.found) == ("warn", "of another version: b 2.1 (pinned ==2.0)")
    del versions["a"]
    found = doctor.packages(lock, installed)
    assert found.state == "fail"
    assert found.found.startswith("1 missing: a==1.0; of another version: b")
    assert found.mend == f"{shlex.quote(sys.executable)} -m pip install --requirement {lock}"


def test_java_of_the_lock_runs_and_a_useless_java_home_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = doctor.java()
    assert found.state == "ok"
    assert "version" in found.found
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = doctor.java()
    assert (found.state, found.mend) == ("warn", "unset JAVA_HOME")
    (tmp_path / "release").write_text('JAVA_VERSION="25"\n')
    found = doctor.java()
    assert found.state == "fail"
    assert f"{tmp_path}: cannot be started" in found.found


@pytest.mark.parametrize(("free", "state"), [(0.5, "fail"), (5, "warn"), (500, "ok")])
def test_disk(free, state, tmp_path):
    assert doctor.disk(tmp_path, free).state == state


@pytest.mark.parametrize(("asked", "state"), [(0, "ok"), (2, "fail")])
def test_gpus_that_are_not_there(asked, state, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert doctor.gpus(asked).state == state


@pytest.mark.parametrize("needed", [True, False])
def test_the_hub_answers_or_not(needed, answering, monkeypatch):
    answering(404)
    assert doctor.hub(needed=needed).state == "ok"
    answering(503)
    found = doctor.hub(needed=needed)
    assert (found.state, "status 503" in found.found) == ("fail" if needed else "warn", True)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    found = doctor.hub(needed=needed)
    assert found.state == ("fail" if needed else "warn")
    assert "HF_ENDPOINT" in found.mend


def test_offline_only_the_cache_counts(offline, monkeypatch, tmp_path):
    assert "not asked" in doctor.hub(needed=True).found
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert doctor.hub_cache([]).state == "ok"
    needed = ["models/a/b", "datasets/c/d"]
    (tmp_path / "models--a--b" / "snapshots").mkdir(parents=True)
    found = doctor.hub_cache(needed)
    assert found.state == "fail"
    assert "1 of 2 repositories" in found.found
    assert "lacking: datasets/c/d" in found.found
    (tmp_path / "datasets--c--d" / "snapshots").mkdir(parents=True)
    assert doctor.hub_cache(needed).state == "ok"


def test_tokens_are_not_printed(monkeypatch, offline):
    token = "hf_" + "s3cret" * 5
    monkeypatch.setenv("HF_TOKEN", token)
    text = doctor.format_findings(
        [doctor.hub(needed=False), doctor.Finding("x", "fail", f"{token} and {token[3:]}", token)]
    )
    assert "a token is set" in text
    assert token not in text


def test_a_package_that_cannot_be_imported_is_a_finding(offline, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "splade_rescale.java", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    found = {each.name: each for each in doctor.examine(None, CONFIG, tmp_path)}
    for name in ("java", "cache", "hub"):
        assert found[name].state == "fail"
        assert "-m pip install --requirement" in found[name].mend
    assert found["python"].state == "ok"


def test_repositories_of_the_papers_configuration():
    found = repositories_of(read_experiment(CONFIG / "paper.yaml", CONFIG))
    assert found == sorted({*found})
    models = [each for each in found if each.startswith("models/")]
    assert len(models) == 7
    assert "models/FacebookAI/roberta-base" in models
    assert {"datasets/BeIR/fiqa-qrels", "datasets/sentence-transformers/msmarco-bm25"} <= {*found}
    assert repositories_of(read_experiment(CONFIG / "config.yaml", CONFIG)) == []


@pytest.mark.parametrize("right", [True, False])
def test_the_command_tells_by_its_exit_status(right, offline, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    config = {
        "backbones": ["tiny-bert"],
        "scales": [1],
        "datasets": ["pydocs" if right else "pydoc"],
        "train": {"dataset": "pydocs"},
    }
    Path("my.yaml").write_text(yaml.safe_dump(config))
    # Versions and room are the machine's, and tested above.
    monkeypatch.setattr(doctor, "packages", lambda lock: doctor.Finding("packages", "ok", "all"))
    monkeypatch.setattr(doctor, "disk", lambda folder: doctor.Finding("disk", "ok", "much"))
    arguments = ["splade-rescale", "doctor", "my.yaml", "--registries", str(CONFIG)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capsys.readouterr().out
    assert (end.value.code or 0) == (0 if right else 1), printed
    if not right:
        assert "did you mean pydocs" in printed
        assert "splade-rescale config check my.yaml" in printed
    assert sorted(os.listdir()) == ["my.yaml"]
