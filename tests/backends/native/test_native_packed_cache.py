"""Packed weights on disk: the same model as packed anew, never a stale or a damaged one, within bounds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
import torch
from gguf_blocks import VOCAB, write_llama
from native_cases import Rows, make_pass, random_tokens
from native_here import needs_native
from tiny_checkpoint import write_tiny_model
from tiny_models import make_model
from torch import Tensor

from headstart.backends.native import packed_model
from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.packed_cache import VARIABLE, PackedCache, Transfer, packed_cache
from headstart.backends.native.packing import Packer
from headstart.backends.native.precision import PRECISIONS, Precision
from headstart.errors import ConfigError
from headstart.models import files
from headstart.models.checkpoint import open_checkpoint
from headstart.models.layer_selection import select_layers
from headstart.models.weight_loading import load_decoder

pytestmark = needs_native
MIX = {"attn_v.weight": "Q6_K", "ffn_up.weight": "F16", "output.weight": "F16", "": "Q4_K"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where packed weights go, and libraries stay where they are; files count as settled at once."""
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr("headstart.backends.native.packed_cache.cache_directory", lambda: tmp_path / "cache")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(files, "_SETTLED_SECONDS", -1.0)
    return tmp_path / "cache" / "packed"


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every matrix that is packed."""
    matrices: list[int] = []
    pack = Packer.linear
    monkeypatch.setattr(Packer, "linear", lambda self, *args: (matrices.append(1), pack(self, *args)))
    return matrices


def load(path: Path, precision: Precision = "nearest", threads: int = 2) -> NativeBackend:
    return NativeBackend(*load_decoder(open_checkpoint(path), torch.float32), precision, threads)


def logits_of(backend: NativeBackend) -> Tensor:
    batch = make_pass(Rows(random_tokens(48, 1, VOCAB), 0, [0, 1]))
    return backend.forward(batch, backend.allocate_cache(2, 32)).logits


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_second_start_packs_nothing_and_says_the_same(
    tmp_path: Path, folder: Path, packed: list[int], precision: Precision
) -> None:
    path = write_llama(tmp_path / "model.gguf", MIX)
    first = load(path, precision)
    assert len(packed) == 9
    (entry,) = folder.iterdir()
    assert entry.stat().st_size < first.nbytes + (1 << 20)
    second = load(path, precision)
    assert len(packed) == 9
    assert (second.name, second.rounding, second.nbytes) == (first.name, first.rounding, first.nbytes)
    assert torch.equal(logits_of(second), logits_of(first))


WIDE = {"num_attention_heads": 2, "num_key_value_heads": 1}
WIDE_LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}

WIDE_DELTA = {"head_dim": 32, "linear_key_head_dim": 32, "linear_value_head_dim": 32}


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("lfm2", WIDE),
        ("nemotron_h", {"head_dim": 32}),
        ("jamba", WIDE),
        ("qwen3_5_moe_text", WIDE_DELTA),
        ("youtu", WIDE_LATENT),
        ("bloom", {"hidden_size": 64, "n_head": 2}),
        ("llama4", {"head_dim": 32}),
        ("gemma4_text", {"head_dim": 32}),
        ("gemma3n_text", {"head_dim": 32}),
    ],
)
def test_so_do_models_with_layers_of_other_kinds(
    tmp_path: Path, folder: Path, packed: list[int], family: str, sizes: dict[str, int]
) -> None:
    make_model(family, **sizes).save_pretrained(tmp_path / "model")
    first = load(tmp_path / "model", "bf16")
    count = len(packed)
    assert len(list(folder.iterdir())) == 1
    second = load(tmp_path / "model", "bf16")
    assert len(packed) == count
    assert torch.equal(logits_of(second), logits_of(first))


def test_other_arrangements_have_entries_of_their_own(tmp_path: Path, folder: Path, packed: list[int]) -> None:
    path = write_llama(tmp_path / "model.gguf", MIX)
    said = logits_of(load(path))
    assert torch.equal(logits_of(load(path, threads=1)), said)
    load(path, "int8")
    assert len(list(folder.iterdir())) == 3
    assert len(packed) == 27


def in_place(path: Path, at: int) -> None:
    """Changes one byte and puts the file's time back."""
    before = path.stat()
    raw = np.memmap(path, np.uint8, "r+")
    raw[at] ^= 1
    raw.flush()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def by_another(path: Path, at: int) -> None:
    """The same in a copy that takes the file's place, with its time."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[at] ^= 1
    path.with_suffix(".new").write_bytes(data)
    os.utime(path.with_suffix(".new"), ns=(before.st_atime_ns, before.st_mtime_ns))
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize("change", [in_place, by_another])
def test_a_changed_file_never_gets_stale_weights(
    tmp_path: Path, folder: Path, packed: list[int], change: Callable[[Path, int], None]
) -> None:
    """Also where neither size, time nor the samples of the digest tell."""
    path = write_llama(tmp_path / "model.gguf", MIX)
    checkpoint = open_checkpoint(path)
    record = checkpoint.weights.tensors["blk.1.ffn_gate.weight"]  # type: ignore[attr-defined]
    before, digest = logits_of(load(path)), checkpoint.digest()
    change(path, record.offset + record.nbytes // 4)
    assert open_checkpoint(path).digest() == digest
    after = logits_of(load(path))
    assert len(packed) == 18
    assert not torch.equal(after, before)


def test_folders_of_hugging_face_are_kept_as_well(tmp_path: Path, folder: Path, packed: list[int]) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_tiny_model(model, head_dim=32)
    load(model, "int8")
    before = len(packed)
    load(model, "int8")
    assert len(packed) == before
    in_place(model / "model.safetensors", (model / "model.safetensors").stat().st_size // 2)
    load(model, "int8")
    assert len(packed) == 2 * before


def test_weights_that_may_still_change_are_not_kept(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of files is coarse: what was written just now may be written again unnoticed."""
    monkeypatch.setattr(files, "_SETTLED_SECONDS", 1e6)
    load(write_llama(tmp_path / "model.gguf", MIX))
    assert list(folder.iterdir()) == []


def test_some_of_a_models_layers_are_not_kept(tmp_path: Path, folder: Path) -> None:
    """They are packed for a drafter, in a moment."""
    config, weights = load_decoder(open_checkpoint(write_llama(tmp_path / "model.gguf", MIX)), torch.float32)
    NativeBackend(*select_layers(config, weights, [0]), "nearest", 1)
    assert not folder.exists()


@pytest.mark.parametrize("place", ["key", "header", "small parts", "sums", "stream", "end", "cut", "empty"])
def test_damage_is_noticed_and_mended(tmp_path: Path, folder: Path, packed: list[int], place: str) -> None:
    path = write_llama(tmp_path / "model.gguf", MIX)
    said = logits_of(load(path))
    (entry,) = folder.iterdir()
    data = bytearray(entry.read_bytes())
    whole = bytes(data)
    small = 8192 + int.from_bytes(data[4104:4112], "little")
    places = {"key": 3, "header": 4097, "small parts": 8300, "sums": small + 9, "stream": len(data) // 2}
    if place == "cut":
        del data[-5000:]
    elif place == "empty":
        data.clear()
    else:
        data[places.get(place, len(data) - 1)] ^= 4
    entry.write_bytes(data)
    assert torch.equal(logits_of(load(path)), said)
    assert len(packed) == 18
    (entry,) = folder.iterdir()
    assert len(entry.read_bytes()) == len(whole)
    load(path)
    assert len(packed) == 18


def test_the_oldest_go_first_and_nothing_is_beyond_the_bound(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, 40_000)

    def save(file: int, start: int) -> None:
        os.pwrite(file, b"w" * 8_000, start)

    for age, key in enumerate("abc"):
        cache.store(key, 12_000, save)
        os.utime(tmp_path / f"{key}.packed", (1000 + age, 1000 + age))
    assert cache.load("a", lambda file, start: None)  # and is the youngest now
    cache.store("d", 12_000, save)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "c", "d"]
    cache.store("e", 50_000, save)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "c", "d"]


@pytest.mark.parametrize("fault", ["cannot be written", "no space"])
def test_what_cannot_be_kept_leaves_nothing_behind(tmp_path: Path, fault: str) -> None:
    def save(file: int, start: int) -> str:
        if fault == "no space":
            raise OSError(28, "No space left on device")
        return "the file cannot be written"

    PackedCache(tmp_path, 10**6).store("a", 100, save)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("headstart.backends.native.packed_cache.cache_directory", lambda: tmp_path / "file")
    assert packed_cache() is None
    load(write_llama(tmp_path / "model.gguf", MIX))


def test_the_environment_bounds_it_or_switches_it_off(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = packed_cache()
    assert default is not None
    assert default.directory == folder
    assert 0 < default.limit < 10**15
    for size, limit in (("20GB", 20 * 10**9), ("1.5 gb", 1_500_000_000), ("500M", 5 * 10**8), ("123", 123)):
        monkeypatch.setenv(VARIABLE, size)
        bounded = packed_cache()
        assert bounded is not None
        assert bounded.limit == limit
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(ConfigError, match=r"HEADSTART_PACKED_CACHE is 'much'; give a size such as 20GB, or 0"):
        packed_cache()
    monkeypatch.setenv(VARIABLE, "0")
    assert packed_cache() is None
    path = write_llama(tmp_path / "model.gguf", MIX)
    load(path)
    assert list(folder.iterdir()) == []


def test_large_models_are_written_while_they_are_in_use(
    tmp_path: Path, folder: Path, packed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that goes away meanwhile goes when all of it is written, and the next start takes it from there."""
    path = write_llama(tmp_path / "model.gguf", MIX)
    may_write, store = Event(), PackedCache.store

    def wait_and_store(cache: PackedCache, key: str, size: int, save: Transfer) -> None:
        assert may_write.wait(60)
        store(cache, key, size, save)

    monkeypatch.setattr(packed_model, "_BEHIND", 0)
    monkeypatch.setattr(PackedCache, "store", wait_and_store)
    models = [load(path)]
    said = logits_of(models[0])
    assert not list(folder.iterdir())
    leaving = Thread(target=models.clear)
    leaving.start()
    may_write.set()
    leaving.join()
    (entry,) = folder.iterdir()
    assert entry.suffix == ".packed"
    assert torch.equal(logits_of(load(path)), said)
    assert len(packed) == 9


def test_mixtures_of_experts_are_kept_as_well(
    tmp_path: Path, folder: Path, packed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With routers, what corrects them, gates of shared experts, and sinks."""
    pack = Packer.expert
    monkeypatch.setattr(Packer, "expert", lambda self, *args: (packed.append(1), pack(self, *args)))
    for family, sizes in (
        ("gpt_oss", {"head_dim": 32}),
        ("qwen2_moe", {"hidden_size": 128}),
        ("glm4_moe", {"head_dim": 64}),
        ("gemma4_text-experts", {"head_dim": 32}),
    ):
        path = tmp_path / family
        make_model(family, **sizes).save_pretrained(path)
        first, before = load(path, "int8"), len(packed)
        second = load(path, "int8")
        assert len(packed) == before
        assert torch.equal(logits_of(second), logits_of(first))
    assert len(list(folder.iterdir())) == 4
