"""The examples of README.md that need no model hub."""

import json

import torch
from miniature import ROOT
from transformers import AutoModelForMaskedLM

from .blocks import blocks, run


def of_section(title: str) -> list:
    return [block for block in blocks(ROOT / "README.md") if block.section == title]


def test_a_rescaled_checkpoint_trains_in_sentence_transformers(tiny_checkpoint, tmp_path):
    # A folder goes before a repository of the same name, so the example runs as it stands.
    source = tiny_checkpoint("roberta", name="roberta-base")
    shell, train, _ = of_section("A rescaled checkpoint for another trainer")
    words = ["cat", "dog", "fish", "bird", "house", "tree", "river", "city"]
    rows = [
        {"query": f"a {a} {b}", "positive": f"the {a} sees one {b}"} for a in words for b in words
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run(shell, tmp_path)
    before, after = (
        AutoModelForMaskedLM.from_pretrained(folder).get_output_embeddings().weight
        for folder in (source, tmp_path / "roberta-base-k16")
    )
    assert torch.equal(after, before / 16)

    # Measured in the reader's own process, after the example's last line.
    check = """
from sentence_transformers import SparseEncoder
start, end = (SparseEncoder(name) for name in ("roberta-base-k16", "roberta-base-k16-splade"))
texts = ["a cat dog", "the fish sees one bird"]
vectors = [each.encode(texts).to_dense() for each in (start, end)]
print("CHANGED", (vectors[0] - vectors[1]).abs().max().item() > 0)
"""
    printed = run(train._replace(text=train.text + check), tmp_path, HF_HOME=str(tmp_path / "hf"))
    assert "CHANGED True" in printed
