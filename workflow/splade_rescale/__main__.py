"""`python -m splade_rescale` is the command `splade-rescale`."""

from splade_rescale.cli import main

main()
