"""Heads that come with Headstart are found by kind and by what their target is, not by its file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headstart import LLM
from headstart.drafting.head_files.loading import load_head
from headstart.drafting.head_files.shipped import GROUP, TargetIdentity, head_folders, shipped_heads, target_shape
from headstart.errors import ConfigError
from headstart.loading.lending import heads_for, identity_of, missing_heads
from headstart.loading.model import load_model

SHAPE: dict[str, Any] = {"family": "llama", "vocab_size": 64, "hidden_size": 8, "num_layers": 4, "num_heads": 2} | {
    "num_kv_heads": 1,
    "head_dim": 4,
    "mlp_size": 16,
}


def identity(digest: str = "other", vocabulary: str = "words", **changes: Any) -> TargetIdentity:
    return TargetIdentity(SHAPE | changes, lambda: digest, lambda: vocabulary)


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    """Two heads for one target, one of them for another of the same shape, and a folder that is no head's."""
    targets = {"one": identity("1"), "two": identity("2")}
    for name, kind, target in (("a", "eagle3", "one"), ("b", "medusa", "one"), ("c", "eagle3", "two")):
        (tmp_path / name).mkdir()
        record = {"head": kind, "target": target, **targets[target].record()}
        (tmp_path / name / "config.json").write_text(json.dumps({"headstart": record}))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").write_text("{}")
    return tmp_path


def test_the_head_for_the_very_weights_goes_first(heads: Path) -> None:
    found = shipped_heads(identity("2"), [heads])
    assert {kind: head.directory.name for kind, head in found.by_kind.items()} == {"eagle3": "c", "medusa": "b"}
    assert found.by_kind["eagle3"].why == "trained for the weights of two, which this model has"
    assert found.by_kind["medusa"].why == "trained for one, whose shape and vocabulary it has"
    assert found.near == {}


def test_other_weights_of_the_same_shape_and_vocabulary_get_one(heads: Path) -> None:
    found = shipped_heads(identity(), [heads])
    assert {kind: head.directory.name for kind, head in found.by_kind.items()} == {"eagle3": "a", "medusa": "b"}


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (identity(hidden_size=16), r"the one for two wants hidden_size 8 (here 16)."),
        (identity(num_layers=2, mlp_size=8), r"wants num_layers 4 (here 2) and mlp_size 16 (here 8)."),
        (identity(family="qwen2"), "wants family llama (here qwen2)."),
        (identity(vocabulary="others"), "wants its vocabulary, and this one is another."),
        (identity(vocabulary="others", vocab_size=65), "wants its vocabulary, and this one is another."),
    ],
)
def test_one_that_nearly_fits_is_left_out_with_a_reason(heads: Path, target: TargetIdentity, why: str) -> None:
    found = shipped_heads(target, [heads])
    assert found.by_kind == {}
    assert found.near["eagle3"].startswith("No eagle3 head is used: ")
    assert found.near["eagle3"].endswith(why)


def test_strangers_hear_nothing(heads: Path) -> None:
    for target in (identity(hidden_size=16, vocab_size=100), identity(hidden_size=16, vocabulary="others")):
        found = shipped_heads(target, [heads])
        assert (found.by_kind, found.near) == ({}, {})
    assert shipped_heads(identity("2"), [heads / "nothing"]).by_kind == {}


def test_records_of_older_heads_are_found_by_their_weights_alone(heads: Path) -> None:
    record = {"head": "eagle3", "target": "one", "target_digest": "1"}
    (heads / "a" / "config.json").write_text(json.dumps({"headstart": record}))
    assert shipped_heads(identity("1"), [heads]).by_kind["eagle3"].directory.name == "a"
    assert shipped_heads(identity("3"), [heads]).by_kind["eagle3"].directory.name == "c"


@pytest.fixture
def folders_anew() -> Iterator[None]:
    head_folders.cache_clear()
    yield
    head_folders.cache_clear()


def install(folder: Path, value: str) -> None:
    """A distribution in ``folder`` whose entry point names the package ``value``."""
    metadata = folder / "heads_of_a_test-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: heads-of-a-test\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\ntest = {value}\n")


@pytest.mark.usefixtures("folders_anew")
def test_packages_bring_heads_and_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heads_of_a_test").mkdir()
    (tmp_path / "heads_of_a_test" / "__init__.py").write_text("raise SystemExit\n")
    install(tmp_path, "heads_of_a_test")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (tmp_path / "heads_of_a_test").resolve() in head_folders()


@pytest.mark.usefixtures("folders_anew")
@pytest.mark.parametrize("value", ["heads_that_are_gone", "heads that:are none", "gone.heads"])
def test_a_package_that_is_gone_brings_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    before = head_folders()
    head_folders.cache_clear()
    install(tmp_path, value)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert head_folders() == before


def test_where_no_heads_are_installed_the_default_models_users_hear_how(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_heads("smollm2") is None
    monkeypatch.setattr("headstart.loading.lending.head_folders", lambda: ())
    assert "`pip install ./heads`" in str(missing_heads("smollm2"))
    assert missing_heads("another") is None


@pytest.mark.model
def test_the_default_model_has_a_head_and_the_laboratorys_say_how_one_is_made() -> None:
    kind = "eagle3"
    target = load_model("smollm2")
    with pytest.raises(ConfigError, match=r"no medusa head is installed .* \(headstart train medusa makes one\)\.$"):
        LLM(target, drafter="medusa")
    own = identity_of(target)
    own_head = heads_for(target).by_kind[kind]
    load_head(own_head.directory, target.config)
    assert "the weights of smollm2" in own_head.why
    # As a folder, or another quantisation, has it.
    again = shipped_heads(replace(own, digest=lambda: "another file's"))
    assert again.by_kind[kind].directory == own_head.directory
    smaller = replace(own, digest=lambda: "another", shape=target_shape(replace(target.config, hidden_size=960)))
    assert shipped_heads(smaller).by_kind == {}
    assert "wants hidden_size 576 (here 960)" in shipped_heads(smaller).near[kind]
    folder = own_head.directory.parent
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 25_000_000
