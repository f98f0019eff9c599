# in:  vectors of the corpus, or its text
# out: an impact index per cell, a BM25 index per data set


def corpus_vectors(wildcards):
    owner = experiment.corpus_of(wildcards.dataset)
    shards = experiment.shards(owner)
    return [
        f"{ROOT}/{owner}/vectors/corpus-{shard:05d}-of-{shards:05d}.{kind}"
        for shard in range(shards)
        for kind in ("npz", "ids.parquet")
    ]


rule index:
    input:
        corpus_vectors,
    output:
        index=directory(f"{ROOT}/{{dataset}}/index"),
    log:
        "logs/index/{arm}{backbone}-k{k}-seed{seed}-{dataset}.log",
    benchmark:
        "benchmarks/index/{arm}{backbone}-k{k}-seed{seed}-{dataset}.tsv"
    threads: 1
    resources:
        mem_mb=8000,
        runtime=240,
    params:
        vectors=lambda w, input: [path for path in input if path.endswith(".npz")],
        settings=settings(cfg.index),
        code=code_digest("index"),
    message:
        "index: {wildcards.dataset} by {wildcards.arm}{wildcards.backbone} at k = {wildcards.k},"
        " seed {wildcards.seed}"
    shell:
        "splade-rescale index impact {output.index:q} {params.vectors:q}"
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
    threads: 1
    resources:
        mem_mb=8000,
        runtime=240,
    params:
        code=code_digest("index"),
    message:
        "index: {wildcards.dataset} for BM25"
    shell:
        "splade-rescale index bm25 {output.index:q} {input.dataset:q}/corpus.parquet"
        " --threads {threads} --memory-mb {resources.mem_mb} > {log:q} 2>&1"
