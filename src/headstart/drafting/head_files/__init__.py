"""Trained heads on disk: formats read and written, those that come with Headstart."""
