"""The method medusa."""
