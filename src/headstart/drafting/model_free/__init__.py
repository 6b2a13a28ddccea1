"""Drafters that run neither a draft model nor a trained head: they guess from tokens and the target's own passes."""
