"""The method eagle."""
