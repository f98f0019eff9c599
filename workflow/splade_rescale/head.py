"""The MLM head of any transformers masked language model.

The head's last layer is the *output projection* W [V, d] with an optional bias b [V]; the hidden
states that enter it, H [batch, seq, d], give the logits H W^T + b. transformers names that layer
itself (`get_output_embeddings()`), so nothing here depends on an architecture.

A model is *tied* when W is the very matrix of its input embeddings. transformers writes a tied
matrix once and ties it again when it loads, unless the configuration says
`tie_word_embeddings: false`; `untie` sees to both.

Some architectures (BERT, RoBERTa, ALBERT, MPNet, ...) hold a second parameter that transformers
ties to the projection's bias, such as `cls.predictions.bias`. In an untied model it takes no part
in the computation; here it is frozen and kept equal to the bias in what is saved, because
checkpoints written before transformers 5 have only that name for it.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.gte import GteConfig, GteForMaskedLM

from splade_rescale.checksums import check_sums
from splade_rescale.errors import UserError
from splade_rescale.files import read_json_object

_TOKENIZER_FILES = ("*token*.json", "vocab*", "merges.txt", "*.model")
_LOADING_ERRORS = (OSError, ValueError, TypeError, KeyError, RuntimeError, ImportError)


def load_masked_lm(
    folder: str | Path, *, trust_remote_code: bool = False, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Load a masked language model from a checkpoint folder, in eval mode, on the CPU.

    Every parameter must come from the checkpoint: a head that transformers would initialise at
    random is an error. The head is verified with `verify_head`.

    Args:
        folder: holds config.json and safetensors weights; nothing is fetched from anywhere. Where
            it holds a SHA256SUMS too, as all folders that this package writes, the files must
            agree with it.
        trust_remote_code: run Python code that the checkpoint names.
        dtype: of the parameters in memory, whatever the file's.

    Raises:
        UserError: names the folder, and what is missing, damaged or not supported.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such checkpoint folder")
    check_sums(folder, "config.json", "*.safetensors", "*.safetensors.index.json")
    config = read_json_object(folder / "config.json")
    weights = ["model.safetensors", "model.safetensors.index.json"]
    if not any((folder / name).is_file() for name in weights):
        raise UserError(
            f"{folder}: no safetensors weights; expected {weights[0]} or {weights[1]} "
            "(pickled .bin weights are not loaded: convert them)"
        )
    options = {
        "use_safetensors": True,
        "local_files_only": True,
        "output_loading_info": True,
        "dtype": dtype,
    }
    try:
        if config.get("model_type") == "new" and not trust_remote_code:
            # GTE as first published with its own code; transformers has since taken it in as
            # "gte" and converts those weights, but does not know the old name.
            gte = GteConfig.from_dict({**config, "model_type": GteConfig.model_type})
            model, report = GteForMaskedLM.from_pretrained(folder, config=gte, **options)
        else:
            model, report = AutoModelForMaskedLM.from_pretrained(
                folder, trust_remote_code=trust_remote_code, **options
            )
    except (*_LOADING_ERRORS, SafetensorError, StrictDataclassError) as error:
        raise UserError(
            f"{folder}: cannot be loaded as a masked language model: {_first_line(error)}"
        ) from error

    missing = set(report["missing_keys"])
    twin = _bias_twin(model)
    if twin is not None and len(missing & {twin.bias_name, twin.name}) == 1:
        present, absent = twin.parameter, twin.bias
        if twin.name in missing:
            present, absent = absent, present
        absent.data.copy_(present.data)
        missing -= {twin.bias_name, twin.name}
    if missing:
        raise UserError(
            f"{folder}: the checkpoint has no weights for {_some(missing)} of "
            f"{type(model).__name__}; a masked language model with its whole head is expected"
        )
    if twin is not None and not is_tied(model):
        twin.parameter.requires_grad_(False)
    try:
        verify_head(model)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    return model.eval()


def load_tokenizer(
    folder: str | Path, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint folder.

    Raises:
        UserError: names the folder; no tokenizer is there, or it has no padding token.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such checkpoint folder")
    check_sums(folder, *_TOKENIZER_FILES)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    # tokenizers raises bare Exception for a damaged tokenizer.json
    except Exception as error:
        raise UserError(f"{folder}: no tokenizer can be loaded: {_first_line(error)}") from error
    if tokenizer.pad_token_id is None:
        raise UserError(f"{folder}: the tokenizer has no padding token; one is needed for batches")
    return tokenizer


def save_masked_lm(model: PreTrainedModel, folder: str | Path) -> None:
    """Write `model` as an ordinary checkpoint that plain `from_pretrained` reloads exactly.

    Weights that lie in `folder` are replaced, also where `model` was loaded from them.
    """
    # Loaded tensors may be maps of those files, so they are unlinked and never written over.
    for path in Path(folder).glob("*.safetensors*"):
        path.unlink()
    twin = _bias_twin(model)
    if twin is not None:
        twin.parameter.data.copy_(twin.bias.data)
    model.save_pretrained(folder)


def output_projection(model: PreTrainedModel) -> tuple[str, nn.Linear]:
    """The module path and the module of the output projection, W [V, d] and bias [V] or None.

    Raises:
        UserError: names the architecture that has none, or one that is no plain linear layer.
    """
    projection = model.get_output_embeddings()
    name = next((name for name, module in model.named_modules() if module is projection), None)
    if not isinstance(projection, nn.Linear) or name is None:
        found = "none" if projection is None else type(projection).__name__
        raise UserError(
            f"{type(model).__name__}: its output projection must be a linear layer, found {found}"
        )
    return name, projection


def is_tied(model: PreTrainedModel) -> bool:
    """Whether the output projection's weight is the input embeddings' own storage."""
    _, projection = output_projection(model)
    return projection.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()


def untie(model: PreTrainedModel) -> None:
    """Give the output projection a weight and bias of its own, for good; values stay as they are.

    The configuration then says so too, hence a saved checkpoint reloads untied.

    Raises:
        UserError: transformers ties more than the head in this architecture, and the one switch
            of the configuration would undo that as well.
    """
    name, projection = output_projection(model)
    own = {f"{name}.weight", f"{name}.bias"}
    others = set(model.all_tied_weights_keys) - own
    if others:
        raise UserError(
            f"{type(model).__name__}: cannot be untied, since {_some(others)} are tied as well"
        )
    twin = _bias_twin(model)
    projection.weight = nn.Parameter(projection.weight.detach().clone())
    if twin is not None:
        projection.bias = nn.Parameter(projection.bias.detach().clone())
        twin.parameter.requires_grad_(False)
    model.config.tie_word_embeddings = False
    for key in own:
        model.all_tied_weights_keys.pop(key, None)


@torch.no_grad()
def scale_head(
    model: PreTrainedModel,
    k: float,
    *,
    tying: Literal["shared", "untied"],
    bias: Literal["scale", "keep"],
) -> None:
    """Divide the output projection by k in place: W <- W / k, and b <- b / k if `bias` is scale.

    Args:
        model: its parameters should be float32 or wider.
        k: finite and above 0.
        tying: `shared` divides the tied matrix, which scales the input embeddings as well;
            `untied` gives the output projection a matrix of its own and divides only that.
        bias: `scale` divides all logits by the same k; `keep` leaves the bias as it is.

    Raises:
        UserError: k is out of range, the result is all zeros or not finite, or `shared` is asked
            of a model that is not tied.
    """
    if not (math.isfinite(k) and k > 0):
        raise UserError(f"k must be a finite number above 0, found {k!r}")
    if tying == "untied":
        untie(model)
    elif not is_tied(model):
        raise UserError(
            f"tying: shared divides a matrix that input embeddings and head share, but this "
            f"{type(model).__name__} has two; use tying: untied"
        )
    _, projection = output_projection(model)
    parameters = [projection.weight]
    if bias == "scale" and projection.bias is not None:
        parameters.append(projection.bias)
    for parameter in parameters:
        active = bool(parameter.any())
        parameter.div_(k)
        if not parameter.isfinite().all() or bool(parameter.any()) != active:
            raise UserError(f"k = {k!r} takes the head out of the range of {parameter.dtype}")


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The number of tokens of the tokenizer; the logits may be wider (padded vocabularies).

    Raises:
        UserError: the tokenizer has tokens that the model has no row for.
    """
    rows = min(
        output_projection(model)[1].weight.shape[0], model.get_input_embeddings().weight.shape[0]
    )
    if len(tokenizer) > rows:
        raise UserError(
            f"the tokenizer has {len(tokenizer)} tokens, but {type(model).__name__} has rows for "
            f"only {rows}; they do not belong together"
        )
    return len(tokenizer)


@contextmanager
def head_bypassed(model: PreTrainedModel) -> Iterator[nn.Linear]:
    """Within the block the output projection hands through what enters it.

    `model(...).logits` are then the hidden states [batch, seq, d], with gradients. The model's
    modules, parameters and ties stay untouched, so that it can be saved at any other time.
    Yields the output projection.
    """
    _, projection = output_projection(model)
    projection.forward = _hand_through
    try:
        yield projection
    finally:
        del projection.forward


def hidden_states(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **other: torch.Tensor,
) -> torch.Tensor:
    """The hidden states [batch, seq, d] that enter the output projection.

    Args:
        model: any masked language model that `verify_head` accepts.
        input_ids: token ids [batch, seq].
        attention_mask: 1 for tokens and 0 for padding [batch, seq]; default all ones.
        other: further inputs of the model, such as token_type_ids.
    """
    with head_bypassed(model):
        return model(input_ids=input_ids, attention_mask=attention_mask, **other).logits


@torch.no_grad()
def verify_head(model: PreTrainedModel) -> None:
    """Check on a small random input that H W^T + b are the model's own logits.

    Raises:
        UserError: names the architecture whose logits are made otherwise.
    """
    _, projection = output_projection(model)
    weight, bias = projection.weight, projection.bias
    architecture = type(model).__name__
    generator = torch.Generator().manual_seed(0)
    rows = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(rows, (2, 7), generator=generator)
    pad = getattr(model.config, "pad_token_id", None)
    if pad is not None:
        ids[ids == pad] = (pad + 1) % rows
    ids = ids.to(weight.device)
    mask = torch.ones_like(ids)
    training = model.training
    model.eval()
    try:
        logits = model(input_ids=ids, attention_mask=mask).logits.float()
        hidden = hidden_states(model, ids, mask)
    except (*_LOADING_ERRORS, AttributeError, IndexError) as error:
        raise UserError(
            f"{architecture}: its hidden states cannot be read before the output projection: "
            f"{_first_line(error)}"
        ) from error
    finally:
        model.train(training)
    if hidden.shape != (*ids.shape, weight.shape[1]) or logits.shape[:2] != ids.shape:
        raise UserError(
            f"{architecture}: expected hidden states {[*ids.shape, weight.shape[1]]} before the "
            f"output projection, found {list(hidden.shape)}; something else is made of them"
        )
    expected = nn.functional.linear(hidden, weight, bias).float()
    tolerance = 1e-4 if weight.dtype == torch.float32 else 2e-2
    scale = max(1.0, logits.abs().max().item())
    if logits.shape != expected.shape or not torch.allclose(
        logits, expected, rtol=0, atol=tolerance * scale, equal_nan=True
    ):
        raise UserError(
            f"{architecture}: its logits are not hidden states x output projection + bias, so "
            "its head cannot be rescaled or pooled"
        )


class _BiasTwin:
    """A second parameter that transformers ties to the projection's bias."""

    def __init__(self, model: PreTrainedModel, bias_name: str, name: str) -> None:
        self.bias_name = bias_name
        self.name = name
        self.bias = model.get_parameter(bias_name)
        self.parameter = model.get_parameter(name)


def _bias_twin(model: PreTrainedModel) -> _BiasTwin | None:
    """The other parameter declared tied to the projection's bias, if there is one."""
    name, projection = output_projection(model)
    source = (getattr(model, "_tied_weights_keys", None) or {}).get(f"{name}.bias")
    if source is None or projection.bias is None:
        return None
    return _BiasTwin(model, f"{name}.bias", source)


def _hand_through(hidden: torch.Tensor) -> torch.Tensor:
    return hidden


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _some(names: set[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
