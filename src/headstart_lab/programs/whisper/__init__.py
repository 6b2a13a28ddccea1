"""Recordings that are told apart."""
