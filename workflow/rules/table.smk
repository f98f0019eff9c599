# in:  every cell's results
# out: results/table.csv


def table_input(wildcards):
    owners = sorted({experiment.corpus_of(dataset) for dataset in cfg.datasets})
    files = {
        "cells": [],
        "indexes": expand(
            "results/{baseline}/{corpus}/index", baseline=cfg.baselines, corpus=owners
        ),
        "baselines": expand(
            "results/{baseline}/{dataset}/{kind}",
            baseline=cfg.baselines,
            kind=["metrics.json", "per_query.parquet"],
            dataset=cfg.datasets,
        ),
        "models": [],
        "inits": [],
        "norms": ["results/norms.csv", "results/activation.csv"],
        "published": PUBLISHED,
    }
    kinds = ["metrics.json", "per_query.parquet", "sparsity.json"]
    for arm, grid in ARMS.items():
        models = {"arm": arm, "backbone": grid.backbones, "k": grid.scales, "seed": grid.seeds}
        files["models"] += expand(f"{ROOT}/model", **models)
        files["indexes"] += expand(f"{ROOT}/{{corpus}}/index", corpus=owners, **models)
        files["inits"] += expand("results/{arm}{backbone}/k{k}/init", **models)
        files["cells"] += expand(
            f"{ROOT}/{{dataset}}/{{kind}}", dataset=cfg.datasets, kind=kinds, **models
        )
    return files


rule table:
    input:
        unpack(table_input),
    output:
        "results/table.csv",
    log:
        "logs/table.log",
    benchmark:
        "benchmarks/table.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        grid=settings(experiment.grid()),
        code=code_digest("table"),
    message:
        "table: one row per cell"
    shell:
        "splade-rescale table --grid {params.grid:q} --out {output:q}"
        " --published {input.published:q} > {log:q} 2>&1"
