"""The method trivial."""
