import shutil
from pathlib import Path

import pytest
from splade_rescale import digest

PACKAGE = Path(digest.__file__).parent


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """Digest of a stage in a copy of the package after an edit of one module."""
    for path in PACKAGE.glob("*.py"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(digest, "__file__", str(tmp_path / "digest.py"))

    def edited(stage, module=None, text=""):
        if module:
            with (tmp_path / f"{module}.py").open("a") as file:
                file.write(text)
        digest._module.cache_clear()
        return digest.code_digest(stage)

    yield edited
    digest._module.cache_clear()


def test_comments_and_docstrings_do_not_count(edit):
    before = edit("evaluate")
    assert edit("evaluate", "evaluate", "\n# a comment\n") == before
    path = Path(digest.__file__).with_name("evaluate.py")
    path.write_text('"""Another docstring."""\n' + path.read_text().split('"""', 2)[2])
    assert edit("evaluate") == before


def test_code_of_a_stage_and_of_what_it_imports_counts(edit):
    before = edit("train")
    assert edit("train", "losses", "\nX = 1\n") != before


def test_evaluation_code_does_not_retrain(edit):
    before = edit("train")
    assert edit("train", "evaluate", "\nX = 1\n") == before
    assert edit("train", "table", "\nX = 1\n") == before


@pytest.mark.parametrize("stage", ["index", "search", "evaluate", "sparsity", "table"])
def test_light_stages_do_not_depend_on_torch_modules(edit, stage):
    before = edit(stage)
    for module in ("head", "pooling", "splade", "losses"):
        assert edit(stage, module, "\nX = 1\n") == before


def test_editing_an_engine_leaves_the_others_alone(edit):
    def of(*stages):
        return digest.code_digest(*stages)

    edit("index")
    lucene, bmp = of("index", "engine_lucene"), of("index", "engine_bmp")
    edit("index", "engine_bmp", "\nX = 1\n")
    assert of("index", "engine_lucene") == lucene
    assert of("index", "engine_bmp") != bmp
    edit("index", "engines", "\nX = 1\n")
    assert of("index", "engine_lucene") != lucene


def test_a_loss_of_a_module_of_its_own_leaves_the_others_alone(edit):
    def of(*stages):
        return digest.code_digest(*stages)

    edit("train", "loss_own", "X = 1\n")
    before, own = of("train", "train_losses"), of("train", "loss_own")
    edit("train", "loss_table", '\nLOSSES["own"] = Loss("loss_own", "own", "my own")\n')
    edit("train", "loss_own", "Y = 1\n")
    assert of("train", "train_losses") == before
    assert of("train", "loss_own") != own
