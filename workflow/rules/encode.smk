# in:  a trained model, corpus.parquet, queries.parquet
# out: results/.../{dataset}/vectors/


# A corpus of one shard goes in one process with its queries: loading the libraries and the model
# takes longer than many a small data set.
ruleorder: encode_dataset > encode_corpus
ruleorder: encode_dataset > encode_queries


rule encode_dataset:
    input:
        model=f"{ROOT}/model",
        dataset="resources/datasets/{dataset}",
    output:
        corpus=f"{ROOT}/{{dataset}}/vectors/corpus-00000-of-00001.npz",
        corpus_ids=f"{ROOT}/{{dataset}}/vectors/corpus-00000-of-00001.ids.parquet",
        corpus_stats=f"{ROOT}/{{dataset}}/vectors/corpus-00000-of-00001.json",
        queries=f"{ROOT}/{{dataset}}/vectors/queries.npz",
        queries_ids=f"{ROOT}/{{dataset}}/vectors/queries.ids.parquet",
        queries_stats=f"{ROOT}/{{dataset}}/vectors/queries.json",
    log:
        "logs/encode/{arm}{backbone}-k{k}-seed{seed}-{dataset}.log",
    benchmark:
        "benchmarks/encode/{arm}{backbone}-k{k}-seed{seed}-{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(unsharded_datasets()),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=720,
        gpu=gpus("encode"),
    params:
        settings=stage("encode"),
        code=code_digest("encode"),
    message:
        "encode: {wildcards.dataset} by {wildcards.arm}{wildcards.backbone} at k = {wildcards.k},"
        " seed {wildcards.seed}"
    shell:
        "python -m splade_rescale encode dataset {input.model:q} {input.dataset:q}"
        " {output.corpus:q} {output.queries:q}"
        " --settings {params.settings:q} --threads {threads} > {log:q} 2>&1"


rule encode_corpus:
    input:
        model=f"{ROOT}/model",
        dataset="resources/datasets/{dataset}",
    output:
        vectors=f"{ROOT}/{{dataset}}/vectors/corpus-{{shard}}-of-{{shards}}.npz",
        ids=f"{ROOT}/{{dataset}}/vectors/corpus-{{shard}}-of-{{shards}}.ids.parquet",
        stats=f"{ROOT}/{{dataset}}/vectors/corpus-{{shard}}-of-{{shards}}.json",
    log:
        "logs/encode/{arm}{backbone}-k{k}-seed{seed}-{dataset}-{shard}-of-{shards}.log",
    benchmark:
        "benchmarks/encode/{arm}{backbone}-k{k}-seed{seed}-{dataset}-{shard}-of-{shards}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=720,
        gpu=gpus("encode"),
    params:
        settings=stage("encode"),
        shard=lambda w: int(w.shard),
        shards=lambda w: int(w.shards),
        code=code_digest("encode"),
    message:
        "encode: {wildcards.dataset} by {wildcards.arm}{wildcards.backbone} at k = {wildcards.k},"
        " seed {wildcards.seed}, shard {wildcards.shard} of {wildcards.shards}"
    shell:
        "python -m splade_rescale encode corpus {input.model:q} {input.dataset:q}/corpus.parquet"
        " {output.vectors:q} --shard {params.shard} --shards {params.shards}"
        " --settings {params.settings:q} --threads {threads} > {log:q} 2>&1"


rule encode_queries:
    input:
        model=f"{ROOT}/model",
        dataset="resources/datasets/{dataset}",
    output:
        vectors=f"{ROOT}/{{dataset}}/vectors/queries.npz",
        ids=f"{ROOT}/{{dataset}}/vectors/queries.ids.parquet",
        stats=f"{ROOT}/{{dataset}}/vectors/queries.json",
    log:
        "logs/encode/{arm}{backbone}-k{k}-seed{seed}-{dataset}-queries.log",
    benchmark:
        "benchmarks/encode/{arm}{backbone}-k{k}-seed{seed}-{dataset}-queries.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=60,
        gpu=gpus("encode"),
    params:
        settings=stage("encode"),
        code=code_digest("encode"),
    message:
        "encode: queries of {wildcards.dataset} by {wildcards.arm}{wildcards.backbone} at k = {wildcards.k},"
        " seed {wildcards.seed}"
    shell:
        "python -m splade_rescale encode queries {input.model:q} {input.dataset:q}/queries.parquet"
        " {output.vectors:q} --settings {params.settings:q} --threads {threads} > {log:q} 2>&1"
