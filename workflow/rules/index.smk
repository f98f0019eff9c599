# in:  vectors of the corpus, or its text
# out: an impact index per cell (of the engine chosen), a BM25 index per data set


rule index:
    input:
        corpus_vectors,
    output:
        index=directory(f"{ROOT}/{{dataset}}/index"),
    log:
        "logs/index/{arm}{backbone}-k{k}-seed{seed}-{dataset}.log",
    benchmark:
        "benchmarks/index/{arm}{backbone}-k{k}-seed{seed}-{dataset}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=240,
    params:
        vectors=lambda w, input: [path for path in input if path.endswith(".npz")],
        settings=engine_settings(cfg.index),
        code=code_digest("index", f"engine_{cfg.index.engine}"),
    message:
        "index: {wildcards.dataset} by {wildcards.arm}{wildcards.backbone} at k = {wildcards.k},"
        " seed {wildcards.seed}"
    shell:
        "python -m splade_rescale index impact {output.index:q} {params.vectors:q}"
        " --settings {params.settings:q} --threads {threads} --memory-mb {resources.mem_mb}"
        " > {log:q} 2>&1"


rule index_bm25:
    input:
        dataset="resources/datasets/{dataset}",
    output:
        index=directory("results/bm25/{dataset}/index"),
    log:
        "logs/index/bm25-{dataset}.log",
    benchmark:
        "benchmarks/index/bm25-{dataset}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=240,
    params:
        code=code_digest("index", "lucene"),
    message:
        "index: {wildcards.dataset} for BM25"
    shell:
        "python -m splade_rescale index bm25 {output.index:q} {input.dataset:q}/corpus.parquet"
        " --threads {threads} --memory-mb {resources.mem_mb} > {log:q} 2>&1"
