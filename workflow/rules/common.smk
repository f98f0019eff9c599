# Loads and validates the configuration; nothing else is decided here.
import os
import re
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from splade_rescale.config import load_experiment, read_yaml
from splade_rescale.digest import code_digest
from splade_rescale.errors import UserError
from splade_rescale.files import canonical_json
from splade_rescale.gpus import visible
from splade_rescale.owner import check_writable, release_stale_locks
from splade_rescale.provenance import settings_of
from splade_rescale.scale import AUTO
from splade_rescale.settings import DatasetEntry, for_engine

# Jobs run the Python that Snakemake runs in, or that of their conda environment, and this package.
os.environ.update(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    PYTHONPATH=os.pathsep.join(
        [*filter(None, [os.environ.get("PYTHONPATH")]), str(Path(workflow.basedir, "workflow"))]
    ),
)

# Snakemake's executors for clusters write this path into a shell command as it stands; PATH has it.
if shlex.quote(sys.executable) != sys.executable:
    sys.executable = Path(sys.executable).name

try:
    if workflow.is_main_process and not workflow.dryrun:
        check_writable(Path.cwd())
        owner = release_stale_locks(Path.cwd())
except UserError as error:
    raise WorkflowError(str(error)) from None

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
ENVIRONMENT = Path(workflow.basedir, "envs", "environment.yaml")
PUBLISHED = os.path.relpath(Path(workflow.basedir) / "config" / "published.csv")
ROOT = "results/{arm}{backbone}/k{k}/seed{seed}"
CELL = "{arm}{backbone}-k{k}-seed{seed}"
ARMS = {f"arms/{name}/" if name else "": experiment.arm(name) for name in ("", *cfg.arms)}

# Jobs on this machine share out its GPUs, unless --resources says how many there are to share.
local = workflow.is_main_process and workflow.resource_settings.nodes is None
asked = any(stage.gpus for arm in ARMS.values() for stage in (arm.train, arm.encode))
if local and asked and "gpu" not in workflow.global_resources:
    workflow.register_resource("gpu", len(visible()))


def one_of(slugs):
    # Of nothing: an empty pattern would constrain nothing
    return "|".join(re.escape(slug) for slug in slugs) or "(?!)"


wildcard_constraints:
    arm=f"(arms/({one_of(cfg.arms)})/)?",
    backbone=one_of(experiment.backbones),
    dataset=one_of(experiment.datasets),
    k=r"auto|(0|[1-9][0-9]*)(\.[0-9]*[1-9])?",
    seed=r"0|[1-9][0-9]*",
    shard=r"[0-9]{5}",
    shards=r"[0-9]{5}",
