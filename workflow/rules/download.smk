# in:  registry entries
# out: resources/datasets/{dataset}/, resources/backbones/{backbone}/


rule download_dataset:
    input:
        corpus_from=dataset_input,
    output:
        directory("resources/datasets/{dataset}"),
    log:
        "logs/download/dataset-{dataset}.log",
    benchmark:
        "benchmarks/download/dataset-{dataset}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(4000),
        runtime=240,
    params:
        entry=dataset_entry,
        code=lambda w: dataset_code(experiment.datasets[w.dataset].source),
        corpus=lambda w, input: f"--corpus-from {input.corpus_from}" if input.corpus_from else "",
    message:
        "download: data set {wildcards.dataset}"
    shell:
        "python -m splade_rescale download dataset {wildcards.dataset} {output:q}"
        " --entry {params.entry:q} {params.corpus} > {log:q} 2>&1"


rule download_backbone:
    input:
        unpack(backbone_input),
    output:
        directory("resources/backbones/{backbone}"),
    log:
        "logs/download/backbone-{backbone}.log",
    benchmark:
        "benchmarks/download/backbone-{backbone}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(4000),
        runtime=240,
    params:
        entry=lambda w: settings(experiment.backbones[w.backbone]),
        code=lambda w: backbone_code(experiment.backbones[w.backbone].source),
        inputs=lambda w, input: " ".join(f"--{key} {value}" for key, value in input.items()),
    message:
        "download: backbone {wildcards.backbone}"
    shell:
        "python -m splade_rescale download backbone {wildcards.backbone} {output:q}"
        " --entry {params.entry:q} {params.inputs} --threads {threads} > {log:q} 2>&1"
