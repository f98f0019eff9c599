# in:  resources/backbones/{backbone}/, training text
# out: results/{arm}{backbone}/norms.json, activation.csv and auto.json; results/norms.csv and activation.csv


rule norms:
    input:
        backbone="resources/backbones/{backbone}",
        train=train_dataset,
    output:
        norms="results/{arm}{backbone}/norms.json",
        activation="results/{arm}{backbone}/activation.csv",
    log:
        "logs/norms/{arm}{backbone}.log",
    benchmark:
        "benchmarks/norms/{arm}{backbone}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=60,
    params:
        settings=settings(cfg.norms),
        rescale=stage("rescale"),
        scales=lambda w: ",".join(k for k in ARMS[w.arm].scales if k != AUTO) or "1",
        query_length=lambda w: ARMS[w.arm].train.query_length,
        document_length=lambda w: ARMS[w.arm].train.document_length,
        code=code_digest("norms"),
    message:
        "norms: {wildcards.arm}{wildcards.backbone}"
    shell:
        "python -m splade_rescale norms {input.backbone:q} --out {output.norms:q}"
        " --activation {output.activation:q} --dataset {input.train:q} --scales {params.scales}"
        " --query-length {params.query_length} --document-length {params.document_length}"
        " --settings {params.settings:q} --rescale {params.rescale:q}"
        " --threads {threads} > {log:q} 2>&1"


rule choose_k:
    input:
        backbone="resources/backbones/{backbone}",
        train=train_dataset,
    output:
        auto="results/{arm}{backbone}/auto.json",
    log:
        "logs/norms/{arm}{backbone}-auto.log",
    benchmark:
        "benchmarks/norms/{arm}{backbone}-auto.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=60,
    params:
        settings=settings(cfg.norms),
        rescale=stage("rescale"),
        query_length=lambda w: ARMS[w.arm].train.query_length,
        document_length=lambda w: ARMS[w.arm].train.document_length,
        code=code_digest("choose_k"),
    message:
        "norms: k of {wildcards.arm}{wildcards.backbone} from its initial activation"
    shell:
        "python -m splade_rescale choose-k {input.backbone:q} {output.auto:q} --dataset {input.train:q}"
        " --query-length {params.query_length} --document-length {params.document_length}"
        " --settings {params.settings:q} --rescale {params.rescale:q}"
        " --threads {threads} > {log:q} 2>&1"


rule norms_table:
    input:
        norms=expand("results/{backbone}/norms.json", backbone=cfg.backbones),
        activation=expand("results/{backbone}/activation.csv", backbone=cfg.backbones),
    output:
        norms=report(
            "results/norms.csv",
            caption="../report/norms-table.rst",
            category="Tables",
            labels={"table": "row norms"},
        ),
        activation=report(
            "results/activation.csv",
            caption="../report/activation.rst",
            category="Tables",
            labels={"table": "initial activation"},
        ),
    log:
        "logs/norms/table.log",
    benchmark:
        "benchmarks/norms/table.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=10,
    params:
        backbones=cfg.backbones,
        code=code_digest("norms_table"),
    message:
        "norms: one row per backbone"
    shell:
        "python -m splade_rescale norms-table {params.backbones} --results results > {log:q} 2>&1"
