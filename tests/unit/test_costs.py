import csv
from pathlib import Path

import pytest
from splade_rescale.config import load_experiment, read_experiment
from splade_rescale.costs import Assumptions, Size, costs, format_costs, read_sizes
from splade_rescale.errors import UserError

ROOT = Path(__file__).parents[2]
SIZES = ROOT / "config" / "sizes"


@pytest.mark.parametrize(
    ("architecture", "options", "matrices", "embedding"),
    [
        ("bert", {}, 2, 32),
        ("distilbert", {}, 2, 32),
        ("roberta", {}, 2, 32),
        ("albert", {"embedding_size": 16}, 2, 16),
        ("modernbert", {}, 3, 32),
    ],
)
def test_operations_are_those_that_torch_counts(
    tiny_masked_lm, architecture, options, matrices, embedding
):
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = tiny_masked_lm(architecture, attn_implementation="eager", **options)
    vocabulary = model.get_output_embeddings().out_features
    size = Size(2, 32, 48, matrices, embedding, vocabulary)
    tokens = torch.ones(3, 20, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    counted = counter.get_total_flops()
    # ALBERT widens its embeddings by one more small matrix
    counted -= 60 * 2 * 16 * 32 if architecture == "albert" else 0
    assert counted == pytest.approx(60 * size.forward(20), rel=1e-9)


@pytest.mark.parametrize(
    ("backbone", "millions"),
    [("gte-mlm", 137), ("modernbert", 149), ("modernbert-large", 395), ("ettin-17m", 17),
     ("ettin-32m", 32), ("ettin-68m", 68), ("ettin-400m", 395), ("ettin-1b", 1028),
     ("bert-base", 110), ("distilbert", 67), ("roberta", 125)],
)  # fmt: skip
def test_sizes_add_up_to_the_published_number_of_parameters(backbone, millions):
    assert read_sizes(SIZES / "backbones.csv")[backbone].parameters / 1e6 == pytest.approx(
        millions, rel=0.02
    )


def experiment_of(tmp_path, **other):
    (tmp_path / "backbones.csv").write_text(
        "backbone,layers,hidden,intermediate,feed_forward_matrices,embedding,vocabulary\n"
        "bert-base,1,2,3,2,2,10\n"
    )
    (tmp_path / "datasets.csv").write_text(
        "dataset,documents,queries,document_words,train_rows\n"
        "msmarco-train,,,,64\nfiqa,1000,10,8,\nscifact,500,5,1000,\n"
    )
    config = {
        "backbones": ["bert-base"], "scales": [1, 2], "datasets": ["fiqa", "scifact"],
        "train": {"dataset": "msmarco-train", "batch_size": 8},
        "encode": {"document_length": 100, "max_terms": 50}, "search": {"hits": 20}, **other,
    }  # fmt: skip
    return load_experiment(config, ROOT / "config", "my.yaml")


def test_costs_by_hand(tmp_path):
    experiment = experiment_of(tmp_path)
    assume = Assumptions(
        gpu_tflops=1e-9, share=0.5, query_tokens=2, passage_tokens=4, pieces_per_word=2,
        padding=1, terms=10, index_bytes=2, run_bytes=3,
    )  # fmt: skip
    found = costs(experiment, tmp_path, assume)
    layer = 4 * 2 * 2 + 2 * 2 * 3
    head = 2 * 2 + 2 * 10

    def forward(length):
        return 2 * layer + 4 * length * 2 + 2 * head

    training = 3 * 64 * (2 * forward(2) + 2 * 4 * forward(4))
    encoding = 1000 * 18 * forward(18) + 500 * 100 * forward(100)
    (model,) = found["models"]
    assert model["train_pflop"] == pytest.approx(training / 1e15)
    assert model["encode_pflop"] == pytest.approx(encoding / 1e15)
    assert model["train_hours"] == pytest.approx(training / 500 / 3600)
    totals = found["totals"]
    assert totals["encode_hours"] == pytest.approx(2 * encoding / 500 / 3600)
    assert totals["vectors_gb"] == pytest.approx(2 * 1500 * 10 * 8 / 1e9)
    assert totals["indexes_gb"] == pytest.approx(2 * 1500 * 10 * 2 / 1e9)
    assert totals["runs_gb"] == pytest.approx(2 * 15 * 20 * 3 / 1e9)
    assert totals["dense_model_gb"] == pytest.approx(1500 * 50 * 8 / 1e9)
    parameters = layer + head
    assert totals["checkpoints_gb"] == pytest.approx(2 * 2 * 4 * parameters / 1e9)
    assert model["gpu_gb"] == pytest.approx((16 * parameters + 34 * 2 * 8 * 10) / 1e9)


def test_steps_examples_and_arms_are_counted(tmp_path):
    assume = Assumptions()
    whole = costs(experiment_of(tmp_path), tmp_path, assume)["models"][0]["train_pflop"]
    train = {"dataset": "msmarco-train", "batch_size": 8}
    half = experiment_of(tmp_path, train={**train, "max_examples": 32})
    assert costs(half, tmp_path, assume)["models"][0]["train_pflop"] == pytest.approx(whole / 2)
    steps = experiment_of(tmp_path, train={**train, "max_steps": 3, "accumulation": 2})
    assert costs(steps, tmp_path, assume)["models"][0]["train_pflop"] == pytest.approx(
        whole * 48 / 64
    )
    arms = {"twice": {"train": {"epochs": 2}, "scales": [4]}}
    found = costs(experiment_of(tmp_path, arms=arms), tmp_path, assume)
    assert [(m["arm"], m["trainings"]) for m in found["models"]] == [("", 2), ("twice", 1)]
    assert found["models"][1]["train_pflop"] == pytest.approx(2 * whole)
    assert found["totals"]["models"] == 3
    assert "twice/bert-base" in format_costs(found, assume)


def test_what_is_not_in_the_files_is_named(tmp_path):
    experiment = experiment_of(tmp_path, backbones=["bert-base", "roberta"])
    with pytest.raises(UserError, match=r"backbones\.csv: has no row for roberta; add one"):
        costs(experiment, tmp_path, Assumptions())
    experiment = experiment_of(tmp_path, datasets=["quora"])
    with pytest.raises(UserError, match=r"datasets\.csv: has no row for quora; add one"):
        costs(experiment, tmp_path, Assumptions())
    experiment = experiment_of(tmp_path)
    text = (tmp_path / "backbones.csv").read_text()
    (tmp_path / "backbones.csv").write_text(text.replace(",3,2", ",many,2"))
    with pytest.raises(UserError, match=r"backbones\.csv, line 2: intermediate is 'many'"):
        costs(experiment, tmp_path, Assumptions())


def test_the_sizes_know_the_registry_and_the_paper():
    with (SIZES / "backbones.csv").open() as file:
        rows = {row["backbone"]: row for row in csv.DictReader(file)}
    experiment = read_experiment(ROOT / "config" / "paper.yaml", ROOT / "config")
    for slug, entry in experiment.backbones.items():
        if entry.source == "hub":
            assert entry.id in rows[slug]["source"]
    found = costs(experiment, SIZES, Assumptions())
    assert found["totals"]["models"] == 35
    assert found["totals"]["documents"] == 33_403_296
    assert found["totals"]["queries"] == 40_311


def test_the_documented_costs_are_those_of_the_command():
    experiment = read_experiment(ROOT / "config" / "paper.yaml", ROOT / "config")
    text = format_costs(costs(experiment, SIZES, Assumptions()), Assumptions())
    page = (ROOT / "docs" / "scaling.md").read_text()
    assert page.partition("<!-- costs -->")[2].partition("<!-- /costs -->")[0].strip() == text
