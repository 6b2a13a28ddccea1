"""Drafters that run a draft model: a smaller model, or some of the target's own layers."""
