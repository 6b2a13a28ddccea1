"""Heads that guess for SmolLM2-135M-Instruct: a directory for each. Headstart finds them by an entry point."""
