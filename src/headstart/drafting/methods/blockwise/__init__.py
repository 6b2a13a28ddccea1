"""The method blockwise."""
