import errno
import os
import signal
import subprocess
import sys

import pyarrow as pa
import pytest
from safetensors import SafetensorError
from splade_rescale import files
from splade_rescale.errors import UserError
from splade_rescale.files import (
    atomic_file,
    atomic_folder,
    canonical_json,
    read_json,
    read_json_object,
    write_json,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_folder_leaves_the_old_one_and_nothing_else(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "weights").write_text("old")
    with pytest.raises(RuntimeError), atomic_folder(path) as temporary:
        (temporary / "weights").write_text("half")
        raise RuntimeError
    assert (path / "weights").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_whole(tmp_path):
    path = tmp_path / "deep" / "model"
    for name in ("first", "second"):
        with atomic_folder(path) as temporary:
            (temporary / name).write_text(name)
    assert [file.name for file in path.iterdir()] == ["second"]


def test_json_is_canonical_and_errors_name_the_file(tmp_path):
    assert canonical_json({"b": 1, "a": [1.5, None]}) == '{"a": [1.5, null], "b": 1}'
    write_json(tmp_path / "a.json", {"ä": 1})
    assert read_json(tmp_path / "a.json") == {"ä": 1}
    (tmp_path / "b.json").write_text('{"a": 1')
    with pytest.raises(UserError, match=r"b\.json"):
        read_json(tmp_path / "b.json")
    with pytest.raises(UserError, match=r"c\.json: no such file"):
        read_json(tmp_path / "c.json")


def _fill(temporary):
    (temporary / "part" if temporary.is_dir() else temporary).write_text("some")


def _killed_while_writing(path, atomic):
    """What a process leaves that dies by SIGKILL inside atomic_file or atomic_folder."""
    code = f"""
import os, signal, sys
from splade_rescale.files import {atomic.__name__}
with {atomic.__name__}(sys.argv[1]) as temporary:
    (temporary / "part" if temporary.is_dir() else temporary).write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    before = set(path.parent.iterdir())
    assert subprocess.run([sys.executable, "-c", code, path]).returncode == -signal.SIGKILL
    assert not path.exists()
    (left,) = set(path.parent.iterdir()) - before
    return left


def test_a_folder_without_the_mark_is_not_replaced(tmp_path):
    def write(path):
        with atomic_folder(path, mark="kind.json") as folder:
            (folder / "kind.json").write_text("new")

    thesis = tmp_path / "mine" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    for path in (thesis, thesis.parent):
        with pytest.raises(UserError, match=rf"{path}: exists and holds no kind\.json"):
            write(path)
    assert thesis.read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "absent"):
        write(path)
        write(path)
        assert [part.name for part in path.iterdir()] == ["kind.json"]
    assert len(list(tmp_path.iterdir())) == 3


def test_json_that_is_no_object(tmp_path):
    write_json(tmp_path / "a.json", {"k": 1})
    assert read_json_object(tmp_path / "a.json") == {"k": 1}
    write_json(tmp_path / "b.json", [1])
    with pytest.raises(UserError, match=r"b\.json: expected a JSON object, found list"):
        read_json_object(tmp_path / "b.json")


@pytest.mark.parametrize("atomic", [atomic_file, atomic_folder])
def test_what_a_killed_writer_left_is_cleared_by_the_next_of_that_path(tmp_path, atomic):
    path = tmp_path / "out [1]"
    _killed_while_writing(path, atomic)
    others = _killed_while_writing(tmp_path / "out [1].json", atomic)
    with atomic(path) as living:
        _fill(living)
        with atomic(path) as second:
            _fill(second)
            assert set(tmp_path.iterdir()) == {others, living, second}
    assert set(tmp_path.iterdir()) == {others, path}


@pytest.mark.parametrize("atomic", [atomic_file, atomic_folder])
def test_a_temporary_of_a_temporary_is_cleared(tmp_path, atomic):
    """As where a saved model, itself put in place whole, is a part of what is put in place."""
    path = tmp_path / "a"
    with atomic(path) as outer:
        _fill(outer)
        nested = _killed_while_writing(tmp_path / f"{outer.name}.part", atomic)
        nested = nested.rename(tmp_path / nested.name.replace(".part.", "."))
    assert set(tmp_path.iterdir()) == {path, nested}
    with atomic(path) as temporary:
        _fill(temporary)
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_writer_whose_id_lives_on_is_dead(tmp_path):
    """Its id is another process's, or nobody reaps it: both are common in containers."""
    path = tmp_path / "a"
    left = _killed_while_writing(path, atomic_file)
    process = left.name.removeprefix(".a.").split("-")[2]
    left.rename(tmp_path / left.name.replace(f"-{process}-", f"-{os.getpid()}-"))
    code = f"""
import os, signal
from pathlib import Path
from splade_rescale.files import atomic_file
with atomic_file(Path({str(path)!r})) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as unreaped:
        os.waitid(os.P_PID, unreaped.pid, os.WEXITED | os.WNOWAIT)
        (half,) = tmp_path.iterdir()
        assert f"-{unreaped.pid}-" in half.name
        with atomic_file(path) as temporary:
            temporary.write_text("whole")
        assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_of_another_machine_stays(tmp_path):
    path = tmp_path / "a"
    left = _killed_while_writing(path, atomic_folder)
    space = left.name.removeprefix(".a.").split("-")[0]
    foreign = left.rename(tmp_path / left.name.replace(space, "0" * 8))
    with atomic_folder(path):
        pass
    assert sorted(tmp_path.iterdir()) == sorted([foreign, path])


@pytest.mark.parametrize("atomic", [atomic_file, atomic_folder])
def test_a_temporary_of_an_earlier_boot_is_cleared(tmp_path, atomic):
    path = tmp_path / "a"
    left = _killed_while_writing(path, atomic)
    space = left.name.removeprefix(".a.").split("-")[1]
    old = left.rename(tmp_path / left.name.replace(space, "0" * 8))
    with atomic(path) as temporary:
        _fill(temporary)
    assert sorted(tmp_path.iterdir()) == sorted([old, path])  # it may be a living container's
    booted = files._machine()[1]
    assert booted > 0
    for part in [*old.rglob("*"), old]:
        os.utime(part, (booted - 60, booted - 60))
    with atomic(path) as temporary:
        _fill(temporary)
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    events = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(descriptor):
        events.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        real_sync(descriptor)

    def replace(source, target):
        events.append(("name", str(target)))
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with atomic_file(tmp_path / "a") as file:
        file.write_text("content")
    with atomic_folder(tmp_path / "b") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "part").write_text("content")
    sync, name = "sync", "name"
    assert events == [
        (sync, str(file)),
        (name, str(tmp_path / "a")),
        (sync, str(tmp_path)),
        (sync, str(folder / "deep" / "part")),
        (sync, str(folder / "deep")),
        (sync, str(folder)),
        (name, str(tmp_path / "b")),
        (sync, str(tmp_path)),
    ]


@pytest.mark.parametrize("atomic", [atomic_file, atomic_folder])
@pytest.mark.parametrize(
    "raised",
    [
        OSError(errno.ENOSPC, "Error writing bytes to file. Detail: No space left on device"),
        pa.lib.ArrowException("IOError: No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_named_whatever_library_found_it(tmp_path, atomic, raised):
    with pytest.raises(OSError) as caught, atomic(tmp_path / "a"):
        raise raised
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_errors_of_other_files_keep_their_names(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, atomic_file(tmp_path / "a"):
        (tmp_path / "other").read_text()
    assert caught.value.filename == str(tmp_path / "other")
    with pytest.raises(PermissionError) as caught, atomic_folder(tmp_path / "a") as folder:
        raise PermissionError(errno.EACCES, "no", str(folder / "part"))
    assert caught.value.filename == str(tmp_path / "a")


def test_the_last_of_two_writers_of_a_folder_wins(tmp_path, monkeypatch):
    """The job of a killed workflow lives on, and ends in the very moment that another one does."""
    path = tmp_path / "model"
    replace = os.replace

    def late(source, target):
        if target == path and not path.exists():
            path.mkdir()
            (path / "weights").write_text("of the other")
        replace(source, target)

    with atomic_folder(path) as temporary:
        (temporary / "weights").write_text("new")
        calls = iter([late])
        monkeypatch.setattr(os, "replace", lambda *both: next(calls, replace)(*both))
    assert (path / "weights").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_replacement_puts_the_old_folder_back(tmp_path, monkeypatch):
    path = tmp_path / "model"
    path.mkdir()
    (path / "weights").write_text("old")
    replace, calls = os.replace, []

    def interrupted(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_folder(path) as temporary:
        (temporary / "weights").write_text("new")
    assert (path / "weights").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
