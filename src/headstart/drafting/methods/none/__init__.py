"""The method none."""
