# in:  results/{arm}{backbone}/k{k}/init/, train.parquet
# out: results/{arm}{backbone}/k{k}/seed{seed}/model/


rule train:
    input:
        init="results/{arm}{backbone}/k{k}/init",
        dataset=train_dataset,
    output:
        model=directory(f"{ROOT}/model"),
    log:
        f"logs/train/{CELL}.log",
    benchmark:
        f"benchmarks/train/{CELL}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(16000),
        runtime=1440,
        gpu=gpus("train"),
    params:
        # Not an output: what an interrupted run left is resumed from.
        checkpoints=f"{ROOT}/checkpoints",
        launcher=launcher,
        settings=stage("train"),
        code=train_code,
    message:
        "train: {wildcards.arm}{wildcards.backbone} at k = {wildcards.k}, seed {wildcards.seed}"
    shell:
        "{params.launcher} train {input.init:q} {input.dataset:q}/train.parquet {output.model:q}"
        " --checkpoints {params.checkpoints:q} --settings {params.settings:q}"
        " --seed {wildcards.seed} --threads {threads} > {log:q} 2>&1"
