"""Drafters that run a trained head (the heads themselves are in ``heads/``)."""
