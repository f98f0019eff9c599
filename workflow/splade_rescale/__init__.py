"""Rescale the MLM head of a pretrained encoder, train SPLADE on it, and measure what it retrieves.

One module per stage, in data-flow order: `download -> norms -> rescale -> train -> encode ->
index -> search -> evaluate -> table`. The modules are plain functions; `cli` puts a command
line on them and the Snakemake rules call that command line.
"""
