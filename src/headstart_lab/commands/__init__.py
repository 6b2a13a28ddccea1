"""The laboratory's commands, one a file."""
