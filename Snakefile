# Which pretrained encoder, at which MLM-head scale, makes the best learned sparse retriever?
from snakemake.utils import min_version

min_version("9.0")

# With --configfile the default is left out, so that nothing of its grid leaks into another.
if not workflow.overwrite_configfiles:

    configfile: f"{workflow.basedir}/config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/functions.smk"
include: "workflow/rules/download.smk"
include: "workflow/rules/norms.smk"
include: "workflow/rules/rescale.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/encode.smk"
include: "workflow/rules/index.smk"
include: "workflow/rules/search.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/table.smk"
include: "workflow/rules/paper.smk"
include: "workflow/rules/report.smk"


# What `snakemake --report results/report.html` opens with.
report: "workflow/report/workflow.rst"


rule all:
    default_target: True
    input:
        "results/table.csv",
        "results/report/index.html",
