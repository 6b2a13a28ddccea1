"""The papers' algebra and measurement."""
