# Loads and validates the configuration; nothing else is decided here.
import os
import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from splade_rescale.config import load_experiment, read_yaml
from splade_rescale.digest import code_digest
from splade_rescale.errors import UserError
from splade_rescale.files import canonical_json
from splade_rescale.owner import release_stale_locks
from splade_rescale.scale import AUTO
from splade_rescale.settings import DatasetEntry

# Jobs find the command line of the environment that Snakemake runs in.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

if workflow.is_main_process and not workflow.dryrun:
    owner = release_stale_locks(Path.cwd())

try:
    for path in workflow.configfiles:
        read_yaml(path)
    experiment = load_experiment(
        config,
        registries=Path(workflow.basedir) / "config",
        source=", ".join(os.path.relpath(path) for path in workflow.configfiles),
    )
except UserError as error:
    raise WorkflowError(f"The configuration cannot be used.\n{error}") from None

cfg = experiment.config
PUBLISHED = os.path.relpath(Path(workflow.basedir) / "config" / "published.csv")
ROOT = "results/{arm}{backbone}/k{k}/seed{seed}"
CELL = "{arm}{backbone}-k{k}-seed{seed}"
ARMS = {f"arms/{name}/" if name else "": experiment.arm(name) for name in ("", *cfg.arms)}


def one_of(slugs):
    return "|".join(re.escape(slug) for slug in slugs)


def settings(model):
    return canonical_json(model.model_dump())


def stage(name):
    """The settings of a stage in the arm of a job."""
    return lambda wildcards: settings(getattr(ARMS[wildcards.arm], name))


def gpus(name):
    return lambda wildcards: getattr(ARMS[wildcards.arm], name).gpus


def train_dataset(wildcards):
    return f"resources/datasets/{ARMS[wildcards.arm].train.dataset}"


wildcard_constraints:
    arm=f"(arms/({one_of(cfg.arms)})/)?",
    backbone=one_of(experiment.backbones),
    dataset=one_of(experiment.datasets),
    k=r"auto|(0|[1-9][0-9]*)(\.[0-9]*[1-9])?",
    seed=r"0|[1-9][0-9]*",
    shard=r"[0-9]{5}",
    shards=r"[0-9]{5}",
