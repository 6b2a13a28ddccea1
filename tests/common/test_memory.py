"""Memory is reported at start, and what cannot fit is refused in one sentence."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

import headstart.common.memory as memory
from headstart.common.memory import MemoryUse, free_bytes, readable, require_room
from headstart.drafting.base import SpeculationParams
from headstart.entrypoints.llm import LLM
from headstart.errors import ConfigError
from headstart.loading.lending import heads_for

GB = 10**9


def test_sizes_are_read_by_people() -> None:
    assert [readable(size) for size in (0, 269_000_000, 1_100_000_000)] == ["0 MB", "269 MB", "1.1 GB"]
    assert str(MemoryUse(269_000_000, GB, 0)) == "1.3 GB (weights 269 MB, cache 1.0 GB)"


def test_this_system_says_what_is_free() -> None:
    free = free_bytes()
    assert free is None or free > 0


def test_a_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + GB, -1))
    left = memory.address_space_left()
    assert left is not None
    assert GB / 2 < left <= 2 * GB
    assert (free_bytes() or 0) <= left
    monkeypatch.setattr(resource, "getrlimit", lambda _: (-1, -1))
    assert memory.address_space_left() is None


def test_what_means_a_lack_of_memory_is_known() -> None:
    assert memory.is_lack_of_memory(MemoryError())
    assert memory.is_lack_of_memory(RuntimeError("can't start new thread"))
    assert memory.is_lack_of_memory(OSError(12, "Cannot allocate memory"))
    assert not memory.is_lack_of_memory(RuntimeError("shapes differ"))
    assert not memory.is_lack_of_memory(OSError(2, "No such file or directory"))


def test_what_fits_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: GB)
    require_room(GB, "a model", "choose another")
    monkeypatch.setattr(memory, "free_bytes", lambda: None)
    require_room(1000 * GB, "a model", "choose another")


def test_a_model_without_room_is_refused_before_it_is_read(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 10)
    with pytest.raises(ConfigError, match=r"takes .* MB, but 0 MB of memory is free; choose a smaller model"):
        LLM(tiny_model_dir, "none")


def test_a_cache_without_room_is_refused(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: GB)
    for tokens, drafts, asked_for in (
        (10**9, 31, {"cache_tokens": 10**9}),
        (100, 10**9, {"cache_tokens": 100, "draft_tokens": 10**9}),
        (100, 10**9, {"cache_tokens": 100, "speculation": SpeculationParams(tree_nodes=10**9)}),
    ):
        cache = f"a cache of {tokens} tokens beside drafts of {drafts}"
        with pytest.raises(ConfigError, match=rf"{cache} takes .* GB, but 1.0 GB of memory is free; .* tree_nodes"):
            LLM(tiny_model_dir, "ngram", **asked_for)


@pytest.mark.thorough
@pytest.mark.model
def test_a_trained_head_counts_with_its_tables() -> None:
    llm = LLM("smollm2", "eagle3", max_context=128)
    head = heads_for(llm.model).by_kind["eagle3"].directory
    size = (head / "model.safetensors").stat().st_size
    config = llm.model.config
    # At least its own weights, in 5 bits instead of the file's 16, and the embedding that it reads, in bfloat16.
    assert llm.memory.drafters >= size * 5 // 16 + 2 * config.vocab_size * config.hidden_size - 100_000


def test_an_engine_says_what_it_holds(tiny_model_dir: Path) -> None:
    plain = LLM(tiny_model_dir, "none").memory
    assert plain.weights > 0
    assert plain.cache > 0
    assert plain.drafters == 0
    drafted = LLM(tiny_model_dir, "draft-model", draft_model=tiny_model_dir).memory
    assert drafted.weights == plain.weights
    assert drafted.drafters > plain.weights
    both = LLM(tiny_model_dir, "auto", drafter_options={"drafters": "ngram"}, more_drafters=["suffix"]).memory
    assert both.drafters == 0
