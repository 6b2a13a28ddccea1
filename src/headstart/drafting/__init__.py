"""Drafters: whatever guesses what the target will say."""

DEFAULT_DRAFTER = "ngram"
"""Needs nothing but the text itself, and was fastest on the default model in every sitting (docs/experiments.md):
its few rows cost little where there is no matrix unit."""
