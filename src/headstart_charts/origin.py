"""Where figures come from, as a table of a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart_charts.page import Table


def origin_table(record: Mapping[str, Any]) -> Table:
    """All of a record, for a page."""
    return Table("Where these figures come from", ("", ""), tuple(flat(record)))


def flat(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """(name, value) rows of a nested record, for a table."""
    rows: list[tuple[str, str]] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{prefix}{name} ")
        else:
            rows.append((f"{prefix}{name}".replace("_", " "), "–" if value is None else str(value)))
    return rows
