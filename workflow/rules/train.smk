# in:  results/{backbone}/k{k}/init/, train.parquet
# out: results/{backbone}/k{k}/seed{seed}/model/


rule train:
    input:
        init="results/{backbone}/k{k}/init",
        dataset=f"resources/datasets/{cfg.train.dataset}",
    output:
        model=directory(f"{ROOT}/model"),
    log:
        "logs/train/{backbone}-k{k}-seed{seed}.log",
    benchmark:
        "benchmarks/train/{backbone}-k{k}-seed{seed}.tsv"
    threads: 1
    resources:
        mem_mb=16000,
        runtime=1440,
        gpu=cfg.train.gpus,
    params:
        # Not an output: what an interrupted run left is resumed from.
        checkpoints=f"{ROOT}/checkpoints",
        settings=settings(cfg.train),
        code=code_digest("train"),
    message:
        "train: {wildcards.backbone} at k = {wildcards.k}, seed {wildcards.seed}"
    shell:
        "splade-rescale train {input.init:q} {input.dataset:q}/train.parquet {output.model:q}"
        " --checkpoints {params.checkpoints:q} --settings {params.settings:q}"
        " --seed {wildcards.seed} --threads {threads} > {log:q} 2>&1"
