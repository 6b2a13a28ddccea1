"""What computes passes: one room for each backend."""
