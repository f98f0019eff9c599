# in:  results/table.csv, norms.csv, training logs, models, a data set
# out: results/report/: figures/, expansions.json, index.html
#
# `snakemake --report results/report.html` wraps index.html and the figures in Snakemake's own report.

PAGE = os.path.relpath(Path(workflow.basedir) / "workflow" / "splade_rescale" / "page")


rule report_figures:
    input:
        table="results/table.csv",
        norms="results/norms.csv",
        models=lambda w: table_input(w)["models"],
    output:
        [figure(name, kind) for name in FIGURES for kind in ("svg", "csv")],
        narrow=expand("results/report/figures/{name}-narrow.svg", name=FIGURES),
    log:
        "logs/report/figures.log",
    benchmark:
        "benchmarks/report/figures.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=10,
    params:
        grid=settings(experiment.grid()),
        code=code_digest("report_figures"),
    message:
        "report: figures"
    shell:
        "python -m splade_rescale report figures --grid {params.grid:q} > {log:q} 2>&1"


rule report_expansions:
    input:
        table="results/table.csv",
        models=lambda w: table_input(w)["models"],
        inits=lambda w: table_input(w)["inits"],
        dataset=f"resources/datasets/{cfg.datasets[0]}",
    output:
        "results/report/expansions.json",
    log:
        "logs/report/expansions.log",
    benchmark:
        "benchmarks/report/expansions.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=60,
    params:
        grid=settings(experiment.grid()),
        settings=settings(cfg.report),
        encode=settings(cfg.encode),
        code=code_digest("expansions"),
    message:
        "report: what the models make of a few texts"
    shell:
        "python -m splade_rescale report expansions {input.dataset:q} --grid {params.grid:q}"
        " --out {output:q} --settings {params.settings:q} --encode {params.encode:q}"
        " --threads {threads} > {log:q} 2>&1"


rule report:
    input:
        rules.report_figures.output,
        table="results/table.csv",
        norms="results/norms.csv",
        expansions="results/report/expansions.json",
        datasets=expand("resources/datasets/{dataset}", dataset=cfg.datasets),
        published=PUBLISHED,
        page=multiext(f"{PAGE}/report", ".html", ".css", ".js"),
    output:
        report(
            "results/report/index.html",
            caption="../report/index.rst",
            category="Report",
            labels={"page": "the whole report"},
        ),
    log:
        "logs/report/page.log",
    benchmark:
        "benchmarks/report/page.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=10,
    params:
        grid=settings(experiment.grid()),
        experiment=canonical_json(settings_of(experiment)),
        commands=report_commands(),
        code=code_digest("report"),
    message:
        "report: one page"
    shell:
        "python -m splade_rescale report page --grid {params.grid:q}"
        " --experiment {params.experiment:q} --published {input.published:q}"
        " {params.commands} --out {output:q} > {log:q} 2>&1"
