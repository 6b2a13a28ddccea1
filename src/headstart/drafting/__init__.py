"""Drafters: whatever guesses what the target will say."""

DEFAULT_DRAFTER = "suffix"
"""Needs nothing but the text itself, and of those that do it guesses best on the default model."""
