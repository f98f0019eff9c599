# in:  results/{arm}{backbone}/k{k}/init/, train.parquet
# out: results/{arm}{backbone}/k{k}/seed{seed}/model/


def launcher(wildcards):
    """Several GPUs need a process each."""
    count = ARMS[wildcards.arm].train.gpus
    torchrun = f"python -m torch.distributed.run --standalone --nproc-per-node {count}"
    return f"{torchrun} -m splade_rescale" if count > 1 else "splade-rescale"


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
    threads: 1
    resources:
        mem_mb=16000,
        runtime=1440,
        gpu=gpus("train"),
    params:
        # Not an output: what an interrupted run left is resumed from.
        checkpoints=f"{ROOT}/checkpoints",
        launcher=launcher,
        settings=stage("train"),
        code=code_digest("train"),
    message:
        "train: {wildcards.arm}{wildcards.backbone} at k = {wildcards.k}, seed {wildcards.seed}"
    shell:
        "{params.launcher} train {input.init:q} {input.dataset:q}/train.parquet {output.model:q}"
        " --checkpoints {params.checkpoints:q} --settings {params.settings:q}"
        " --seed {wildcards.seed} --threads {threads} > {log:q} 2>&1"
