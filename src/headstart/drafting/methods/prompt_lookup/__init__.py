"""The method prompt_lookup."""
