# in:  results/table.csv, norms.csv, training logs, config/published.csv
# out: results/paper/: the paper's tables and figures


rule paper:
    input:
        table="results/table.csv",
        norms="results/norms.csv",
        published=PUBLISHED,
        models=lambda w: table_input(w)["models"],
    output:
        multiext("results/paper/", "table1.csv", "table2.csv", "beir.csv"),
        multiext("results/paper/figure", "2.svg", "3.svg", "4.svg", "2.csv", "3.csv", "4.csv"),
    log:
        "logs/paper.log",
    benchmark:
        "benchmarks/paper.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=10,
    params:
        grid=settings(experiment.grid()),
        settings=settings(cfg.paper),
        code=code_digest("paper_files"),
    message:
        "paper: tables and figures, published values beside ours"
    shell:
        "python -m splade_rescale paper --grid {params.grid:q} --published {input.published:q}"
        " --settings {params.settings:q} > {log:q} 2>&1"
