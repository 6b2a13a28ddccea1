"""Passes computed with PyTorch, on any device: the reference, and the path where no native one runs."""
