"""SPLADE: a masked language model whose pooled logits are term weights.

A saved model is a plain transformers checkpoint. A few small JSON files beside it make
sentence-transformers' `SparseEncoder` load the same folder as the same model.
"""

import copy
import inspect
from pathlib import Path

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from splade_rescale.files import write_json
from splade_rescale.head import (
    hidden_states,
    load_masked_lm,
    output_projection,
    save_masked_lm,
)
from splade_rescale.pooling import splade_max_pool

_POOLING_FOLDER = "1_SpladePooling"


class Splade(nn.Module):
    """SPLADE-max over a masked language model (Formal et al. 2021, arXiv 2109.10086).

    Terms are the rows of the output projection. Where that has more rows than the tokenizer has
    tokens (padded vocabularies), the rows beyond are terms like any other: they are trained,
    regularised and indexed.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self._inputs = set(inspect.signature(model.forward).parameters)

    @property
    def vocabulary(self) -> int:
        """Number of terms: rows of the output projection."""
        return output_projection(self.model)[1].out_features

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **other: Tensor) -> Tensor:
        """Term weights of a batch of texts.

        Args:
            input_ids: `[batch, seq]`.
            attention_mask: 1 for tokens, 0 for padding, `[batch, seq]`. Special tokens are in
                the pool, padding is not.
            other: what else the tokenizer gives, as `token_type_ids`; what the model does not
                take is left out.

        Returns:
            `[batch, vocab]` float32, not negative.
        """
        other = {name: value for name, value in other.items() if name in self._inputs}
        hidden = hidden_states(self.model, input_ids, attention_mask, **other)
        # Read anew in each pass: a tied matrix is then one parameter with both gradients.
        projection = output_projection(self.model)[1]
        return splade_max_pool(hidden, attention_mask, projection.weight, projection.bias)

    def replica(self) -> "Splade":
        """Another model of the same tensors, for another thread.

        Modules must not be shared: a forward pass changes them for as long as it takes.
        """
        tensors = {id(tensor): tensor for tensor in (*self.parameters(), *self.buffers())}
        return copy.deepcopy(self, tensors)

    @classmethod
    def load(cls, folder: str | Path, *, trust_remote_code: bool = False) -> "Splade":
        """Load any masked-LM checkpoint folder, in float32 and eval mode.

        Raises:
            UserError: the folder holds no usable masked language model.
        """
        return cls(load_masked_lm(folder, trust_remote_code=trust_remote_code))

    def save(
        self,
        folder: str | Path,
        tokenizer: PreTrainedTokenizerBase,
        *,
        query_length: int,
        document_length: int,
    ) -> None:
        """Write model and tokenizer into `folder`, for transformers and for sentence-transformers.

        Args:
            folder: made if need be.
            tokenizer: saved along.
            query_length: tokens at which `SparseEncoder.encode_query` cuts, specials included.
            document_length: tokens at which `SparseEncoder.encode_document` cuts.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_masked_lm(self.model, folder)
        tokenizer.save_pretrained(folder)
        modules = ["base.modules.transformer.Transformer", "sparse_encoder.modules.SpladePooling"]
        write_json(
            folder / "modules.json",
            [
                {
                    "idx": index,
                    "name": str(index),
                    "path": path,
                    "type": f"sentence_transformers.{module}",
                }
                for index, (path, module) in enumerate(
                    zip(["", _POOLING_FOLDER], modules, strict=True)
                )
            ],
        )
        write_json(
            folder / "sentence_bert_config.json",
            {
                "transformer_task": "fill-mask",
                "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
                "module_output_name": "token_embeddings",
                "query_length": query_length,
                "document_length": document_length,
            },
        )
        write_json(
            folder / "config_sentence_transformers.json",
            {
                "model_type": "SparseEncoder",
                "prompts": {"query": "", "document": ""},
                "default_prompt_name": None,
                "similarity_fn_name": "dot",
            },
        )
        write_json(
            folder / _POOLING_FOLDER / "config.json",
            {
                "pooling_strategy": "max",
                "activation_function": "relu",
                "embedding_dimension": self.vocabulary,
            },
        )
