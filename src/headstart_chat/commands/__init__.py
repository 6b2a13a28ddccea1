"""The command of the chat wing, and what it is listed as (entry points of ``headstart.commands``)."""

from headstart.cli.commands import ENGINE, USE, Listed

CHAT = Listed(
    "headstart_chat.commands.chat:chat",
    "Talk with a model in the terminal.",
    USE,
    (*ENGINE[:2], "--system", "--temperature", "--max-tokens", "--max-context", "--threads"),
    after="generate",
)
