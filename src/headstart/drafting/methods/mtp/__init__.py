"""The method mtp."""
