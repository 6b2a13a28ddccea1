"""A decoder layer in PyTorch, used by passes, training and trained heads."""
