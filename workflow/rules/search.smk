# in:  an index, query vectors or query text
# out: run.trec.gz


rule search:
    input:
        index=index_of(ROOT),
        queries=f"{ROOT}/{{dataset}}/vectors/queries.npz",
        ids=f"{ROOT}/{{dataset}}/vectors/queries.ids.parquet",
    output:
        run=f"{ROOT}/{{dataset}}/run.trec.gz",
        stats=f"{ROOT}/{{dataset}}/search.json",
    log:
        "logs/search/{arm}{backbone}-k{k}-seed{seed}-{dataset}.log",
    benchmark:
        "benchmarks/search/{arm}{backbone}-k{k}-seed{seed}-{dataset}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=240,
    params:
        settings=settings(cfg.search),
        self_hits=self_hits,
        code=code_digest("search"),
    message:
        "search: {wildcards.dataset} by {wildcards.arm}{wildcards.backbone} at k = {wildcards.k},"
        " seed {wildcards.seed}"
    shell:
        "python -m splade_rescale search impact {input.index:q} {input.queries:q} {output.run:q}"
        " --stats {output.stats:q} --settings {params.settings:q} {params.self_hits}"
        " --threads {threads} --memory-mb {resources.mem_mb} > {log:q} 2>&1"


rule search_bm25:
    input:
        index=index_of("results/bm25"),
        dataset="resources/datasets/{dataset}",
    output:
        run="results/bm25/{dataset}/run.trec.gz",
        stats="results/bm25/{dataset}/search.json",
    log:
        "logs/search/bm25-{dataset}.log",
    benchmark:
        "benchmarks/search/bm25-{dataset}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=240,
    params:
        settings=settings(cfg.search),
        bm25=settings(cfg.bm25),
        self_hits=self_hits,
        code=code_digest("search"),
    message:
        "search: {wildcards.dataset} by BM25"
    shell:
        "python -m splade_rescale search bm25 {input.index:q} {input.dataset:q}/queries.parquet"
        " {output.run:q} --stats {output.stats:q} --settings {params.settings:q}"
        " --bm25 {params.bm25:q} {params.self_hits}"
        " --threads {threads} --memory-mb {resources.mem_mb} > {log:q} 2>&1"
