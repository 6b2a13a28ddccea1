"""Heads that come with Headstart are found by kind and target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headstart.models.heads.loading import load_head
from headstart.models.heads.shipped import SHIPPED, shipped_heads


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


@pytest.mark.model
@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_the_default_model_has_heads(kind: str) -> None:
    from headstart.loading import load_model

    target = load_model("smollm2")
    load_head(shipped_heads(target.checkpoint.digest())[kind], target.config)
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) <= 40_000_000
