"""The OpenAI-compatible HTTP server over the engine, and the lab page."""
