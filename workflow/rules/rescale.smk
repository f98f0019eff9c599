# in:  resources/backbones/{backbone}/
# out: results/{backbone}/k{k}/init/


rule rescale:
    input:
        backbone="resources/backbones/{backbone}",
    output:
        init=directory("results/{backbone}/k{k}/init"),
    log:
        "logs/rescale/{backbone}-k{k}.log",
    benchmark:
        "benchmarks/rescale/{backbone}-k{k}.tsv"
    threads: 1
    resources:
        mem_mb=8000,
        runtime=30,
    params:
        tying=cfg.rescale.tying,
        bias=cfg.rescale.bias,
        code=code_digest("rescale"),
    message:
        "rescale: {wildcards.backbone} by k = {wildcards.k}"
    shell:
        "splade-rescale rescale {input.backbone:q} {output.init:q} --k {wildcards.k}"
        " --tying {params.tying} --bias {params.bias} --threads {threads} > {log:q} 2>&1"
