"""The method suffix."""
