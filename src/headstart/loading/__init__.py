"""From a model's name to what runs it."""
