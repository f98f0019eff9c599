import subprocess

import pytest
from safetensors.torch import load_file, save_file
from splade_rescale.checkpoint_files import copy_checkpoint
from splade_rescale.checksums import SUMS, check_sums, write_sums
from splade_rescale.errors import UserError
from splade_rescale.head import load_masked_lm, load_tokenizer


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "a b.json").write_text("{}")
    (tmp_path / "part" / "weights").write_bytes(bytes(range(256)))
    (tmp_path / ".hidden").write_text("of nobody's concern")
    write_sums(tmp_path)
    return tmp_path


def flip(path, place=-1):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_sha256sum_reads_what_is_written(folder):
    assert len((folder / SUMS).read_text().splitlines()) == 2
    check_sums(folder)
    check = ["sha256sum", "--check", "--strict", SUMS]
    assert subprocess.run(check, cwd=folder, capture_output=True).returncode == 0
    flip(folder / "part" / "weights")
    assert subprocess.run(check, cwd=folder, capture_output=True).returncode == 1


def test_a_flipped_bit_is_named(folder):
    flip(folder / "part" / "weights", 100)
    with pytest.raises(UserError, match=r"part/weights: its SHA-256 is not that in SHA256SUMS"):
        check_sums(folder)
    check_sums(folder, "*.json")


def test_a_missing_file_and_damaged_sums_are_named(folder):
    (folder / "a b.json").unlink()
    with pytest.raises(UserError, match=r"a b\.json: no such file"):
        check_sums(folder, "*.json")
    check_sums(folder, "part/*")
    for damaged in (b"", b"half a line", b"\xff\xfe"):
        (folder / SUMS).write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{SUMS}.*damaged"):
            check_sums(folder)


def test_a_folder_without_sums_passes(folder):
    (folder / SUMS).unlink()
    check_sums(folder)


def test_checkpoints_are_checked_where_they_are_loaded(tiny_checkpoint, tmp_path):
    model = tiny_checkpoint(name="model")
    write_sums(model)
    load_masked_lm(model), load_tokenizer(model)

    # Still a checkpoint like any other, but for one bit of one weight.
    weights = {n: tensor.clone() for n, tensor in load_file(model / "model.safetensors").items()}
    flip(model / "model.safetensors")
    changed = load_file(model / "model.safetensors")
    assert sum(not weights[name].equal(changed[name]) for name in weights) == 1
    named = pytest.raises(UserError, match=r"model\.safetensors: its SHA-256")
    with named:
        load_masked_lm(model)
    (tmp_path / "copy").mkdir()
    with named:
        copy_checkpoint(model, tmp_path / "copy")
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    load_masked_lm(model)

    for name in ("tokenizer.json", "tokenizer_config.json"):
        content = (model / name).read_bytes()
        (model / name).write_bytes(content.replace(b" ", b"  ", 1))
        with pytest.raises(UserError, match=f"{name}: its SHA-256"):
            load_tokenizer(model)
        (model / name).write_bytes(content)
    (model / "README.md").write_text("A model card is the user's to edit.")
    load_tokenizer(model)
