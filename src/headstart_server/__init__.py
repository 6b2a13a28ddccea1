"""The HTTP server over the engine: OpenAI's, Anthropic's, Ollama's and other APIs."""
