"""The losses that `train.loss` names: what a configuration may say, and where each is computed."""

from typing import NamedTuple


class Loss(NamedTuple):
    """A row of the table.

    Attributes:
        module: of the package, which has the function.
        function: takes a `train_losses.Batch` and the settings of training, returns a scalar.
        about: for the reader of a configuration.
        needs: columns that train.parquet must have beside query and positive: `negative`, or that
            and the teacher's `positive_score` and `negative_score`.
    """

    module: str
    function: str
    about: str
    needs: tuple[str, ...] = ()


_TAUGHT = ("negative", "positive_score", "negative_score")

#: Word in the configuration -> loss. This module does without torch, since settings read it.
LOSSES = {
    "contrastive": Loss(
        "train_losses", "contrastive_loss", "in-batch softmax cross-entropy (the paper)"
    ),
    "margin-mse": Loss(
        "train_losses",
        "margin_mse_loss",
        "distillation of the margins of teacher scores in train.parquet",
        needs=_TAUGHT,
    ),
    "kl": Loss(
        "train_losses",
        "kl_loss",
        "distillation of the softmax of teacher scores in train.parquet",
        needs=_TAUGHT,
    ),
}
