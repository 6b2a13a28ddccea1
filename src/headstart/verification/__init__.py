"""Verification rules as pure functions, and the oracle that enumerates their law."""
