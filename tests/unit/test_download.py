import json
import sys
from types import ModuleType

import pandas as pd
import pytest
import splade_rescale
import torch
from splade_rescale.download import download_backbone, download_dataset
from splade_rescale.errors import UserError
from splade_rescale.files import read_json
from splade_rescale.settings import (
    HubDataset,
    PathBackbone,
    PathDataset,
    PretrainBackbone,
    PydocsDataset,
    TwinBackbone,
)
from transformers import AutoModelForMaskedLM


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def beir(tmp_path):
    """25,000 documents (several batches), 3 queries (1 unjudged), 3 judgements (1 outside)."""
    folder = tmp_path / "beir"
    documents = [{"_id": f"{i:05}", "title": "t", "text": f"text {i}"} for i in range(25_000)]
    write_lines(folder / "corpus.jsonl", documents)
    write_lines(folder / "queries.jsonl", [{"_id": i, "text": f"q {i}"} for i in ("1", "2", "3")])
    (folder / "qrels").mkdir()
    (folder / "qrels/test.tsv").write_text("1\t00007\t2\n3\t24999\t1\n3\tgone\t1\n")
    return folder


def test_a_folder_becomes_tables_and_provenance(beir, tmp_path):
    out = tmp_path / "datasets" / "mine"
    entry = PathDataset(source="path", path=str(beir), train="title", remove_self_hits=True)
    download_dataset("mine", entry, out)
    assert sorted(path.name for path in out.iterdir()) == [
        "corpus.parquet",
        "dataset.json",
        "qrels.parquet",
        "queries.parquet",
        "train.parquet",
    ]
    corpus = pd.read_parquet(out / "corpus.parquet")
    assert corpus.columns.tolist() == ["doc_id", "title", "text"]
    assert corpus["doc_id"].tolist() == [f"{i:05}" for i in range(25_000)]
    assert corpus.iloc[7].tolist() == ["00007", "t", "text 7"]
    assert pd.read_parquet(out / "queries.parquet")["text"].tolist() == ["q 1", "q 2", "q 3"]
    qrels = pd.read_parquet(out / "qrels.parquet")
    assert qrels["doc_id"].tolist() == ["00007", "24999", "gone"]
    assert qrels["relevance"].dtype == "int64"
    provenance = read_json(out / "dataset.json")
    assert provenance["rows"] == {"corpus": 25_000, "queries": 3, "qrels": 3, "train": 25_000}
    assert provenance["qrels_outside_corpus"] == 1
    assert provenance["queries_unjudged"] == 1
    # How it is evaluated is not a matter of what was downloaded.
    own = {"source": "path", "path": str(beir), "qrels": None, "train": "title"}
    assert provenance["settings"] == own


def test_the_same_input_gives_the_same_bytes(beir, tmp_path):
    for name in ("a", "b"):
        download_dataset("mine", PathDataset(source="path", path=str(beir)), tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


@pytest.mark.parametrize("part", ["corpus", "queries", "qrels"])
def test_a_table_without_rows_is_refused(beir, tmp_path, part):
    path = beir / ("qrels/test.tsv" if part == "qrels" else f"{part}.jsonl")
    path.write_text("")
    if part == "queries":
        (beir / "qrels/test.tsv").write_text("")
    with pytest.raises(UserError, match=rf"data set mine \(.*beir\): {part} has no rows"):
        download_dataset("mine", PathDataset(source="path", path=str(beir)), tmp_path / "out")


def test_judgements_of_another_corpus_are_refused(beir, tmp_path):
    (beir / "qrels/test.tsv").write_text("1\t7\t2\n3\tgone\t1\n")
    with pytest.raises(UserError, match=r"mine \(.*beir\): none of the 2 judged .* is '7'"):
        download_dataset("mine", PathDataset(source="path", path=str(beir)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_data_set_is_left_alone(beir, tmp_path):
    with pytest.raises(UserError, match=r"beir: exists and holds no dataset\.json"):
        download_dataset("mine", PathDataset(source="path", path=str(beir)), beir)
    assert (beir / "corpus.jsonl").is_file()


def test_an_error_leaves_the_earlier_folder_and_nothing_else(beir, tmp_path):
    out = tmp_path / "datasets" / "mine"
    entry = PathDataset(source="path", path=str(beir))
    download_dataset("mine", entry, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with (beir / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "00007", "text": "again"}\n')
    with pytest.raises(UserError, match=r"corpus\.jsonl:25001: duplicate .*corpus\.jsonl:8$"):
        download_dataset("mine", entry, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in out.parent.iterdir()] == ["mine"]


@pytest.mark.parametrize(("train_pairs", "tables"), [(5, 4), (0, 3)])
def test_pydocs(tmp_path, train_pairs, tables):
    entry = PydocsDataset(
        source="pydocs",
        split="in-domain",
        documents=10,
        queries=3,
        train_pairs=train_pairs,
        packages=["typer"],
    )
    download_dataset("docs", entry, tmp_path / "docs")
    rows = read_json(tmp_path / "docs/dataset.json")["rows"]
    assert rows == dict(list({"corpus": 10, "queries": 3, "qrels": 3, "train": 5}.items())[:tables])
    corpus = pd.read_parquet(tmp_path / "docs/corpus.parquet")
    assert corpus.columns.tolist() == ["doc_id", "title", "text"]


def test_hub_data_without_corpus(tmp_path, monkeypatch):
    folder = tmp_path / "snapshots" / ("a" * 40)
    write_lines(folder / "t.jsonl", [{"query": "q", "positive": "p", "negative": "n"}])
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    entry = {"source": "hub", "train": {"id": "a/b", "files": ["t.jsonl"]}}
    download_dataset("triplets", HubDataset.model_validate(entry), tmp_path / "out")
    assert pd.read_parquet(tmp_path / "out/train.parquet").to_dict("records") == [
        {"query": "q", "positive": "p", "negative": "n"}
    ]
    provenance = read_json(tmp_path / "out/dataset.json")
    assert provenance["hub"]["train"]["commit"] == "a" * 40
    assert "qrels_outside_corpus" not in provenance


@pytest.fixture
def save_checkpoint(tiny_masked_lm, tiny_tokenizer):
    def save(folder, **options):
        model = tiny_masked_lm("bert")
        model.save_pretrained(folder, **options)
        tiny_tokenizer.save_pretrained(folder)
        return model

    return save


def download(entry, out, of=None, train=None):
    download_backbone("mine", entry, out, of=of, train=train, progress=False)


def path_entry(folder, **keys):
    return PathBackbone(source="path", path=str(folder), **keys)


def test_a_checkpoint_folder_is_copied_as_files(save_checkpoint, tmp_path):
    save_checkpoint(tmp_path / "real")
    source = tmp_path / "source"
    (source / "checkpoint-5").mkdir(parents=True)
    for path in (tmp_path / "real").iterdir():
        (source / path.name).symlink_to(path)
    (source / "optimizer.pt").write_text("large")
    (source / "checkpoint-5/config.json").write_text("{}")
    download(path_entry(source), tmp_path / "out")

    expected = {path.name for path in (tmp_path / "real").iterdir()} | {"backbone.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == expected | {"SHA256SUMS"}
    for path in (tmp_path / "real").iterdir():
        copy = tmp_path / "out" / path.name
        assert copy.read_bytes() == path.read_bytes()
        assert not copy.is_symlink()
        assert copy.stat().st_ino != path.stat().st_ino
    provenance = read_json(tmp_path / "out/backbone.json")
    assert provenance["settings"]["path"] == str(source)
    assert set(provenance["files"]) == expected - {"backbone.json"}


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", r"source: no config\.json; usable files found: \['model\.safetensors'"),
        ("model.safetensors", r"source: no weights \(\*\.safetensors; convert"),
        ("tokenizer.json", r"source: no tokenizer \(tokenizer\.json, vocab\.txt"),
    ],
)
def test_a_folder_that_lacks_a_part_is_refused(save_checkpoint, tmp_path, missing, message):
    save_checkpoint(tmp_path / "source")
    (tmp_path / "source" / missing).unlink()
    with pytest.raises(UserError, match=message):
        download(path_entry(tmp_path / "source"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_truncated_weights_and_missing_folders_are_refused(save_checkpoint, tmp_path):
    save_checkpoint(tmp_path / "source")
    weights = tmp_path / "source/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"source: model\.safetensors is truncated, or not a safe"):
        download(path_entry(tmp_path / "source"), tmp_path / "out")
    with pytest.raises(UserError, match=r"source: exists and holds no backbone\.json"):
        download(path_entry(tmp_path / "source"), tmp_path / "source")
    assert weights.exists()
    for name in (tmp_path / "nowhere", "~no-such-user/nowhere"):
        with pytest.raises(UserError, match="nowhere: no such folder"):
            download(path_entry(name), tmp_path / "out")


@pytest.mark.parametrize("shards", [{}, {"max_shard_size": "10KB"}])
def test_head_gain_multiplies_the_head_and_nothing_else(save_checkpoint, tmp_path, shards):
    old = save_checkpoint(tmp_path / "source", **shards)
    assert (len(list((tmp_path / "source").glob("*.safetensors"))) > 1) == bool(shards)
    download(path_entry(tmp_path / "source", head_gain=16), tmp_path / "out")
    new = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    before, after = old.cls.predictions.decoder, new.cls.predictions.decoder
    assert torch.equal(after.weight, before.weight * 16)
    assert torch.equal(after.bias, before.bias * 16)
    assert before.bias.abs().sum() > 0
    assert torch.equal(
        new.bert.embeddings.word_embeddings.weight, old.bert.embeddings.word_embeddings.weight
    )
    # Powers of two are exact, so the logits are exactly 16 times as large
    ids = torch.arange(10)[None]
    assert torch.equal(new.eval()(ids).logits, 16 * old.eval()(ids).logits)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 1
    assert not (tmp_path / "out/model.safetensors.index.json").exists()


def test_a_twin_takes_the_weights_of_the_other_backbone(save_checkpoint, tmp_path):
    save_checkpoint(tmp_path / "source")
    download(path_entry(tmp_path / "source"), tmp_path / "one")
    twin = TwinBackbone(source="twin", of="one", head_gain=2)
    download(twin, tmp_path / "two", of=tmp_path / "one")
    one = AutoModelForMaskedLM.from_pretrained(tmp_path / "one").get_output_embeddings()
    two = AutoModelForMaskedLM.from_pretrained(tmp_path / "two").get_output_embeddings()
    assert torch.equal(two.weight, 2 * one.weight)
    provenance = read_json(tmp_path / "two/backbone.json")
    assert provenance["settings"]["head_gain"] == 2
    assert provenance["of"] == read_json(tmp_path / "one/backbone.json")
    with pytest.raises(UserError, match="mine: a twin needs the folder of backbone one"):
        download(twin, tmp_path / "three")


def test_a_pretrained_backbone_is_made_from_the_training_rows(
    save_checkpoint, tmp_path, monkeypatch
):
    pretrain = ModuleType("splade_rescale.pretrain")
    calls = []

    def make(entry, train, folder, *, progress):
        calls.append((entry, train, progress))
        save_checkpoint(folder)

    pretrain.pretrain = make
    monkeypatch.setitem(sys.modules, pretrain.__name__, pretrain)
    monkeypatch.setattr(splade_rescale, "pretrain", pretrain, raising=False)
    entry = PretrainBackbone(source="pretrain", architecture="bert", dataset="docs")
    download(entry, tmp_path / "out", train=tmp_path / "train.parquet")
    assert calls == [(entry, tmp_path / "train.parquet", False)]
    assert read_json(tmp_path / "out/backbone.json")["source"] == "pretrain"
    with pytest.raises(UserError, match=r"mine: pretraining needs train\.parquet of docs"):
        download(entry, tmp_path / "out")
