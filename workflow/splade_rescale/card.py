"""The model card of a trained model folder: README.md, as the hub reads it.

Scores are those of the cells beside the folder, so the card is written after training and again
when the table is made. It is no part of SHA256SUMS: the owner of the model may edit it, until the
next table.
"""

from pathlib import Path
from typing import Any

from splade_rescale.errors import UserError
from splade_rescale.files import atomic_file, read_json_object

CARD = "README.md"
_TAGS = ["sentence-transformers", "sparse-encoder", "sparse", "splade", "splade-rescale"]
_LEAD = (
    "A learned sparse retriever (SPLADE-max), trained from a masked language model whose output "
    "projection was divided by k once, before training."
)


def write_card(model: Path) -> None:
    """Write README.md into a trained model folder.

    Raises:
        UserError: the folder is no trained model's, or a file of its cells is damaged.
    """
    text = card(model)
    with atomic_file(model / CARD) as temporary:
        temporary.write_text(text, encoding="utf-8")


def card(model: Path) -> str:
    """The card: metadata for the hub, what the model is made of, scores, and how to load it."""
    path = model / "train.json"
    made = read_json_object(path)
    try:
        init, settings = made["init"] or {}, made["settings"]
        scores = _scores(model)
        facts = _facts(made, init, settings)
        return "\n".join(
            [
                _metadata(model, init, scores),
                f"# {_title(model, init, made)}",
                "",
                _LEAD,
                "",
                *_status(made["status"]),
                *_table(["", ""], facts),
                "",
                "## Scores",
                "",
                *_score_lines(scores),
                "",
                "## How to load it",
                "",
                *_loading(settings["query_length"], settings["document_length"]),
            ]
        )
    except KeyError as error:
        raise UserError(f"{path}: lacks {error}; expected what training writes") from None


def _title(model: Path, init: dict[str, Any], made: dict[str, Any]) -> str:
    k = f", k = {init['k']:g}" if init else ""
    return f"{_backbone(init) or model.resolve().parent.name}{k}, seed {made['seed']}"


def _backbone(init: dict[str, Any]) -> str | None:
    backbone = init.get("backbone") or {}
    return backbone.get("name")


def _base_model(init: dict[str, Any]) -> str | None:
    """The repository on the hub that the backbone comes from."""
    settings = (init.get("backbone") or {}).get("settings", {})
    return settings.get("id") if settings.get("source") == "hub" else None


def _scores(model: Path) -> dict[str, dict[str, Any]]:
    """What metrics.json says of each data set that this very model was evaluated on."""
    trained = (model / "train.json").stat().st_mtime
    found = {}
    for path in sorted(model.parent.glob("*/metrics.json")):
        if path.stat().st_mtime >= trained:
            found[path.parent.name] = read_json_object(path)
    return found


def _metadata(model: Path, init: dict[str, Any], scores: dict[str, dict[str, Any]]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    name = f"{_backbone(init) or 'splade'}-k{init.get('k', 1):g}"
    results = [
        EvalResult(
            task_type="text-retrieval",
            task_name="Retrieval",
            dataset_type=dataset,
            dataset_name=dataset,
            metric_type=measure,
            metric_name=measure,
            metric_value=round(value, 4),
        )
        for dataset, metrics in scores.items()
        for measure, value in metrics["measures"].items()
    ]
    base = _base_model(init)
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="feature-extraction",
        tags=_TAGS,
        **({"base_model": base} if base else {}),
        **({"model_name": name, "eval_results": results} if results else {}),
    )
    return f"---\n{data.to_yaml()}\n---\n"


def _status(status: str) -> list[str]:
    return (
        [] if status == "ok" else [f"**Training ended as {status}: this model is of no use.**", ""]
    )


def _facts(
    made: dict[str, Any], init: dict[str, Any], settings: dict[str, Any]
) -> list[tuple[str, str]]:
    facts = []
    if init:
        before, after = init["norms_before"], init["norms_after"]
        base = f" ({_base_model(init)})" if _base_model(init) else ""
        commit = (init.get("backbone") or {}).get("commit")
        facts += [
            ("backbone", f"{_backbone(init) or init['source']}{base}"),
            *([("commit", commit)] if commit else []),
            ("k", f"{init['k']:g} (tying: {init['tying']}, bias: {init['bias']})"),
            ("mean row norm", f"{before['mean']:.4f}, after division {after['mean']:.4f}"),
        ]
    batch = settings["batch_size"] * settings["accumulation"] * made["processes"]
    facts += [
        ("terms", f"{made['vocabulary']:,}"),
        ("training data", f"{settings['dataset']}, {made['train_examples']:,} rows"),
        ("loss", f"{settings['loss']}, temperature {settings['temperature']:g}"),
        ("FLOPS", f"{settings['lambda_q']:g} for queries, {settings['lambda_d']:g} for documents"),
        ("steps", f"{made['stopped_at']:,}, each of {batch} examples"),
        ("learning rate", f"{settings['learning_rate']:g}, warm-up {settings['warmup']:g}"),
        ("precision", settings["precision"]),
        ("seed", str(made["seed"])),
        ("status", made["status"]),
        ("active terms", f"{made['active_q']:.1f} a query, {made['active_d']:.1f} a document"),
    ]
    return facts


def _score_lines(scores: dict[str, dict[str, Any]]) -> list[str]:
    if not scores:
        return ["Not evaluated yet."]
    measures = list(dict.fromkeys(name for each in scores.values() for name in each["measures"]))
    rows = [
        [
            dataset,
            str(each["queries"]),
            *(f"{each['measures'][m]:.4f}" if m in each["measures"] else "" for m in measures),
        ]
        for dataset, each in scores.items()
    ]
    return _table(["data set", "queries", *measures], rows)


def _table(head: list[str], rows: list[Any]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _loading(query_length: int, document_length: int) -> list[str]:
    return f"""In sentence-transformers (queries of {query_length} tokens at most, documents of \
{document_length}):

```python
from sentence_transformers import SparseEncoder

model_id = "."  # this folder, or its repository on the hub
model = SparseEncoder(model_id)
queries = model.encode_query(["how to read a csv file"])
documents = model.encode_document(["Read a comma-separated values (csv) file."])
print(model.similarity(queries, documents))
print(model.decode(queries, top_k=10))
```

In transformers alone:

```python
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

model_id = "."
tokenizer = AutoTokenizer.from_pretrained(model_id)
model = AutoModelForMaskedLM.from_pretrained(model_id).eval()
texts = tokenizer(
    ["how to read a csv file"],
    padding=True, truncation=True, max_length={query_length}, return_tensors="pt",
)
mask = texts["attention_mask"]
with torch.inference_mode():
    logits = model(input_ids=texts["input_ids"], attention_mask=mask).logits
# [texts, terms]: the largest logit of each term over the tokens that are no padding
weights = logits.masked_fill(mask[..., None] == 0, 0).amax(dim=1).relu().log1p()
```

A score is the dot product of the weights of a query and of a document.
""".splitlines()
