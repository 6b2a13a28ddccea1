"""Sampling: a request's parameters, the transforms of its logits, and counter-based noise."""
