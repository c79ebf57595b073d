"""`python -m echod` is `echod`."""

from echod.cli import main

main()
