"""Trained heads that come with Headstart, found by the target that they were trained for."""

from __future__ import annotations

import json
from pathlib import Path

from headstart.models.heads.files import RECORD_KEY

SHIPPED = Path(__file__).parent / "weights"
"""A directory for each head."""


def shipped_head(kind: str, target_digest: str, directory: Path = SHIPPED) -> Path | None:
    """Directory of the head of this kind for a target with this digest (``Checkpoint.digest``); None: there is none."""
    for path in sorted(directory.glob("*/config.json")):
        record = json.loads(path.read_text(encoding="utf-8")).get(RECORD_KEY, {})
        if (record.get("head"), record.get("target_digest")) == (kind, target_digest):
            return path.parent
    return None
