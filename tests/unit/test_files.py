import pytest
from splade_rescale.errors import UserError
from splade_rescale.files import atomic_file, atomic_folder, canonical_json, read_json, write_json


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
