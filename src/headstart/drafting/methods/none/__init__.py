"""Plain decoding."""

from headstart.drafting.method import Method

METHODS = (Method("none", "guesses nothing: plain decoding", "Headstart", f"{__name__}.drafter:NoDrafter", "plain"),)
