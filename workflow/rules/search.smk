# in:  an index, query vectors or query text; vectors of the corpus, to compare with exact search
# out: run.trec.gz, search.json


rule search:
    input:
        index=index_of(ROOT),
        queries=f"{ROOT}/{{dataset}}/vectors/queries.npz",
        ids=f"{ROOT}/{{dataset}}/vectors/queries.ids.parquet",
        corpus=corpus_vectors,
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
        corpus=lambda w, input: [path for path in input.corpus if path.endswith(".npz")],
        settings=engine_settings(cfg.search),
        self_hits=self_hits,
        code=code_digest("search", f"engine_{cfg.index.engine}"),
    message:
        "search: {wildcards.dataset} by {wildcards.arm}{wildcards.backbone} at k = {wildcards.k},"
        " seed {wildcards.seed}"
    shell:
        "python -m splade_rescale search impact {input.index:q} {input.queries:q} {output.run:q}"
        " {params.corpus:q} --stats {output.stats:q} --settings {params.settings:q} {params.self_hits}"
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
        settings=canonical_json(cfg.search.model_dump(include={"hits"})),
        bm25=settings(cfg.bm25),
        self_hits=self_hits,
        code=code_digest("search", "lucene"),
    message:
        "search: {wildcards.dataset} by BM25"
    shell:
        "python -m splade_rescale search bm25 {input.index:q} {input.dataset:q}/queries.parquet"
        " {output.run:q} --stats {output.stats:q} --settings {params.settings:q}"
        " --bm25 {params.bm25:q} {params.self_hits}"
        " --threads {threads} --memory-mb {resources.mem_mb} > {log:q} 2>&1"
