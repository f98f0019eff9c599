"""Norms and initial activation of all backbones, in one table each."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from splade_rescale.errors import UserError
from splade_rescale.files import atomic_file, read_json, read_text_csv


def write_norms_tables(backbones: Sequence[str], results: Path) -> None:
    """Join the files of each backbone into results/norms.csv and results/activation.csv.

    norms.csv has one row per backbone, from results/{backbone}/norms.json; activation.csv has one
    row per backbone and k, from results/{backbone}/activation.csv.

    Raises:
        UserError: names a file that is missing or differs from the others in its columns.
    """
    norms, activations = [], []
    for backbone in backbones:
        path = results / backbone / "norms.json"
        norms.append(read_json(path))
        if norms[-1].keys() != norms[0].keys():
            other = sorted(norms[-1].keys() ^ norms[0].keys())
            raise UserError(f"{path}: its keys are not those of {backbones[0]}: {other} differ")
        path = results / backbone / "activation.csv"
        activations.append(read_text_csv(path))
        if list(activations[-1].columns) != list(activations[0].columns):
            raise UserError(f"{path}: its columns are not those of {backbones[0]}")
    first = ["backbone", "mean", "max", "anisotropy", "V", "d", "tied"]
    table = pd.DataFrame(norms)
    table.insert(0, "backbone", backbones)
    activation = pd.concat(activations, keys=backbones, names=["backbone", None])
    absent = [column for column in first if column not in table.columns]
    if absent:
        raise UserError(f"{results / backbones[0] / 'norms.json'}: has no {absent}")
    table = table[[*first, *(c for c in table.columns if c not in first)]]
    with atomic_file(results / "norms.csv") as temporary:
        table.to_csv(temporary, index=False, float_format="%.6f", lineterminator="\n")
    with atomic_file(results / "activation.csv") as temporary:
        activation.reset_index("backbone").to_csv(temporary, index=False, lineterminator="\n")
