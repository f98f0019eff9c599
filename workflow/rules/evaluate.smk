# in:  run.trec.gz, qrels.parquet, vectors
# out: metrics.json, per_query.parquet, sparsity.json


rule evaluate:
    input:
        run=f"{ROOT}/{{dataset}}/run.trec.gz",
        dataset="resources/datasets/{dataset}",
        queries=f"{ROOT}/{{dataset}}/vectors/queries.npz",
        corpus=corpus_vectors,
    output:
        metrics=f"{ROOT}/{{dataset}}/metrics.json",
        per_query=f"{ROOT}/{{dataset}}/per_query.parquet",
        sparsity=f"{ROOT}/{{dataset}}/sparsity.json",
    log:
        "logs/evaluate/{arm}{backbone}-k{k}-seed{seed}-{dataset}.log",
    benchmark:
        "benchmarks/evaluate/{arm}{backbone}-k{k}-seed{seed}-{dataset}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=60,
    params:
        measures=measures,
        corpus=lambda w, input: [path for path in input.corpus if path.endswith(".npz")],
        quantization=cfg.index.quantization,
        code=code_digest("evaluate", "sparsity"),
    message:
        "evaluate: {wildcards.dataset} by {wildcards.arm}{wildcards.backbone} at k = {wildcards.k},"
        " seed {wildcards.seed}"
    shell:
        "(python -m splade_rescale evaluate {input.run:q} {input.dataset:q}/qrels.parquet"
        " {output.metrics:q} {output.per_query:q} --measures {params.measures:q}"
        " && python -m splade_rescale sparsity {output.sparsity:q} --queries {input.queries:q}"
        " --quantization {params.quantization} {params.corpus:q}) > {log:q} 2>&1"


rule evaluate_bm25:
    input:
        run="results/bm25/{dataset}/run.trec.gz",
        dataset="resources/datasets/{dataset}",
    output:
        metrics="results/bm25/{dataset}/metrics.json",
        per_query="results/bm25/{dataset}/per_query.parquet",
    log:
        "logs/evaluate/bm25-{dataset}.log",
    benchmark:
        "benchmarks/evaluate/bm25-{dataset}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=60,
    params:
        measures=measures,
        code=code_digest("evaluate"),
    message:
        "evaluate: {wildcards.dataset} by BM25"
    shell:
        "python -m splade_rescale evaluate {input.run:q} {input.dataset:q}/qrels.parquet"
        " {output.metrics:q} {output.per_query:q} --measures {params.measures:q} > {log:q} 2>&1"
