import csv

import pytest
import torch
from bench import cases, encoding, measure, speed, training
from bench.plot import draw
from safetensors.torch import save_file
from scipy import sparse


@pytest.fixture
def found(tmp_path):
    """What the sides found, as files to be changed."""
    tensors = {"vectors 0": torch.ones(2, 3), "weight": torch.ones(4), "key.bias": torch.zeros(2)}
    paths = {side: tmp_path / f"{number}.safetensors" for number, side in enumerate(training.SIDES)}
    for path in paths.values():
        save_file(tensors, path)
    return paths, tensors


def test_sides_that_differ_are_not_compared(found):
    paths, tensors = found
    training.check(paths)
    ours = paths["splade-rescale"]
    save_file(tensors | {"key.bias": torch.full((2,), 1e-9)}, ours)
    training.check(paths)
    for name, error in (("vectors 0", 1e-4), ("weight", 1e-2), ("key.bias", 1e-3)):
        save_file(tensors | {name: tensors[name] + error}, ours)
        with pytest.raises(SystemExit, match=f"splade-rescale: {name}"):
            training.check(paths)
    save_file({"weight": torch.ones(4)}, ours)
    with pytest.raises(SystemExit, match="alone"):
        training.check(paths)


def test_losses_that_differ_are_not_compared():
    steps = {side: [{"loss": 2.0}, {"loss": 1.0}] for side in training.SIDES}
    training.check_losses(steps, "losses")
    for wrong in (1.01, float("nan")):
        steps["plain formula"][1] = {"loss": wrong}
        with pytest.raises(SystemExit, match=r"plain formula: loss .* in step 1"):
            training.check_losses(steps, "losses")


def test_ratios_are_of_turns_side_by_side():
    answers = {
        "ours": [{"seconds": 1.0}, {"seconds": 2.0}, {"seconds": 1.0}],
        "theirs": [{"seconds": 3.0}, {"seconds": 8.0}, {"seconds": 5.0}],
    }
    found = measure.ratios(answers, "ours", "theirs")
    assert found == {"speed_min": 3, "speed_median": 4, "speed_max": 5}


def test_turns_are_taken_by_all_in_changing_order():
    asked = []
    sides = {name: (lambda _, name=name: asked.append(name) or {}) for name in "abc"}
    answers = measure.take_turns(sides, 3)
    assert "".join(asked) == "abcbcacab"
    assert {name: len(found) for name, found in answers.items()} == {"a": 3, "b": 3, "c": 3}
    asked.clear()
    answers = measure.take_turns(sides, 3, once=("c",))
    assert "".join(asked) == "abcbaab"
    assert {name: len(found) for name, found in answers.items()} == {"a": 3, "b": 3, "c": 1}


def test_a_process_that_fails_says_why():
    with (
        measure.Process("nowhere", {}, 1) as process,
        pytest.raises(SystemExit, match=r"bench.nowhere {}: ended\n.*No module named"),
    ):
        process()


def test_flops_are_those_of_torch():
    from torch.utils.flop_counter import FlopCounterMode

    case = cases.Case("bert", 2, 128, 1000)
    model = cases.build(case)
    model.set_attn_implementation("eager")  # the other's products are not counted on a CPU
    ids = torch.randint(5, 1000, (3, 16))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    counted = measure.encoder_flops(model, [16] * 3) + measure.head_flops(model, 3 * 16)
    assert counter.get_total_flops() == counted
    dense = training.flops(case, "plain formula", 4, [0.1, 0.1])
    ours = training.flops(case, "splade-rescale", 4, [0.1, 0.1])
    head = 2 * 128 * 1000 * 8 * cases.LENGTH
    assert dense - ours == pytest.approx(2 * head - 4 * 128 * 1000 * 4 * 0.2)


@pytest.mark.parametrize("architecture", ["bert", "modernbert"])
def test_a_model_of_a_case_has_its_part_of_terms_active(tmp_path, architecture):
    from splade_rescale.head import load_tokenizer
    from splade_rescale.splade import Splade

    case = cases.Case(architecture, 1, 64, 2000)
    texts = cases.read_texts(("datasets",))
    cases.write_model(tmp_path / "model", case, texts)
    splade, tokenizer = Splade.load(tmp_path / "model"), load_tokenizer(tmp_path / "model")
    inputs = tokenizer(
        list(texts["document"][16:32]),
        padding=True,
        truncation=True,
        max_length=cases.LENGTH,
        return_tensors="pt",
    )
    with torch.no_grad():
        active = (splade(**inputs) > 0).float().mean()
    assert cases.ACTIVE / 2 < active < cases.ACTIVE * 2


def test_table_and_plot(tmp_path):
    rows = [
        {"case": "a", "side": side, "speed_min": 1.0, "speed_median": 2.0, "speed_max": 3.0}
        | {"memory": 0.123456, "gemm_share": None}
        for side in training.SIDES
    ]
    speed.write_csv(tmp_path / "new" / "x.csv", rows)
    with (tmp_path / "new" / "x.csv").open() as file:
        first = next(csv.DictReader(file))
    assert first["memory"] == "0.1235" and first["gemm_share"] == ""
    assert "| a | plain formula | 1 | 2 | 3 | 0.123 |  |" in speed.markdown(rows)
    draw(rows, tmp_path / "x.svg", "training")
    assert "</svg>" in (tmp_path / "x.svg").read_text()


def test_sides_compute_the_same(monkeypatch):
    """The whole of it, on a tiny model."""
    monkeypatch.setitem(cases.CASES, "tiny", cases.Case("bert", 1, 64, 2000))
    rows = training.compare("tiny", 1, 1, 1e11, packages=("datasets",), batch=3)
    assert [row["side"] for row in rows] == list(training.SIDES)
    by_side = {row["side"]: row for row in rows}
    assert by_side[training.REFERENCE]["speed_median"] == 1
    assert all(row["memory"] > 0 and row["gemm_share"] > 0 for row in rows)


def test_vectors_that_differ_are_not_compared(tmp_path):
    whole = sparse.random_array((4, 50), density=0.3, rng=0, format="csr")
    paths = {side: tmp_path / f"{number}.npz" for number, side in enumerate(encoding.SIDES)}
    for path in paths.values():
        sparse.save_npz(path, whole)
    encoding.check(paths)
    for wrong in (whole * 1.001, whole[:3], whole[[1, 0, 2, 3]], whole * float("nan")):
        sparse.save_npz(paths["splade-rescale"], wrong)
        with pytest.raises(SystemExit, match="splade-rescale: "):
            encoding.check(paths)
    for path in paths.values():
        sparse.save_npz(path, whole * 0)
    with pytest.raises(SystemExit, match="differ"):
        encoding.check(paths)


def test_all_sides_encode_the_same(tmp_path, monkeypatch):
    """As `make bench` does before it measures, on a small model, in this process."""
    from splade_rescale import encode
    from splade_rescale.splade import Splade

    monkeypatch.setattr(Splade, "load", Splade.load)  # one side changes them
    monkeypatch.setattr(encode, "load_tokenizer", encode.load_tokenizer)
    texts = cases.read_texts(("datasets",))
    model = cases.write_model(tmp_path / "model", cases.Case("bert", 1, 64, 2000), texts)
    corpus = encoding._write_corpus(tmp_path / "c.parquet", list(texts["document"][:40]))
    found = {}
    for number, (side, make) in enumerate(encoding.MAKERS.items()):
        job = encoding._job(side, model, corpus, tmp_path / f"{number}", threads=2, length=50)
        found[side] = tmp_path / f"{number}.npz"
        sparse.save_npz(found[side], make(job)())
    encoding.check(found)
    assert sparse.load_npz(found["splade-rescale"]).shape == (40, 2000)
