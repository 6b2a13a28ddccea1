"""Commands of the server, which ``headstart`` finds by entry points (``headstart.commands``)."""

from __future__ import annotations

from headstart.cli.commands import ENGINE, USE, Listed

SERVE = Listed(
    "headstart_server.commands.serve:serve",
    "Serve models over the OpenAI, Anthropic, Ollama, llama.cpp and Mistral APIs, with a page to watch.",
    USE,
    (*ENGINE, "--host", "--port", "--api-key-file", "--batch-size", "--max-context", "--served-name"),
    arguments="headstart_server.arguments:ServeArguments",
    after="generate",
)
