"""`python -m kepsvgp` is the command line."""

from kepsvgp.cli import main

main()
