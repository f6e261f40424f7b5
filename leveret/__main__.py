"""`python -m leveret` is the command `leveret`."""

from leveret.cli import main

main()
