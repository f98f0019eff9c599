# in:  registry entries
# out: resources/datasets/{dataset}/, resources/backbones/{backbone}/


def dataset_entry(wildcards):
    # How a data set is evaluated does not change what is downloaded.
    entry = experiment.datasets[wildcards.dataset]
    return canonical_json(entry.model_dump(exclude=set(DatasetEntry.model_fields)))


def dataset_code(source):
    return code_digest("download", {"path": "beir"}.get(source, source))


def backbone_code(source):
    modules = {"hub": ["hub"], "pretrain": ["pretrain"]}
    return code_digest("download", *modules.get(source, []))


def backbone_input(wildcards):
    entry = experiment.backbones[wildcards.backbone]
    if entry.source == "twin":
        return {"of": f"resources/backbones/{entry.of}"}
    if entry.source == "pretrain":
        return {"train": f"resources/datasets/{entry.dataset}"}
    return {}


def dataset_input(wildcards):
    owner = experiment.corpus_of(wildcards.dataset)
    return [] if owner == wildcards.dataset else f"resources/datasets/{owner}"


rule download_dataset:
    input:
        corpus_from=dataset_input,
    output:
        directory("resources/datasets/{dataset}"),
    log:
        "logs/download/dataset-{dataset}.log",
    benchmark:
        "benchmarks/download/dataset-{dataset}.tsv"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=240,
    params:
        entry=dataset_entry,
        code=lambda w: dataset_code(experiment.datasets[w.dataset].source),
        corpus=lambda w, input: f"--corpus-from {input.corpus_from}" if input.corpus_from else "",
    message:
        "download: data set {wildcards.dataset}"
    shell:
        "splade-rescale download dataset {wildcards.dataset} {output:q}"
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
    threads: 1
    resources:
        mem_mb=4000,
        runtime=240,
    params:
        entry=lambda w: settings(experiment.backbones[w.backbone]),
        code=lambda w: backbone_code(experiment.backbones[w.backbone].source),
        inputs=lambda w, input: " ".join(f"--{key} {value}" for key, value in input.items()),
    message:
        "download: backbone {wildcards.backbone}"
    shell:
        "splade-rescale download backbone {wildcards.backbone} {output:q}"
        " --entry {params.entry:q} {params.inputs} --threads {threads} > {log:q} 2>&1"
