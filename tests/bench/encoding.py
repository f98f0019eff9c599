"""Encoding by this package, by sentence-transformers and by the plain formula, compared.

Each side has the model loaded and turns texts into sparse vectors. This package does so as its
command does: it reads a parquet file and writes a .npz; the others have the texts in memory and
keep the vectors there.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from bench import cases
from bench.cases import CASES, LENGTH, Plain
from bench.measure import (
    REFERENCE,
    SIDES,
    Line,
    Measured,
    Process,
    compared,
    encoder_flops,
    head_flops,
    take_turns,
)
from scipy import sparse

TEXTS = 512
BATCH = 32  # of the other sides: sentence-transformers' default
#: Allowed norm of the difference between the vectors of two sides, over the norm.
TOLERANCE = 1e-5
#: Texts of the comparison of memory: more than a window, and short, so that it does not take long.
SIZES = (16_384, 65_536)
SHORT = 8  # tokens

Encode = Callable[[], sparse.csr_array | None]


def _ours(job: dict[str, Any]) -> Encode:
    from splade_rescale import encode
    from splade_rescale.head import load_tokenizer
    from splade_rescale.settings import EncodeSettings
    from splade_rescale.splade import Splade

    model, tokenizer = Splade.load(job["model"]), load_tokenizer(job["model"])
    Splade.load = lambda _: model
    encode.load_tokenizer = lambda _: tokenizer
    out = Path(job["folder"]) / "corpus.npz"
    settings = EncodeSettings(query_length=job["length"], document_length=job["length"])
    corpus = Path(job["corpus"])

    def run() -> sparse.csr_array | None:
        encode.encode_corpus(Path(job["model"]), corpus, out, settings, threads=job["threads"])
        return sparse.load_npz(out) if job["keep"] else None

    return run


def _theirs(job: dict[str, Any]) -> Encode:
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(job["model"], device="cpu", local_files_only=True)
    texts = _texts(job)
    options = {"text": {"max_length": job["length"], "truncation": True}}

    def run() -> sparse.csr_array:
        found = model.encode_document(texts, batch_size=BATCH, processing_kwargs=options)
        return _csr(found.coalesce())

    return run


def _plain(job: dict[str, Any]) -> Encode:
    from splade_rescale.head import load_masked_lm, load_tokenizer

    plain, tokenizer = Plain(load_masked_lm(job["model"])), load_tokenizer(job["model"])
    texts = _texts(job)

    @torch.inference_mode()
    def run() -> sparse.csr_array:
        found = [
            plain(
                **tokenizer(
                    texts[start : start + BATCH],
                    padding=True,
                    truncation=True,
                    max_length=job["length"],
                    return_tensors="pt",
                )
            ).to_sparse()
            for start in range(0, len(texts), BATCH)
        ]
        return _csr(torch.cat(found).coalesce())

    return run


def _texts(job: dict[str, Any]) -> list[str]:
    return list(pd.read_parquet(job["corpus"])["text"])


def _csr(vectors: torch.Tensor) -> sparse.csr_array:
    places = vectors.indices().numpy()
    found = sparse.coo_array((vectors.values().numpy(), tuple(places)), shape=tuple(vectors.shape))
    return found.tocsr()


MAKERS = dict(zip(SIDES, (_ours, _theirs, _plain), strict=True))


def check(found: dict[str, Path]) -> None:
    """Compare the vectors of the sides.

    Raises:
        SystemExit: they differ by more than `TOLERANCE`, or are empty.
    """
    vectors = {side: sparse.load_npz(path) for side, path in found.items()}
    reference = vectors[REFERENCE]
    norm = sparse.linalg.norm(reference)
    for side, ours in vectors.items():
        if ours.shape != reference.shape:
            raise SystemExit(f"{side}: {ours.shape} vectors, {REFERENCE} {reference.shape}")
        error = float(sparse.linalg.norm(ours - reference) / norm) if norm else float("nan")
        if not error <= TOLERANCE:
            raise SystemExit(f"{side}: vectors differ from {REFERENCE}'s by {error:.2g}")


def flops(name: str, lengths: list[int]) -> float:
    """FLOPs of the products of texts of these lengths; padding is not counted."""
    with torch.device("meta"):
        model = cases.build(CASES[name])
    return encoder_flops(model, lengths) + head_flops(model, sum(lengths))


def _write_corpus(path: Path, texts: list[str]) -> Path:
    columns = {"doc_id": [str(i) for i in range(len(texts))], "title": "", "text": texts}
    pd.DataFrame(columns).to_parquet(path, row_group_size=8192, index=False)
    return path


def _job(side: str, model: Path, corpus: Path, folder: Path, **other: Any) -> dict[str, Any]:
    folder.mkdir()
    paths = {"model": str(model), "corpus": str(corpus), "folder": str(folder)}
    return {"side": side, "length": LENGTH, "keep": True, **paths, **other}


def compare(name: str, repetitions: int, threads: int, gemm_rate: float) -> list[dict[str, Any]]:
    """One row per side; see `docs/speed.md` for the columns."""
    from splade_rescale.head import load_tokenizer

    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        texts = cases.read_texts()
        model = cases.write_model(folder / "model", CASES[name], texts)
        chosen = list(texts["document"][:TEXTS])
        corpus = _write_corpus(folder / "corpus.parquet", chosen)
        tokens = load_tokenizer(model)(chosen, truncation=True, max_length=LENGTH)["input_ids"]
        found: dict[str, Path] = {}
        with ExitStack() as stack:
            sides = {}
            for number, side in enumerate(SIDES):
                job = _job(side, model, corpus, folder / f"work-{number}", threads=threads)
                found[side] = Path(job["folder"]) / "found.npz"
                sides[side] = stack.enter_context(Process("encoding", job, threads))
            memory = take_turns(sides, 1, "check")
            check(found)
            answers = take_turns(sides, repetitions, once=SIDES[2:])
    done = flops(name, [len(ids) for ids in tokens])
    return compared(name, answers, memory, dict.fromkeys(answers, done), gemm_rate)


def grow(name: str, _repetitions: int, threads: int, _gemm_rate: float) -> list[dict[str, Any]]:
    """Peak memory of a process that encodes, by the number of texts, over that at the fewest."""
    rows = []
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        texts = cases.read_texts()
        model = cases.write_model(folder / "model", CASES[name], texts)
        for side in SIDES[:2]:
            peaks = []
            for size in SIZES:
                chosen = list(texts["document"]) * (-(-size // len(texts)))
                corpus = _write_corpus(folder / f"{size}.parquet", chosen[:size])
                own = folder / f"{side}-{size}"
                options = {"threads": threads, "length": SHORT, "keep": False}
                job = _job(side, model, corpus, own, **options)
                with Process("encoding", job, threads) as process:
                    peaks.append(process()["peak"])
                rows.append(
                    {"case": name, "side": side, "texts": size, "peak_memory": peaks[-1] / peaks[0]}
                )
    return rows


if __name__ == "__main__":
    _asked = json.loads(sys.argv[1])
    _line = Line()
    _run = MAKERS[_asked["side"]](_asked)
    while True:
        _request = _line.wait()
        _measured = Measured()
        _measured.start(afresh=_request == "check")
        _found = _run()
        _answer = _measured.stop()
        if _request == "check":
            sparse.save_npz(Path(_asked["folder"]) / "found.npz", _found)
        del _found
        _line.answer(_answer)
