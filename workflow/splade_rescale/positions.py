"""How many tokens a model has positions for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splade_rescale.errors import UserError

#: Model types whose positions start behind the padding id: 1, unless the configuration says
#: something else (which MPNet's code does not look at).
_BEHIND_PADDING = frozenset(
    {
        "camembert",
        "data2vec-text",
        "ibert",
        "longformer",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)


def most_tokens(config: Mapping[str, Any]) -> int | None:
    """The longest input of a model, specials included; None where its configuration sets none.

    Args:
        config: as in config.json of its checkpoint.
    """
    positions = config.get("max_position_embeddings")
    if isinstance(positions, bool) or not isinstance(positions, int) or positions < 1:
        return None
    if config.get("model_type") in _BEHIND_PADDING:
        padding = None if config["model_type"] == "mpnet" else config.get("pad_token_id")
        positions -= (padding if isinstance(padding, int) else 1) + 1
    return positions


def check_length(where: str | Path, config: Mapping[str, Any], length: int) -> None:
    """Refuse a text length that the model has no positions for: texts would fail one by one.

    Args:
        where: the model's place, for the message.
        config: as in config.json of its checkpoint.
        length: tokens, specials included.

    Raises:
        UserError: how many tokens the model takes, and how many are asked for.
    """
    most = most_tokens(config)
    if most is not None and length > most:
        raise UserError(f"{where}: takes {most} tokens at most, settings say {length}")
