# in:  resources/backbones/{backbone}/
# out: results/{arm}{backbone}/k{k}/init/


rule rescale:
    input:
        backbone="resources/backbones/{backbone}",
        auto=auto_scale,
    output:
        init=directory("results/{arm}{backbone}/k{k}/init"),
    log:
        "logs/rescale/{arm}{backbone}-k{k}.log",
    benchmark:
        "benchmarks/rescale/{arm}{backbone}-k{k}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=30,
    params:
        k=lambda w, input: f"--k-from {input.auto}" if input.auto else f"--k {w.k}",
        tying=lambda w: ARMS[w.arm].rescale.tying,
        bias=lambda w: ARMS[w.arm].rescale.bias,
        code=code_digest("rescale"),
    message:
        "rescale: {wildcards.arm}{wildcards.backbone} by k = {wildcards.k}"
    shell:
        "python -m splade_rescale rescale {input.backbone:q} --out {output.init:q} {params.k}"
        " --tying {params.tying} --bias {params.bias} --threads {threads} > {log:q} 2>&1"
