# What rules ask of the experiment: files and settings that depend on wildcards.
from splade_rescale.loss_table import LOSSES


def settings(model):
    return canonical_json(model.model_dump())


def engine_settings(model):
    """Settings of index or search, without the options of other engines."""
    return canonical_json(for_engine(model, cfg.index.engine))


def stage(name):
    """The settings of a stage in the arm of a job."""
    return lambda wildcards: settings(getattr(ARMS[wildcards.arm], name))


def memory(mb):
    """Memory of a job in MB, doubled whenever it is tried again."""
    return lambda wildcards, attempt: mb * 2 ** (attempt - 1)


def gpus(name):
    return lambda wildcards: getattr(ARMS[wildcards.arm], name).gpus


def train_dataset(wildcards):
    return f"resources/datasets/{ARMS[wildcards.arm].train.dataset}"


def train_code(wildcards):
    """The code of training with the loss of a job's arm, and where the table says that it lies."""
    loss = LOSSES[ARMS[wildcards.arm].train.loss]
    return f"{code_digest('train', loss.module)} {loss.module}.{loss.function}"


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


def auto_scale(wildcards):
    return f"results/{wildcards.arm}{wildcards.backbone}/auto.json" if wildcards.k == "auto" else []


def launcher(wildcards):
    """Several GPUs need a process each; they are taken before the processes start."""
    count = ARMS[wildcards.arm].train.gpus
    torchrun = (
        f"python -m splade_rescale with-gpus {count}"
        f" python -m torch.distributed.run --standalone --nproc-per-node {count}"
    )
    return f"{torchrun if count > 1 else 'python'} -m splade_rescale"


def unsharded_datasets():
    """Data sets with a corpus of their own, of one shard."""
    return [
        slug
        for slug in experiment.datasets
        if experiment.corpus_of(slug) == slug and experiment.shards(slug) == 1
    ]


def corpus_vectors(wildcards):
    owner = experiment.corpus_of(wildcards.dataset)
    shards = experiment.shards(owner)
    return [
        f"{ROOT}/{owner}/vectors/corpus-{shard:05d}-of-{shards:05d}.{kind}"
        for shard in range(shards)
        for kind in ("npz", "ids.parquet")
    ]


def index_of(root):
    """The index of the data set's corpus, which may be another data set's."""
    return lambda w: f"{root}/{experiment.corpus_of(w.dataset)}/index"


def self_hits(wildcards):
    return "--remove-self-hits" if experiment.datasets[wildcards.dataset].remove_self_hits else ""


def measures(wildcards):
    return " ".join(experiment.datasets[wildcards.dataset].measures)


def table_input(wildcards):
    owners = sorted({experiment.corpus_of(dataset) for dataset in cfg.datasets})
    files = {
        "cells": [],
        "indexes": expand(
            "results/{baseline}/{corpus}/index", baseline=cfg.baselines, corpus=owners
        ),
        "baselines": expand(
            "results/{baseline}/{dataset}/{kind}",
            baseline=cfg.baselines,
            kind=["metrics.json", "per_query.parquet", "search.json"],
            dataset=cfg.datasets,
        ),
        "models": [],
        "inits": [],
        "norms": ["results/norms.csv", "results/activation.csv"],
        "published": PUBLISHED,
    }
    kinds = ["metrics.json", "per_query.parquet", "search.json", "sparsity.json"]
    for arm, grid in ARMS.items():
        models = {"arm": arm, "backbone": grid.backbones, "k": grid.scales, "seed": grid.seeds}
        files["models"] += expand(f"{ROOT}/model", **models)
        files["indexes"] += expand(f"{ROOT}/{{corpus}}/index", corpus=owners, **models)
        files["inits"] += expand("results/{arm}{backbone}/k{k}/init", **models)
        files["cells"] += expand(
            f"{ROOT}/{{dataset}}/{{kind}}", dataset=cfg.datasets, kind=kinds, **models
        )
    return files


def report_commands():
    """Options with the commands that make the results and the report anew."""
    files = " ".join(shlex.quote(os.path.relpath(path)) for path in workflow.overwrite_configfiles)
    snakefile = os.path.relpath(workflow.main_snakefile)
    parts = ["snakemake"]
    parts += ["--snakefile", shlex.quote(snakefile)] if snakefile != "Snakefile" else []
    given = ["--configfile", files] if files else []
    first = [*parts, "--cores", "all", *given]
    second = [*parts, "--report", "results/report.html", *given]
    return " ".join(f"--command {shlex.quote(' '.join(words))}" for words in (first, second))


FIGURES = {
    "norms": "row norms",
    "score-against-k": "score against scale",
    "flops-against-score": "score against cost",
    "loss": "training loss",
    "active-d": "active terms, documents",
    "active-q": "active terms, queries",
}


def figure(name, kind):
    """A figure or its data, with caption and labels for Snakemake's report."""
    return report(
        f"results/report/figures/{name}.{kind}",
        caption=f"../report/{name}.rst",
        category="Figures",
        labels={"figure": FIGURES[name], "as": {"svg": "drawing", "csv": "data"}[kind]},
    )
