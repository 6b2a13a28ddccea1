"""The chat wing: a conversation with a model in the terminal."""
