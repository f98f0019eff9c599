# in:  resources/backbones/{backbone}/, training text
# out: results/{backbone}/norms.json and activation.csv; results/norms.csv and activation.csv


rule norms:
    input:
        backbone="resources/backbones/{backbone}",
        train=f"resources/datasets/{cfg.train.dataset}",
    output:
        norms="results/{backbone}/norms.json",
        activation="results/{backbone}/activation.csv",
    log:
        "logs/norms/{backbone}.log",
    benchmark:
        "benchmarks/norms/{backbone}.tsv"
    threads: 1
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        settings=settings(cfg.norms),
        rescale=settings(cfg.rescale),
        scales=",".join(cfg.scales),
        query_length=cfg.train.query_length,
        document_length=cfg.train.document_length,
        code=code_digest("norms"),
    message:
        "norms: {wildcards.backbone}"
    shell:
        "splade-rescale norms {input.backbone:q} --out {output.norms:q}"
        " --activation {output.activation:q} --dataset {input.train:q} --scales {params.scales}"
        " --query-length {params.query_length} --document-length {params.document_length}"
        " --settings {params.settings:q} --rescale {params.rescale:q}"
        " --threads {threads} > {log:q} 2>&1"


rule norms_table:
    input:
        norms=expand("results/{backbone}/norms.json", backbone=cfg.backbones),
        activation=expand("results/{backbone}/activation.csv", backbone=cfg.backbones),
    output:
        norms="results/norms.csv",
        activation="results/activation.csv",
    log:
        "logs/norms/table.log",
    benchmark:
        "benchmarks/norms/table.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        backbones=cfg.backbones,
        code=code_digest("norms"),
    message:
        "norms: one row per backbone"
    shell:
        "splade-rescale norms-table {params.backbones} --results results > {log:q} 2>&1"
