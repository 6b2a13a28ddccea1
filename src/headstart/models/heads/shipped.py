"""Trained heads that come with Headstart, found by the target that they were trained for."""

from __future__ import annotations

import json
from pathlib import Path

from headstart.models.heads.files import RECORD_KEY

SHIPPED = Path(__file__).parent / "weights"
"""A directory for each head."""


def shipped_heads(target_digest: str, directory: Path = SHIPPED) -> dict[str, Path]:
    """Kind -> directory of each head for a target with this digest (``Checkpoint.digest``)."""
    found = {}
    for path in sorted(directory.glob("*/config.json")):
        record = json.loads(path.read_text(encoding="utf-8")).get(RECORD_KEY, {})
        if record.get("target_digest") == target_digest:
            found[str(record["head"])] = path.parent
    return found
