"""The command of the speech wing, and what it is listed as (entry points of ``headstart.commands``)."""

from headstart.cli.commands import USE, Listed

TRANSCRIBE = Listed(
    "headstart_speech.commands.transcribe:transcribe",
    "Write down what recordings say.",
    USE,
    ("--model", "--language", "--task", "--format", "--timestamps", "--drafter", "--json"),
    after="chat",
)
