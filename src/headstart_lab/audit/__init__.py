"""The audit: checks rules, texts, rows and laws of a model on this machine."""
