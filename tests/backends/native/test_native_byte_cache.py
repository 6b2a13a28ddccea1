"""Keys and values in 8 bits: rows are as exact as those of any other cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from native_cases import (
    BLOCK,
    Rows,
    check_a_broken_row_is_alone,
    check_rows_of_their_own,
    each_precision,
    isa_params,
    make_pass,
    native,
    path_to,
    random_tokens,
    random_tree,
    random_weights,
    run_chunks,
)
from native_here import FASTEST, needs_native
from stretch_cases import ONE_PASS, Counted, make_engine, one_by_one, save_heads
from test_native_exact import CONFIGS, OF_SEVERAL_SIZES
from test_native_latent import KINDS
from thinning import thorough_but
from toys import run_all, toy_sequence

from headstart.backends.native.backend import NativeBackend
from headstart.backends.torch.backend import TorchBackend
from headstart.common.enumerations import CacheType
from headstart.engine.schedule import Limits
from headstart.engine.sizing import cache_room
from headstart.models.config import ModelConfig
from headstart.passes.batch import KVStorage
from headstart.passes.runner import cache_bytes_per_token
from headstart.sampling.params import SamplingParams

pytestmark = needs_native
Q8_0 = CacheType.Q8_0
TABLE = np.random.default_rng(3).permutation(40).tolist()
MODELS = {**CONFIGS, **OF_SEVERAL_SIZES, "latent": KINDS["queries of a state"]}


def storage_of(backend: NativeBackend, block: int = BLOCK) -> KVStorage:
    return backend.allocate_cache(40 * BLOCK // block, block, cache_type=Q8_0)


@each_precision
def test_a_rows_bits_are_its_own(precision: str) -> None:
    check_rows_of_their_own(CONFIGS["grouped"], precision, FASTEST, Q8_0)  # type: ignore[arg-type]


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_so_they_are_by_every_instruction_set(precision: str, isa: str) -> None:
    check_rows_of_their_own(CONFIGS["window"], precision, isa, Q8_0)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
def test_trees_in_a_long_text(config: ModelConfig, precision: str) -> None:
    """Pages and chunks of 512 keys end within the tree, and threads share the chunks."""
    parents = random_tree(12, seed=8)
    leaf = max(range(12), key=lambda row: len(path_to(parents, row)))
    path = path_to(parents, leaf)
    for base in (31, 507):
        prompt, nodes = random_tokens(base, seed=base), random_tokens(12, seed=9)
        said = []
        for threads in (1, 3):
            backend = native(config, precision, FASTEST, threads)  # type: ignore[arg-type]
            storage = storage_of(backend)
            run_chunks(backend, storage, prompt, [200, 7], TABLE)
            said.append(backend.forward(make_pass(Rows(nodes, base, TABLE, parents)), storage).logits)
            plain = run_chunks(backend, storage, [nodes[row] for row in path], [1], TABLE, start=base)
            assert torch.equal(said[-1][path], plain)
        assert torch.equal(*said)


def test_what_is_moved_and_copied_is_read_again() -> None:
    """An accepted path goes on as plain decoding does, in blocks of any size, of a copy too."""
    backend = native(CONFIGS["grouped"], "bf16", FASTEST, 2)
    prompt, parents, nodes = random_tokens(45), random_tree(16, seed=11), random_tokens(16, seed=12)
    accepted, tail = max((path_to(parents, row) for row in range(16)), key=len), random_tokens(40, seed=13)
    text = prompt + [nodes[row] for row in accepted] + tail
    expected = run_chunks(backend, storage_of(backend), text, [60, 1], TABLE)
    for block in (32, 64, 160):
        storage = storage_of(backend, block)
        table = np.random.default_rng(4).permutation(storage.num_blocks)[: storage.num_blocks // 2].tolist()
        run_chunks(backend, storage, prompt, [64], table)
        backend.forward(make_pass(Rows(nodes, 45, table, parents)), storage)
        slots = [[table[i // block] * block + i % block for i in places]
                 for places in ([45 + row for row in accepted], range(45, 45 + len(accepted)))]  # fmt: skip
        storage.move(*slots)
        others = [each for each in range(storage.num_blocks) if each not in table][: len(table)]
        storage.copy_blocks(table[: len(others)], others)
        start = 45 + len(accepted)
        assert torch.equal(run_chunks(backend, storage, tail, [3], others, start=start), expected[start:])


def test_a_row_that_breaks_does_not_break_others() -> None:
    check_a_broken_row_is_alone(CONFIGS["grouped"], FASTEST, Q8_0)


@pytest.mark.parametrize("config", [CONFIGS["grouped"], CONFIGS["window"], KINDS["queries of a state"]])
def test_numbers_are_rounded_as_pytorch_rounds_them(config: ModelConfig) -> None:
    """But where a level is undecided: the rows' medians agree far better than with numbers that are not rounded."""
    batch = make_pass(Rows(random_tokens(50), 0, TABLE[:3]))
    reference, backend = TorchBackend(config, random_weights(config), torch.float32), native(config, "fp32", FASTEST)
    exact = reference.forward(batch, reference.allocate_cache(40, BLOCK)).logits
    rounded = reference.forward(batch, reference.allocate_cache(40, BLOCK, cache_type=Q8_0)).logits
    own = backend.forward(batch, storage_of(backend)).logits
    near, far = ((own - each).abs().amax(1).median().item() for each in (rounded, exact))
    assert 1e-4 < far < 0.3
    assert near < far / 20


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
def test_nearly_twice_the_tokens_take_the_same_memory(config: ModelConfig) -> None:
    backend = native(config, "bf16", FASTEST)
    assert cache_bytes_per_token(backend, Q8_0) == cache_bytes_per_token(backend) * 34 // 64
    limits = Limits(max_context=1 << 22, max_sequences=99)
    rooms = [cache_room(backend, limits, None, each) - limits.draft_rows for each in (CacheType.AUTO, Q8_0)]
    assert rooms == [1 << 22, 1 << 22]  # a whole context at least
    limits = Limits(max_context=512, max_sequences=1 << 20)
    rooms = [cache_room(backend, limits, None, each) - limits.draft_rows for each in (CacheType.AUTO, Q8_0)]
    assert rooms[1] / rooms[0] == pytest.approx(64 / 34, rel=1e-3)


@pytest.mark.parametrize("drafter", thorough_but(["eagle3", "auto"], ["suffix", "eagle3", "auto", *ONE_PASS]))
def test_heads_and_stretches_say_what_plain_decoding_says(
    drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others, in a cache that is too small for all of them, with prefixes that are there already."""
    save_heads(tmp_path)
    counted = Counted(monkeypatch)
    prompts = [random_tokens(40, seed=1), [*random_tokens(40, seed=1), 5], random_tokens(70, seed=2)]
    params = SamplingParams(temperature=0, max_tokens=60)

    def said(drafter: str, **settings: object) -> list[list[int]]:
        engine = make_engine(drafter, tmp_path, cache_type=Q8_0, **settings)  # type: ignore[arg-type]
        wanted = [toy_sequence(engine, prompt, sequence_id=i, params=params) for i, prompt in enumerate(prompts)]
        outputs = run_all(engine, wanted)
        again = run_all(engine, [toy_sequence(engine, prompts[1], sequence_id=9, params=params)])
        assert again == outputs[1:2]
        return outputs

    plain = said("none")
    assert said(drafter) == plain
    assert counted.rounds > 0
    assert said(drafter, cache_tokens=320, prefixes=True) == plain
    one_by_one(monkeypatch)
    assert said(drafter, cache_tokens=320) == plain
