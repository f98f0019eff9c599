import json
import math

import pandas as pd
import pytest
from splade_rescale.choose_k import CANDIDATES, best_of, choose_k
from splade_rescale.errors import UserError
from splade_rescale.head import load_masked_lm, scale_head
from splade_rescale.settings import NormsSettings, RescaleSettings

UNTIED = RescaleSettings(tying="untied")
SETTINGS = NormsSettings(texts=16, batch_size=8)


def rows(losses, batch_size=8):
    return [{"k": k, "first_loss": loss, "batch_size": batch_size} for k, loss in losses.items()]


def test_the_smallest_loss_is_chosen():
    choice = best_of(rows({0.5: 9.0, 1: 3.0, 2: 1.0, 4: 1.5, 8: 2.0}))
    assert choice == {"k": "2", "first_loss": 1.0, "chance": math.log(8), "reliable": True}


def test_of_equal_losses_the_smallest_k():
    assert best_of(rows({4: 1.0, 2: 1.0, 1: 2.0, 8: 3.0}))["k"] == "2"


def test_a_loss_that_is_not_finite_is_passed_over():
    assert best_of(rows({0.5: math.inf, 1: math.nan, 2: 1.5, 4: 1.0, 8: 2}))["k"] == "4"
    with pytest.raises(UserError, match="no k at which the initial loss is finite"):
        best_of(rows({1: math.nan}))


@pytest.mark.parametrize(
    "losses",
    [
        {1: 1.0, 2: 1.1, 4: 1.2},  # the minimum may lie beyond those tried
        {1: 1.2, 2: 1.1, 4: 1.0},
        {1: 9.0, 2: math.log(8) * 0.99, 4: math.log(8)},  # hardly better than chance
    ],
)
def test_a_choice_that_means_little_says_so(losses):
    assert not best_of(rows(losses))["reliable"]


def test_a_gain_of_the_head_is_given_back(tiny_checkpoint, tiny_masked_lm, tmp_path):
    """Untied, the whole curve moves along with the head, so the choice does too."""
    words = ["cat dog", "red fish", "old city", "paper index", "slow river", "two birds"]
    train = tmp_path / "train.parquet"
    texts = [f"{a} {b}" for a in words for b in words[:3]]
    pd.DataFrame({"query": texts, "positive": texts}).to_parquet(train)
    plain = tiny_checkpoint("bert")
    twin = tmp_path / "twin"
    model = load_masked_lm(plain)
    scale_head(model, 1 / 8, tying="untied", bias="scale")
    model.save_pretrained(twin)
    tokenizer = [path for path in plain.iterdir() if path.name.startswith("tokenizer")]
    for path in tokenizer:
        (twin / path.name).write_bytes(path.read_bytes())
    out = tmp_path / "auto.json"
    first = choose_k(plain, train, SETTINGS, UNTIED, out=out)
    second = choose_k(twin, train, SETTINGS, UNTIED)
    assert float(second["k"]) == 8 * float(first["k"])
    assert second["first_loss"] == pytest.approx(first["first_loss"])
    written = json.loads(out.read_text())
    assert written["k"] == first["k"]
    assert [row["k"] for row in written["candidates"]] == list(CANDIDATES)
    losses = {row["k"]: row["first_loss"] for row in written["candidates"]}
    assert min(losses, key=losses.get) == float(first["k"])
