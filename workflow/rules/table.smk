# in:  every cell's results
# out: results/table.csv; scores in the model cards, which are no output: a model folder is train's


rule table:
    input:
        unpack(table_input),
    output:
        report(
            "results/table.csv",
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "runs"},
        ),
    log:
        "logs/table.log",
    benchmark:
        "benchmarks/table.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=10,
    params:
        grid=settings(experiment.grid()),
        code=code_digest("table", "card"),
    message:
        "table: one row per cell"
    shell:
        "(python -m splade_rescale table --grid {params.grid:q} --out {output:q}"
        " --published {input.published:q}"
        " && python -m splade_rescale card {input.models:q}) > {log:q} 2>&1"
