# in:  every cell's results
# out: results/table.csv


def table_input(wildcards):
    grid = {"backbone": cfg.backbones, "k": cfg.scales, "seed": cfg.seeds, "dataset": cfg.datasets}
    kinds = ["metrics.json", "per_query.parquet", "sparsity.json", "index"]
    return {
        "cells": expand(f"{ROOT}/{{dataset}}/{{kind}}", kind=kinds, **grid),
        "models": expand(f"{ROOT}/model", **grid),
        "inits": expand("results/{backbone}/k{k}/init", **grid),
        "baselines": expand(
            "results/{baseline}/{dataset}/{kind}",
            baseline=cfg.baselines,
            kind=["metrics.json", "per_query.parquet", "index"],
            dataset=cfg.datasets,
        ),
        "norms": ["results/norms.csv", "results/activation.csv"],
    }


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
        "splade-rescale table --grid {params.grid:q} --out {output:q} > {log:q} 2>&1"
