"""Losses of SPLADE training, on term weights; every score is a plain dot product."""

from torch import Tensor, arange, stack
from torch.nn import functional


def contrastive(queries: Tensor, documents: Tensor, temperature: float, first: int = 0) -> Tensor:
    """In-batch softmax cross-entropy; query i's relevant document is `first + i`.

    Args:
        queries: `[batch, vocab]`.
        documents: `[candidates, vocab]`: all positives, then any negatives.
        temperature: scores are divided by it.
        first: row of the first query's document, where documents of several devices are joined.

    Returns:
        Mean over the queries, a scalar.
    """
    scores = queries @ documents.T / temperature
    return functional.cross_entropy(scores, first + arange(len(queries), device=scores.device))


def flops(weights: Tensor) -> Tensor:
    """FLOPS regulariser of `weights [batch, vocab]`: sum over terms of the squared mean weight.

    Paria et al. 2020, arXiv 2004.05665.
    """
    return weights.mean(dim=0).square().sum()


def pair_scores(queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Scores `[batch, 2]` of each query with its own positive and negative (`[batch, vocab]`)."""
    return stack([(queries * positives).sum(1), (queries * negatives).sum(1)], dim=1)


def margin_mse(scores: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of the margins positive - negative of student and teacher.

    Hofstätter et al. 2020, arXiv 2010.02666. Both are `[batch, 2]`: positive, negative.
    """
    return functional.mse_loss(scores[:, 0] - scores[:, 1], teacher[:, 0] - teacher[:, 1])


def kl(scores: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of the softmax over `[batch, candidates]`, mean over the batch.

    Both scores are divided by the temperature; the loss is multiplied by its square, so that
    gradients keep their size (Hinton et al. 2015, arXiv 1503.02531).
    """
    student = (scores / temperature).log_softmax(dim=1)
    target = (teacher / temperature).log_softmax(dim=1)
    loss = functional.kl_div(student, target, reduction="batchmean", log_target=True)
    return loss * temperature**2


def lambda_at(step: int, total_steps: int, ramp: float, peak: float) -> float:
    """Weight of FLOPS at optimizer step `step`, counted from 0: peak * min(1, step/(ramp*total))^2.

    The quadratic ramp of SPLADE (Formal et al. 2021) over the part `ramp` of training; with
    `ramp` 0 it is `peak` at once.
    """
    rising = ramp * total_steps
    return peak * min(1.0, step / rising) ** 2 if rising > 0 else peak
