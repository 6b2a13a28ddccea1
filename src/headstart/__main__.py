"""``python -m headstart``: the command line, where its script is not on the path."""

from headstart.cli.main import main

main()
