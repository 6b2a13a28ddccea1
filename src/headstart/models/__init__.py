"""Models: configurations, families, checkpoints, the torch decoder, and the contract of a backend."""
