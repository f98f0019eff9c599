import subprocess
import sys

import pytest
import torch
from splade_rescale.loss_table import LOSSES
from splade_rescale.losses import contrastive, flops, kl, lambda_at, margin_mse, pair_scores
from splade_rescale.settings import TrainSettings
from splade_rescale.train_losses import Batch, loss_named


@pytest.fixture
def vectors():
    torch.manual_seed(0)
    return [torch.rand(4, 10) * (torch.rand(4, 10) < 0.5) for _ in range(3)]


def test_flops_by_hand():
    # means 1, 0, 1.5
    assert flops(torch.tensor([[2.0, 0, 1], [0, 0, 2]])) == 1 + 2.25


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_contrastive_equals_sentence_transformers(vectors, temperature):
    from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss

    judge = SparseMultipleNegativesRankingLoss(None, scale=1 / temperature)
    for columns in (vectors[:2], vectors):
        loss = contrastive(columns[0], torch.cat(columns[1:]), temperature)
        torch.testing.assert_close(loss, judge.compute_loss_from_embeddings(columns, None))


def test_contrastive_finds_its_document_among_those_of_other_devices(vectors):
    queries, own, other = vectors
    ours = contrastive(queries, torch.cat([other, own]), 1.0, first=4)
    torch.testing.assert_close(ours, contrastive(queries, torch.cat([own, other]), 1.0))


def test_distillation_equals_sentence_transformers(vectors):
    from sentence_transformers.sparse_encoder.losses import (
        SparseDistillKLDivLoss,
        SparseMarginMSELoss,
    )

    teacher = torch.randn(4, 2)
    scores = pair_scores(*vectors)
    judge = SparseMarginMSELoss(None)
    expected = judge.compute_loss_from_embeddings(vectors, teacher[:, 0] - teacher[:, 1])
    torch.testing.assert_close(margin_mse(scores, teacher), expected)
    judge = SparseDistillKLDivLoss(None, temperature=2.0)
    expected = judge.compute_loss_from_embeddings(vectors, teacher)
    torch.testing.assert_close(kl(scores, teacher, 2.0), expected)


def test_lambda_rises_quadratically_then_stays():
    values = [lambda_at(step, 90, 1 / 3, 8.0) for step in (0, 15, 30, 89)]
    assert values == [0, 2, 8, 8]
    assert lambda_at(0, 90, 0, 8.0) == 8
    assert lambda_at(45, 90, 1, 8.0) == 2


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_of_the_table_gives_gradients(vectors, name):
    settings = TrainSettings(dataset="x", loss=name)
    queries, *documents = [vector.requires_grad_() for vector in vectors]
    teacher = torch.randn(4, 2) if LOSSES[name].needs else None
    loss = loss_named(name)(Batch(queries, documents, teacher), settings)
    assert loss.shape == ()
    loss.backward()
    assert all(vector.grad.any() for vector in vectors)


def test_the_table_is_read_without_torch():
    code = "import sys, splade_rescale.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
