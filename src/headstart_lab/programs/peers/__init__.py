"""Other programs on the same work."""
