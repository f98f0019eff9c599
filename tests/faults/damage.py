"""Files cut short or with a flipped bit between two stages: what the next stage says of them."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .kills import Bench

_ROOT = "results/mini-bert/k1"
_CELL = f"{_ROOT}/seed7/mini"
_DATA = "resources/datasets/mini"
_EVALUATED = (f"{_CELL}/metrics.json", f"{_CELL}/per_query.parquet", f"{_CELL}/sparsity.json")
_QUERIES = tuple(f"{_CELL}/vectors/queries.{n}" for n in ("npz", "ids.parquet", "json"))
#: glob -> what the next stage makes of it
NEXT = {
    f"{_DATA}/train.parquet": ("results/mini-bert/auto.json",),
    f"{_DATA}/corpus.parquet": ("results/bm25/mini/index",),
    f"{_DATA}/queries.parquet": _QUERIES,
    f"{_DATA}/qrels.parquet": _EVALUATED,
    "resources/backbones/mini-bert/model.safetensors": (f"{_ROOT}/init",),
    "resources/backbones/mini-bert/config.json": (f"{_ROOT}/init",),
    "resources/backbones/mini-bert/tokenizer.json": (f"{_ROOT}/init",),
    f"{_ROOT}/init/model.safetensors": (f"{_ROOT}/seed7/model",),
    f"{_ROOT}/init/tokenizer.json": (f"{_ROOT}/seed7/model",),
    f"{_ROOT}/seed7/model/model.safetensors": _QUERIES,
    f"{_ROOT}/seed7/model/config.json": _QUERIES,
    f"{_CELL}/vectors/corpus-00000-of-00002.npz": (f"{_CELL}/index",),
    f"{_CELL}/vectors/corpus-00000-of-00002.ids.parquet": (f"{_CELL}/index",),
    f"{_CELL}/vectors/queries.npz": (f"{_CELL}/run.trec.gz", f"{_CELL}/search.json"),
    f"{_CELL}/vectors/queries.ids.parquet": (f"{_CELL}/run.trec.gz", f"{_CELL}/search.json"),
    f"{_CELL}/index/index.json": (f"{_CELL}/run.trec.gz", f"{_CELL}/search.json"),
    f"{_CELL}/index/*.cfs": (f"{_CELL}/run.trec.gz", f"{_CELL}/search.json"),
    f"{_CELL}/index/segments_*": (f"{_CELL}/run.trec.gz", f"{_CELL}/search.json"),
    f"{_CELL}/run.trec.gz": _EVALUATED,
    f"{_CELL}/per_query.parquet": ("results/table.csv",),
    f"{_ROOT}/init/rescale.json": ("results/table.csv",),
    f"{_ROOT}/seed7/model/train.json": ("results/table.csv",),
}
KINDS = ("cut short", "flipped bit")


@dataclass
class Damage:
    """One damaged file. `outcome` is `named`, `same`, or, in `fault`, what should not be."""

    file: str
    kind: str
    outcome: str = ""
    fault: str = ""


def damaged(content: bytes, kind: str, chance: random.Random) -> bytes:
    """`content` cut short at a random place, or with one random bit flipped."""
    if kind == "cut short":
        return content[: chance.randrange(len(content))]
    changed = bytearray(content)
    changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def damage(bench: Bench, glob: str, kind: str, chance: random.Random) -> Damage:
    """Damage the file, run the next stage, and put the file back."""
    path = sorted(bench.folder.glob(glob))[0]
    found = Damage(path.relative_to(bench.folder).as_posix(), kind)
    outputs, content, stamp = NEXT[glob], path.read_bytes(), path.stat().st_mtime_ns
    for name in outputs:
        remove(bench.folder / name)
    path.write_bytes(damaged(content, kind, chance))
    # As a disk does it, which leaves the time of the last writing alone.
    os.utime(path, ns=(stamp, stamp))
    status, output = bench.miniature.run(*outputs)
    path.write_bytes(content)
    os.utime(path, ns=(stamp, stamp))
    if status == 0:
        found.outcome = "same"
        found.fault = bench.difference(outputs)
    else:
        found.outcome = "named"
        written = [name for name in outputs if (bench.folder / name).exists()]
        if found.file not in messages(output):
            found.fault = f"the error names no {found.file}:\n{output[-3000:]}"
        elif written:
            found.fault = f"in spite of an error there is {written}"
        elif bench.miniature.temporaries():
            found.fault = f"left behind: {bench.miniature.temporaries()}"
    if status:
        status, output = bench.miniature.run(*outputs)
        found.fault = found.fault or (output[-3000:] if status else bench.difference(outputs))
    return found


def messages(output: str) -> str:
    """Snakemake's output without its lists of inputs, which name every file."""
    lists = ("input:", "output:", "python -m ", "(python -m", "&& python -m")
    return "\n".join(line for line in output.splitlines() if not line.lstrip().startswith(lists))


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def all_damage(flips: int, seed: int) -> Iterator[Callable[[Bench], Damage]]:
    """Each file cut short once, and with a bit flipped so many times."""
    for glob in NEXT:
        for number in range(flips + 1):
            chance = random.Random(f"{seed}/{glob}/{number}")
            yield partial(damage, glob=glob, kind=KINDS[number > 0], chance=chance)
