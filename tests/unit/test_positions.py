import pytest
from splade_rescale.errors import UserError
from splade_rescale.positions import check_length, most_tokens


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "mpnet", "max_position_embeddings": 514}, 512),
        ({"model_type": "camembert", "max_position_embeddings": 514, "pad_token_id": None}, 512),
        ({"model_type": "bert"}, None),
        ({"model_type": "bert", "max_position_embeddings": -1}, None),
        ({"model_type": "bert", "max_position_embeddings": None}, None),
    ],
)
def test_most_tokens(config, most):
    assert most_tokens(config) == most


@pytest.mark.parametrize("architecture", ["bert", "roberta", "camembert", "mpnet", "modernbert"])
def test_the_longest_text_is_what_the_model_takes(tiny_masked_lm, architecture):
    import torch

    model = tiny_masked_lm(architecture)
    most = most_tokens(model.config.to_dict())
    ids = torch.full((1, most), 7)
    assert model(input_ids=ids).logits.shape[1] == most
    if architecture != "modernbert":  # its positions are rotations: no table ends
        with pytest.raises((RuntimeError, IndexError)):
            model(input_ids=torch.full((1, most + 1), 7))


def test_a_length_beyond_is_refused():
    config = {"model_type": "bert", "max_position_embeddings": 80}
    check_length("x", config, 80)
    check_length("x", {}, 10**6)
    with pytest.raises(UserError, match="x: takes 80 tokens at most, settings say 81"):
        check_length("x", config, 81)
