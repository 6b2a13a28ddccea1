"""Heads that come with Headstart are found by kind and target."""

from __future__ import annotations

import json
from pathlib import Path

from headstart.models.heads.shipped import shipped_heads


def test_a_head_is_found_by_what_it_was_trained_for(tmp_path: Path) -> None:
    for name, kind, digest in (("a", "eagle3", "1"), ("b", "medusa", "1"), ("c", "eagle3", "2")):
        (tmp_path / name).mkdir()
        record = {"headstart": {"head": kind, "target_digest": digest}}
        (tmp_path / name / "config.json").write_text(json.dumps(record))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").write_text("{}")
    assert shipped_heads("1", tmp_path) == {"eagle3": tmp_path / "a", "medusa": tmp_path / "b"}
    assert shipped_heads("2", tmp_path) == {"eagle3": tmp_path / "c"}
    assert shipped_heads("3", tmp_path) == {}
    assert shipped_heads("2", tmp_path / "nothing") == {}
