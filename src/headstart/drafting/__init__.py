"""Drafters: whatever guesses what the target will say."""

DEFAULT_DRAFTER = "auto"
"""Asks the drafters that need nothing but the text, and the head that comes with Headstart for the default model, where
each pays: among the fastest on the default model on every machine measured (docs/results.md). It turns itself off where
guesses lose."""

STORE_BYTES = 64 << 20
"""Of the texts that drafters copy from, in files or in memory, unless told otherwise."""
