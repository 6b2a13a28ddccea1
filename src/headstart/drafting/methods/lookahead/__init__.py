"""The method lookahead."""
