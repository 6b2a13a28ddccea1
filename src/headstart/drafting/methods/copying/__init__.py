"""The method copying."""
