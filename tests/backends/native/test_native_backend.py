"""What the backend refuses, and what it says about itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from native_cases import Rows, make_pass, native, random_tokens, random_weights, run_chunks, small_config
from native_here import FASTEST, others

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.supported import supports
from headstart.backends.torch.backend import TorchBackend
from headstart.common.enumerations import Precision
from headstart.errors import ConfigError
from headstart.loading.model import create_backend

SETS = ("avx512", "avxvnni", "avx2")
ISA = FASTEST if FASTEST in SETS else next(iter(others(SETS)), "")
pytestmark = pytest.mark.skipif(not ISA, reason=f"none of {SETS} is this machine's, or the run is not thorough")


@pytest.fixture
def backend() -> NativeBackend:
    return native(small_config(), "bf16", ISA)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 48}, "head_dim 48"),
        ({"num_heads": 5}, "5 heads"),
    ],
)
def test_says_why_it_cannot_run_a_model(changes: dict[str, Any], reason: str) -> None:
    config = small_config(**changes)
    said = supports(config)
    assert said is not None
    assert reason in said
    with pytest.raises(ConfigError, match=reason):
        NativeBackend(config, random_weights(small_config()), "bf16", 1, ISA)


def test_torch_computes_where_it_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    config, other = small_config(), small_config(head_dim=48)
    built = create_backend(config, random_weights(config), Precision.INT8)
    assert isinstance(built, NativeBackend)
    assert built.name.endswith("-int8")
    assert isinstance(create_backend(other, random_weights(other)), TorchBackend)
    with pytest.raises(ConfigError, match="head_dim 48"):
        create_backend(other, random_weights(other), Precision.INT8)
    monkeypatch.setenv("HEADSTART_NATIVE", "0")
    assert isinstance(create_backend(config, random_weights(config)), TorchBackend)


def test_names_and_sizes(backend: NativeBackend) -> None:
    assert backend.name == f"native-{ISA}-bf16"
    assert backend.config == small_config()
    int8 = native(small_config(), "int8", ISA)  # type: ignore[arg-type]
    assert int8.name == f"native-{ISA}-int8"
    matrices = 2 * 128 * (10 * 32 + 6 * 32 + 2 * 128 + 128)
    assert matrices < int8.nbytes < backend.nbytes < 4 * matrices
    assert 0 < backend.read_seconds() < 1


def batch_of(rows: int = 4, **changes: Any) -> Any:
    batch = make_pass(Rows(random_tokens(rows), 0, [0, 1]))
    return replace(batch, **{k: np.asarray(v, np.int32) if k != "taps" else v for k, v in changes.items()})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": [1, 2, 3, 77]}, "token"),
        ({"tokens": [1, -2, 3, 4]}, "token"),
        ({"parents": [-1, 0, 1]}, "parents"),
        ({"parents": [-1, 0, 3, 2]}, "parent"),
        ({"row_starts": [0, 3]}, "row_starts"),
        ({"row_starts": [0]}, "row_starts"),
        ({"cached_lengths": [-1]}, "cached length"),
        ({"cached_lengths": [70]}, "block table"),
        ({"block_tables": [[2]]}, "block"),
        ({"block_tables": [[-1]]}, "block"),
        ({"logit_rows": [2, 1]}, "logit_rows"),
        ({"logit_rows": [4]}, "logit_rows"),
        ({"taps": (3,)}, "tap"),
    ],
)
def test_refuses_tables_that_contradict_each_other(
    backend: NativeBackend, changes: dict[str, Any], message: str
) -> None:
    storage = backend.allocate_cache(2, 32)
    with pytest.raises(ValueError, match=message):
        backend.forward(batch_of(**changes), storage)
    assert not storage.memory.any()  # type: ignore[attr-defined]


@pytest.mark.parametrize("layers", [-1, 0, 3])
def test_refuses_layers_it_does_not_have(backend: NativeBackend, layers: int) -> None:
    with pytest.raises(ValueError, match="num_layers"):
        backend.forward(replace(batch_of(), num_layers=layers), backend.allocate_cache(2, 32))


def test_refuses_foreign_storage(backend: NativeBackend) -> None:
    config = small_config()
    with pytest.raises(TypeError, match="TorchStorage"):
        backend.forward(batch_of(), TorchBackend(config, random_weights(config)).allocate_cache(2, 32))
    with pytest.raises(TypeError, match="another backend"):
        backend.forward(batch_of(), native(config, "fp32", ISA).allocate_cache(2, 32))  # type: ignore[arg-type]


def test_refuses_block_sizes_and_places(backend: NativeBackend) -> None:
    with pytest.raises(ConfigError, match="block_size is 16"):
        backend.allocate_cache(2, 16)
    storage = backend.allocate_cache(2, 32)
    with pytest.raises(ValueError, match=r"0\.\.63"):
        storage.move([0], [64])
    with pytest.raises(ValueError, match=r"0\.\.1"):
        storage.copy_blocks([2], [0])


def test_positions_far_beyond_the_first_table(backend: NativeBackend) -> None:
    """Rope tables grow; earlier rows keep their bits."""
    fresh = NativeBackend(small_config(), random_weights(small_config()), "bf16", 1, ISA)
    blocks = list(range(140))
    tokens = random_tokens(4200)
    storage = fresh.allocate_cache(140, 32)
    first = run_chunks(fresh, storage, tokens[:64], [64], blocks)
    batch = make_pass(Rows(tokens[64:], 64, blocks), logit_rows=[4135])
    assert fresh.forward(batch, storage).logits.isfinite().all()
    assert torch.equal(run_chunks(fresh, fresh.allocate_cache(140, 32), tokens[:64], [1], blocks), first)


def test_memory_of_the_cache(backend: NativeBackend) -> None:
    storage = backend.allocate_cache(3, 64)
    assert storage.nbytes == 3 * 64 * 2 * 2 * 2 * 32 * 2  # slots, k and v, layers, kv heads, head_dim, bytes
    assert storage.memory.nbytes == storage.nbytes  # type: ignore[attr-defined]
    assert (storage.num_blocks, storage.block_size) == (3, 64)
