import pytest
import torch
from splade_rescale.head import is_tied, load_masked_lm, load_tokenizer, untie
from splade_rescale.splade import Splade
from transformers import AutoModelForMaskedLM, DistilBertForMaskedLM

TEXTS = ["the cat eats a fish", "", "dog", "one two three trees over the slow old river in paper"]
LENGTHS = {"query_length": 6, "document_length": 9}


def plain(model, batch):
    logits = model(**batch).logits.masked_fill(~batch["attention_mask"].bool()[..., None], -1e9)
    return torch.log1p(torch.relu(logits.max(dim=1).values))


def tokens(tokenizer, length=64):
    return tokenizer(TEXTS, padding=True, truncation=True, max_length=length, return_tensors="pt")


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta", "albert", "modernbert"])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_and_gradients_are_those_of_the_logits(
    tiny_masked_lm, tiny_tokenizer, architecture, tied
):
    model = tiny_masked_lm(architecture)
    if not tied:
        untie(model)
    batch = tokens(tiny_tokenizer)
    batch["token_type_ids"][:, 2:] = 1  # not what the model takes when it is given none
    results = []
    for function in (Splade(model), lambda **x: plain(model, x)):
        model.zero_grad()
        weights = function(**batch)
        weights.square().sum().backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        results.append((weights, gradients))
    assert results[0][0].any()
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-3)
    assert is_tied(model) is tied


def test_what_the_model_does_not_take_is_left_out(tiny_masked_lm, tiny_tokenizer):
    class Strict(DistilBertForMaskedLM):
        """Without **kwargs, as models that come with code of their own often are."""

        def forward(self, input_ids, attention_mask=None):
            return super().forward(input_ids=input_ids, attention_mask=attention_mask)

    model = tiny_masked_lm("distilbert")
    batch = tokens(tiny_tokenizer)
    assert "token_type_ids" in batch
    expected = Splade(model)(**batch)
    model.__class__ = Strict
    torch.testing.assert_close(Splade(model)(**batch), expected)


@pytest.mark.parametrize("architecture", ["bert", "modernbert"])
@pytest.mark.parametrize("tied", [True, False])
def test_saved_folder_is_the_same_model_everywhere(tiny_checkpoint, tmp_path, architecture, tied):
    from sentence_transformers import SparseEncoder

    source = tiny_checkpoint(architecture)
    tokenizer = load_tokenizer(source)
    model = load_masked_lm(source)
    if not tied:
        untie(model)
    folder = tmp_path / "saved"
    Splade(model).save(folder, tokenizer, **LENGTHS)

    for reloaded in (load_masked_lm(folder), AutoModelForMaskedLM.from_pretrained(folder)):
        assert is_tied(reloaded) is tied
        for (name, ours), theirs in zip(
            model.named_parameters(), reloaded.parameters(), strict=True
        ):
            assert torch.equal(ours, theirs), name

    ours = Splade.load(folder)
    judge = SparseEncoder(str(folder), device="cpu")
    for length, encode in ((6, judge.encode_query), (9, judge.encode_document)):
        batch = tokens(tokenizer, length)
        with torch.no_grad():
            weights = ours(**batch)
        assert weights.shape == (len(TEXTS), ours.vocabulary)
        theirs = encode(TEXTS, convert_to_sparse_tensor=False)
        torch.testing.assert_close(weights, torch.as_tensor(theirs))
    assert judge.similarity_fn_name == "dot"


def test_vocabulary_wider_than_the_tokenizer(tiny_masked_lm, tiny_tokenizer):
    model = Splade(tiny_masked_lm("bert", vocab_size=len(tiny_tokenizer) + 11))
    weights = model(**tokens(tiny_tokenizer))
    assert weights.shape[1] == model.vocabulary == len(tiny_tokenizer) + 11
    assert weights[:, len(tiny_tokenizer) :].any()
