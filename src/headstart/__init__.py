"""Headstart: lossless speculative decoding for language models."""
