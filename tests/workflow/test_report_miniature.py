"""The report of the miniature, and Snakemake's own that wraps it."""

import json
import shutil

import pandas as pd
import pytest
from miniature import MINI, Workflow

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("miniature")]


def test_the_report_shows_the_runs(finished):
    report = finished.folder / "results/report"
    text = (report / "index.html").read_text()
    for backbone in MINI["backbones"]:
        assert backbone in text
    assert "--configfile mini.yaml" in text
    curves = pd.read_csv(report / "figures/loss.csv")
    assert set(curves["backbone"]) == set(MINI["backbones"])
    found = json.loads((report / "expansions.json").read_text())
    assert [entry["backbone"] for entry in found["backbones"]] == MINI["backbones"]
    # The twin at k = 1 is where its effective head is 16 times as large; its texts are the same.
    terms = found["backbones"][0]["scales"][0]["after"]
    assert len(terms) == len(found["texts"]) > 2
    for expansion in terms:
        weights = [weight for _, weight, _ in expansion["terms"]]
        assert weights == sorted(weights, reverse=True)
        assert len(weights) <= expansion["active"]


def test_snakemakes_report_has_the_page_in_it(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    workflow = Workflow(tmp_path / "copy", MINI)
    workflow.run("--report", "results/report.html")
    text = (workflow.folder / "results/report.html").read_text()
    for name in ("index.html", "score-against-k.svg", "table.csv", "norms.csv"):
        assert name in text
    assert "the whole report" in text
