"""Trained heads: their modules, the formats they are stored in, and the passes that run them."""
