"""The cells in which speculation must never lose: users, groups of prompts, temperatures, precisions, lengths of input.

Every cell is decoded by plain decoding and by the others in turn, as often as the time allows; what is measured is kept
in a file line by line, so that a later call goes on from there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from headstart.errors import ConfigError
from headstart_lab.bench.work import Work

SHORT = "short"
"""Inputs that are the prompts as they are."""
FORMAT = "headstart-bench-cells/1"


@dataclass(frozen=True)
class Stand:
    """What shares a model and a cache."""

    precision: str
    input: str
    """``SHORT``, or so many tokens: prompt and answer together."""
    users: int
    """Requests that are decoded at a time."""

    @property
    def length(self) -> int:
        """Tokens of the input and its answer; 0: as the prompts are."""
        return 0 if self.input == SHORT else int(self.input)


@dataclass(frozen=True)
class Cell:
    """Where speculation is compared with plain decoding."""

    stand: Stand
    temperature: float
    group: str

    @property
    def name(self) -> str:
        """As a reader finds it."""
        stand = self.stand
        users = f"{stand.users} user{'s' * (stand.users > 1)}"
        inputs = stand.input if stand.input == SHORT else f"{stand.input} tokens"
        return f"{stand.precision}, {inputs}, {users}, temperature {self.temperature:g}, {self.group}"


@dataclass(frozen=True)
class Turn:
    """One contender in one cell, once."""

    cell: Cell
    contender: str
    repeat: int
    tokens: int
    """That all its requests said."""
    seconds: float
    """From the first request to the last answer's end."""
    user_seconds: float
    """Summed over the requests: from a prompt that is read to the end of its answer."""
    rounds: int
    texts: str
    """Digest of all that was said."""
    must_agree: bool
    """Whether that has to be plain decoding's."""
    work: Work | None = None

    def row(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Turn:
        """Of a ``row``."""
        cell = Cell(Stand(**row["cell"]["stand"]), row["cell"]["temperature"], row["cell"]["group"])
        work = None if row["work"] is None else Work(**row["work"])
        return cls(**{**row, "cell": cell, "work": work})


def parse_inputs(text: str) -> list[str]:
    """``short`` and numbers of tokens such as 8k or 8192, separated by commas.

    Raises:
        ConfigError: one is neither.
    """
    found = []
    for part in filter(None, map(str.strip, text.lower().split(","))):
        digits, factor = (part[:-1], 1024) if part.endswith("k") else (part, 1)
        if part != SHORT and not (digits.isdecimal() and int(digits)):
            raise ConfigError(f"--inputs holds {part!r}; give short, or numbers of tokens like 8k or 8192, by commas.")
        found.append(SHORT if part == SHORT else str(int(digits) * factor))
    if not found:
        raise ConfigError("--inputs names none; give short, or numbers of tokens like 8k or 8192, by commas.")
    return list(dict.fromkeys(found))


def parse_numbers(option: str, text: str, kind: Callable[[str], float], least: float) -> list[float]:
    """Numbers of at least ``least``, separated by commas; ``option`` is named in messages.

    Raises:
        ConfigError: there is none, or one is something else.
    """
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            number = kind(part)
        except ValueError:
            number = -1
        if not least <= number < float("inf"):
            raise ConfigError(f"{option} holds {part!r}; give numbers of {least:g} or more, by commas.")
        found.append(number)
    if not found:
        raise ConfigError(f"{option} names none; give numbers of {least:g} or more, by commas.")
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Grid:
    """The cells."""

    precisions: Sequence[str]
    inputs: Sequence[str]
    users: Sequence[int]
    temperatures: Sequence[float]

    def stands(self, precision: str) -> list[Stand]:
        """Those of one precision."""
        return [Stand(precision, *each) for each in product(self.inputs, self.users)]

    def cells(self, stand: Stand, groups: Iterable[str]) -> list[Cell]:
        """Those of one stand."""
        return [Cell(stand, *each) for each in product(self.temperatures, groups)]


class ResultsFile:
    """Turns as they were measured, a line each; None: they are kept in memory alone.

    Args:
        settings: of the measurement. A file that was begun with others is none to go on with.

    Raises:
        ConfigError: the file cannot be read or written, is none of these, or has other settings.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.turns: list[Turn] = []
        self._path = path
        if path is None:
            return
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            whole = text[: text.rfind("\n") + 1]
            rows = [json.loads(line) for line in whole.splitlines()]
            if rows:
                self._require_same(rows[0], settings)
                self.turns = [Turn.of(row) for row in rows[1:]]
        except OSError as error:
            raise self._unusable(error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"--results is {path}, which holds no cells; name another file.") from error
        if rows and whole != text:
            # Its last line broke off while it was written.
            os.truncate(path, len(whole.encode()))
        if not rows:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write([{"format": FORMAT, **settings}])

    def _require_same(self, head: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        if head.get("format") != FORMAT:
            raise ConfigError(f"--results is {self._path}, which holds no cells; name another file.")
        # As they are after a file.
        for name, value in json.loads(json.dumps(settings)).items():
            if head.get(name) != value:
                raise ConfigError(
                    f"--results is {self._path}, whose {name} is {head.get(name)!r:.60}, not {value!r:.60}; name "
                    "another file, or measure as it was begun."
                )

    def add(self, turns: Sequence[Turn]) -> None:
        """Those of one repeat of a cell, all contenders together."""
        self.turns += turns
        self._write([turn.row() for turn in turns])

    def repeats(self, cell: Cell, contenders: Sequence[str]) -> set[int]:
        """Of a cell, those in which all contenders were measured."""
        of_cell = [turn for turn in self.turns if turn.cell == cell]
        done = [{turn.repeat for turn in of_cell if turn.contender == name} for name in contenders]
        return set.intersection(*done)

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(f"--results is {self._path}, which cannot be used: {error.strerror}.")
