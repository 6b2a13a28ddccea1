"""The method synthetic."""
