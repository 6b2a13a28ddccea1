"""Results for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def print_json(result: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    print(json.dumps(result, ensure_ascii=False, allow_nan=False))
