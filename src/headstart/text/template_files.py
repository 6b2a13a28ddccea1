"""Where chat templates lie, found without importing anything heavy: whether a model talks is known at once."""

from __future__ import annotations

import mmap
from pathlib import Path

from headstart.errors import ConfigError
from headstart.models.files import exists, local_path, read_json, read_text

TEMPLATE_FILE, TEMPLATE_FOLDER = "chat_template.jinja", "additional_chat_templates"
"""The default template of a directory, and a folder of further ones, each called like its file."""
GGUF_KEY = "tokenizer.chat_template"
_SETTINGS = "tokenizer_config.json"
_HEADER_BYTES = 1 << 27
"""Of a GGUF file, at most."""


def brings_template(path: Path) -> bool:
    """Whether a model's file or directory has a chat template, as far as that is to be seen without reading it all.

    Raises:
        CheckpointError: a file is damaged.
    """
    if path.is_dir():
        if (path / TEMPLATE_FILE).exists() or any((path / TEMPLATE_FOLDER).glob("*.jinja")):
            return True
        settings = path / _SETTINGS
        return settings.exists() and read_json(settings).get("chat_template") is not None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        return held.find(GGUF_KEY.encode(), 0, _HEADER_BYTES) >= 0


def given_template(given: str | Path) -> str:
    """A chat template that a user names: a file, or the template itself.

    Raises:
        ConfigError: there is no such file.
        CheckpointError: it cannot be read.
    """
    text = str(given)
    if "{" in text:
        return text
    path = local_path(text)
    if not exists(path):
        raise ConfigError(f"chat_template is {text!r:.200}, which does not exist; give a file, or the template itself.")
    return read_text(path)


def no_template(model: str) -> str:
    """What to do with a model that has none, in a sentence."""
    return (
        f"model {model!r} has no chat template: it goes on with texts, and was not made to talk. Let it do so with "
        "headstart generate, name a chat model with --model, or say how its messages are written with --chat-template "
        "FILE."
    )
