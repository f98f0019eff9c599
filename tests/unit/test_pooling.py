import weakref

import pytest
import torch
from splade_rescale import pooling
from splade_rescale.pooling import splade_max_pool
from torch.utils._python_dispatch import TorchDispatchMode

BATCH, SEQ, WIDTH, VOCAB = 19, 11, 6, 70


def plain(hidden, mask, weight, bias=None):
    logits = torch.nn.functional.linear(hidden, weight, bias)
    logits = logits.masked_fill(~mask.bool()[..., None], -torch.inf)
    return torch.log1p(torch.relu(logits.max(dim=1).values))


def inputs(dtype=torch.float64, *, bias=True, seed=0):
    """Padding left, right and in the middle; text 2 is all padding, text 5 has none."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(BATCH, SEQ, WIDTH, dtype=torch.float64, generator=generator)
    weight = torch.randn(VOCAB, WIDTH, dtype=torch.float64, generator=generator)
    offset = torch.randn(VOCAB, dtype=torch.float64, generator=generator) - 2
    mask = (torch.rand(BATCH, SEQ, generator=generator) < 0.6).long()
    mask[2], mask[5] = 0, 1
    leaves = [hidden, weight, offset] if bias else [hidden, weight]
    leaves = [t.to(dtype).requires_grad_() for t in leaves]
    return leaves, mask


def both(function, leaves, mask, **options):
    hidden, *head = leaves
    weights = function(hidden, mask, *head, **options)
    upstream = torch.linspace(-1, 1, weights.numel(), dtype=weights.dtype).view_as(weights)
    return weights, torch.autograd.grad(weights, leaves, upstream)


@pytest.mark.parametrize("backward", ["auto", "sparse", "dense"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("block_bytes", [None, 500])
def test_equals_the_plain_formula(backward, bias, block_bytes):
    leaves, mask = inputs(bias=bias)
    options = {"backward": backward, "block_bytes": block_bytes}
    ours, our_gradients = both(splade_max_pool, leaves, mask, **options)
    theirs, their_gradients = both(plain, leaves, mask)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(our_gradients, their_gradients)
    with torch.no_grad():
        alone = splade_max_pool(leaves[0], mask, *leaves[1:], block_bytes=block_bytes)
    assert torch.equal(alone, ours)


@pytest.mark.parametrize("backward", ["sparse", "dense"])
def test_gradcheck(backward):
    leaves, mask = inputs()
    hidden, weight, bias = (t.detach()[:4].requires_grad_() for t in leaves)
    mask = mask[:4]
    assert torch.autograd.gradcheck(
        lambda *x: splade_max_pool(x[0], mask, *x[1:], backward=backward), (hidden, weight, bias)
    )


def test_equals_sentence_transformers():
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    def judge(hidden, mask, weight, bias):
        features = {
            "token_embeddings": torch.nn.functional.linear(hidden, weight, bias),
            "attention_mask": mask,
        }
        return SpladePooling("max").train()(features)["sentence_embedding"]

    leaves, mask = inputs(torch.float32)
    torch.testing.assert_close(both(splade_max_pool, leaves, mask), both(judge, leaves, mask))


def test_text_without_tokens_is_zero_and_takes_no_gradient():
    leaves, mask = inputs()
    leaves[2].data += 100  # a bias alone would light up every term
    weights, (hidden, _, _) = both(splade_max_pool, leaves, mask)
    assert not weights[2].any()
    assert not hidden[2].any()
    assert not hidden[mask == 0].any()
    only = splade_max_pool(leaves[0][2:3], mask[2:3], *leaves[1:])
    gradients = torch.autograd.grad(only.sum(), leaves)
    assert not any(g.any() for g in gradients)


def test_nan_is_passed_on():
    leaves, mask = inputs()
    leaves[0].data[5, 3, 0] = torch.nan
    weights, gradients = both(splade_max_pool, leaves, mask)
    assert weights[5].isnan().all()
    assert gradients[1].isnan().any()


@pytest.mark.parametrize("backward", ["sparse", "dense"])
@pytest.mark.parametrize("autocast", [True, False])
def test_bfloat16_errs_no_more_than_the_plain_formula_does(backward, autocast):
    rounded, mask = inputs(torch.bfloat16)
    exact = [t.detach().float().requires_grad_() for t in rounded]
    leaves = exact if autocast else rounded
    weights_truth, gradients_truth = both(plain, exact, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        weights, gradients = both(splade_max_pool, leaves, mask, backward=backward)
        _, gradients_plain = both(plain, leaves, mask)
    assert weights.dtype == torch.float32
    assert [g.dtype for g in gradients] == [t.dtype for t in leaves]
    torch.testing.assert_close(weights, weights_truth, rtol=0.02, atol=0.04)
    # Rounded logits tie, and a tie moves a term's gradient to another token: in both formulas.
    for ours, theirs, truth in zip(gradients, gradients_plain, gradients_truth, strict=True):
        allowed = 1.2 * (theirs.float() - truth).norm() + 0.01 * truth.norm()
        assert (ours.float() - truth).norm() < allowed < 0.3 * truth.norm()


def test_tied_matrix_takes_both_gradients():
    table = torch.randn(VOCAB, WIDTH, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(VOCAB, (BATCH, SEQ))
    mask = torch.ones_like(ids)
    found = [
        torch.autograd.grad(pool(table[ids], mask, table).sum(), table)[0]
        for pool in (splade_max_pool, plain)
    ]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backward", ["sparse", "dense"])
@pytest.mark.parametrize("shift", [-9, 0])
@pytest.mark.parametrize("device", [pooling._CPU, pooling._GPU])
def test_positions_of_few_and_of_many_active_terms(monkeypatch, backward, shift, device):
    """Both ways to find positions, with either kind of device's sizes."""
    monkeypatch.setattr(pooling, "_device", lambda _: device)
    leaves, mask = inputs()
    leaves[2].data += shift
    ours, our_gradients = both(splade_max_pool, leaves, mask, backward=backward)
    few = (ours > 0).double().mean() < pooling._CPU.searched_part
    assert few == (shift < 0)
    theirs, their_gradients = both(plain, leaves, mask)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(our_gradients, their_gradients)
    assert all(gradient.any() for gradient in our_gradients)


@pytest.mark.parametrize("bias", [True, False])
def test_backward_passes_agree_under_bfloat16_autocast(bias):
    leaves, mask = inputs(torch.float32, bias=bias)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sparse, sparse_gradients = both(splade_max_pool, leaves, mask, backward="sparse")
        dense, dense_gradients = both(splade_max_pool, leaves, mask, backward="dense")
    assert torch.equal(sparse, dense)
    # The positions are the same; the dense products round their factors to eight bits.
    for one, other in zip(sparse_gradients, dense_gradients, strict=True):
        assert (one - other).norm() <= 2**-8 * one.norm()


class Memory(TorchDispatchMode):
    """Largest tensor that is made, and most bytes of made tensors that live at a time."""

    def __init__(self):
        super().__init__()
        self.elements = self.living = self.peak = 0
        self.users = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        outputs = result if isinstance(result, (tuple, list)) else [result]
        for tensor in outputs:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
                self._count(tensor)
        return result

    def _count(self, tensor):
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if place not in self.users:
            self.users[place] = 0
            self.living += size
            self.peak = max(self.peak, self.living)
        self.users[place] += 1
        weakref.finalize(tensor, self._forget, place, size)

    def _forget(self, place, size):
        self.users[place] -= 1
        if not self.users[place]:
            del self.users[place]
            self.living -= size


def memory_of_a_pass(batch, seq, width, vocab, function=splade_max_pool, bias=-4.0, **options):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(batch, seq, width, generator=generator).requires_grad_()
    weight = torch.randn(vocab, width, generator=generator).requires_grad_()
    offset = torch.full((vocab,), bias, requires_grad=True)
    mask = torch.ones(batch, seq, dtype=torch.long)
    with Memory() as seen:
        function(hidden, mask, weight, offset, **options).sum().backward()
    assert all(leaf.grad.any() for leaf in (hidden, weight, offset))
    return seen


@pytest.mark.parametrize("backward", ["sparse", "dense"])
@pytest.mark.parametrize("device", [pooling._CPU, pooling._GPU])
def test_logits_are_never_whole(monkeypatch, backward, device):
    """A training step's size: 32 texts of 128 tokens, BERT's vocabulary."""
    monkeypatch.setattr(pooling, "_device", lambda _: device)
    batch, seq, vocab = 32, 128, 30_522
    seen = memory_of_a_pass(batch, seq, 2, vocab, backward=backward)
    assert batch * vocab <= seen.elements <= max(batch * vocab, device.block_bytes // 4)
    assert seen.elements < batch * seq * vocab / 7
    assert seen.peak < 4 * batch * seq * vocab / 3


@pytest.mark.parametrize("backward", ["sparse", "dense"])
def test_memory_is_flat_in_the_length(backward):
    size = {"batch": 8, "width": 2, "vocab": 5_000, "bias": 100.0}  # all terms are active
    options = {"block_bytes": 1 << 18, "backward": backward}
    short, long = (memory_of_a_pass(seq=seq, **size, **options).peak for seq in (32, 512))
    assert short < 1.2 * long and long < 1.2 * short
    assert memory_of_a_pass(seq=512, **size, function=plain).peak > 20 * long
