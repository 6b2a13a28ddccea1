"""Texts to read: what ships with Headstart, a text file, or a JSONL file with a text a line."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from headstart.errors import ConfigError, RequestError
from headstart.text.prompt_lines import PromptLine, parse_lines, read_lines

_OWN = "passages.jsonl"


def read_passages(path: Path | None = None) -> list[str]:
    """The texts of a file; None: nine short ones that come with Headstart, written for it.

    A ``.jsonl`` file gives one text a line: its ``text``, else what it asks (``text.prompt_lines``), turns as
    paragraphs. Any other file is one text.

    Raises:
        ConfigError: the file cannot be read, holds no text, or a line has none.
    """
    if path is None:
        name = "the texts of the package"
        lines = parse_lines((files(__package__) / _OWN).read_bytes(), name)
    elif path.suffix != ".jsonl":
        return [_whole(path)]
    else:
        name, lines = f"text file {path}", read_lines(path)
    return [_text(line, name) for line in lines]


def windows(passages: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """Token ids cut into pieces of at most ``length``, each to be read from an empty cache.

    A piece begins with the last token of the one before, so that every token but a passage's first is predicted once.
    """
    step = length - 1
    cut = [list(tokens[start : start + length]) for tokens in passages for start in range(0, len(tokens) - 1, step)]
    return [piece for piece in cut if len(piece) > 1]


def _whole(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"text file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"text file {path} cannot be read as UTF-8 ({error.reason} at byte {error.start})."
        ) from error
    if not text.strip():
        raise ConfigError(f"text file {path} is empty; give some hundred words.")
    return text


def _text(line: PromptLine, name: str) -> str:
    if line.error is not None:
        raise ConfigError(f"line {line.number} of {name} {line.error}")
    text = line.fields.get("text")
    if isinstance(text, str) and text.strip():
        return text
    try:
        return "\n\n".join(line.texts())
    except RequestError as error:
        raise ConfigError(f"line {line.number} of {name} {error}") from error
