"""The training wing's commands, one a file."""
