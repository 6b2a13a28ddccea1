"""Block heads on the native library compute what they compute by PyTorch, alone, in batches and in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from native_cases import isa_params, make_random, on_grids, small_config
from native_here import needs_native
from test_native_heads import DRAFT_VOCAB, VOCAB, distance
from torch import Tensor

from headstart.backends.native.block_pass import NativeBlockPass, supports_block
from headstart.backends.native.precision import Precision
from headstart.backends.torch.block_pass import BlockPass
from headstart.backends.torch.head_kit import torch_kit
from headstart.drafting.heads.head_pass import BlockHeadPass, DraftRoot, DraftRows, GrownTree, PathBounds
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.errors import ConfigError
from headstart_train.first_steps.block import block_config

SLOTS = 5
SELECTOR = {"draft_vocab_size": VOCAB, "selector_rank": 7, "selector_top": 9}
VARIANTS = {
    "dflash": {},
    "causal": {"causal": True},
    "the root speaks": {"root_speaks": True},
    "biases and an output of its own": {"attention_bias": True, "own_output": True},
    "every token": {"draft_vocab_size": VOCAB},
    "odd sizes": {"hidden_size": 83, "target_hidden_size": 83, "mlp_size": 77},
    "one layer": {"num_layers": 1},
    "dspark": {"root_speaks": True, "markov_rank": 7, "confidence": True, "confidence_reads_token": True},
    "a layer that is read": {"taps": (1,)},
    "windows": {"windows": (9, 0, 70)},
    "windows whose rows look back": {"windows": (40, 0, 4), "causal_windows": True},
    "sinks": {"sinks": True, "windows": (9, 0, 70), "root_speaks": True},
    "convolutions": {"conv_taps": 2, "conv_group": 8},
    "convolutions of odd sizes": {
        "hidden_size": 78,
        "target_hidden_size": 78,
        "mlp_size": 77,
        "conv_taps": 4,
        "conv_group": 13,
        "causal": True,
        "num_layers": 1,
    },
}
SELECTING = {
    "dflash 2": {"conv_taps": 2, "conv_group": 8, **SELECTOR},
    "dflash 2 that is confident": {"conv_taps": 3, "conv_group": 96, "confidence": True, **SELECTOR},
}


def random_block(**changes: object) -> BlockHead:
    target = small_config(hidden_size=96, vocab_size=VOCAB, layers=small_config().layers * 3)
    head = BlockHead(replace(block_config(target, SLOTS, 3, 6, DRAFT_VOCAB), **changes))  # type: ignore[arg-type]
    make_random(head)
    for layer in head.layers if head.config.conv_taps else ():
        for conv in (layer.attention_conv, layer.mlp_conv):
            conv.kernel_projection.weight.data.mul_(0.25)  # kernels change a little, as trained ones do
    if head.config.reduced:
        head.d2t.copy_(torch.arange(DRAFT_VOCAB) // 2)
    return head


def tables(head: BlockHead) -> TargetTables:
    generator = torch.Generator().manual_seed(2)
    shape = (VOCAB, head.config.hidden_size)
    embedding, output = (torch.randn(shape, generator=generator).bfloat16().float() for _ in range(2))
    return TargetTables(embedding, (output * shape[1] ** -0.5).bfloat16().float())


def by_torch(head: BlockHead, of_target: TargetTables) -> BlockPass:
    return BlockPass(head, of_target, torch_kit(torch.float32))


def blocks(
    running: BlockHeadPass, lengths: Sequence[int], chunks: int = 1, which: Sequence[int] | None = None
) -> list[Tensor]:
    """States and logits of two blocks of each sequence, the second of which comes after two more states."""
    which = range(len(lengths)) if which is None else which
    config = running.config  # type: ignore[attr-defined]
    width = config.target_hidden_size * len(config.taps)
    caches = [running.new_cache() for _ in which]
    said: list[Tensor] = []
    for turn in range(2):
        features = [
            torch.from_numpy(np.random.default_rng([i, turn]).normal(size=(2 if turn else lengths[i], width))).float()
            for i in which
        ]
        for piece in zip(*[torch.tensor_split(each, chunks) for each in features], strict=True):
            rows = [DraftRows(cache, len(each)) for cache, each in zip(caches, piece, strict=True) if len(each)]
            running.read(torch.cat(piece), rows)
        roots = np.array([(7 * i + turn) % VOCAB for i in which], np.int32)
        said += running.block(roots, caches, config.slots - turn)
        assert [cache.rows for cache in caches] == [lengths[i] + 2 * turn for i in which]
    return said


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("name", VARIANTS)
def test_blocks_agree_with_pytorch(name: str, isa: str) -> None:
    head = random_block(**(VARIANTS | SELECTING)[name])
    lengths = (70, 5)
    wanted = blocks(by_torch(head, tables(head)), lengths)
    for precision, tolerance in (("fp32", 1e-5), ("bf16", 0.03), ("int8", 0.1), ("int8-fast", 0.12)):
        native = NativeBlockPass(head, tables(head), precision, 1, isa)  # type: ignore[arg-type]
        assert distance(blocks(native, lengths), wanted) < tolerance, precision


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("name", VARIANTS)
def test_on_grids_of_sixteen_levels_are_kept(name: str, isa: str) -> None:
    head = random_block(**(VARIANTS | SELECTING)[name])
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() == 2:
                parameter.copy_(on_grids(parameter))
    of_target = TargetTables(tables(head).embedding, on_grids(tables(head).head))
    wanted = blocks(by_torch(head, of_target), (70, 5))
    for precision, tolerance in (("int4", 0.03), ("int4-fast", 0.15)):
        native = NativeBlockPass(head, of_target, precision, 1, isa)  # type: ignore[arg-type]
        assert distance(blocks(native, (70, 5)), wanted) < tolerance, precision


@needs_native
@pytest.mark.parametrize("name", ["dflash", "causal", "windows whose rows look back", "dflash 2"])
@pytest.mark.parametrize("precision", ["bf16", "int8-fast", "int4-fast", "fp32"])
def test_a_block_does_not_depend_on_its_company(precision: Precision, name: str) -> None:
    """Other sequences, pieces that are read one by one, threads; more rows than a panel holds, in which no block is
    parted."""
    head = random_block(**(VARIANTS | SELECTING)[name])
    lengths = [40, 7, 300, *[3 + i % 5 for i in range(60)]]
    together = blocks(NativeBlockPass(head, tables(head), precision, 1), lengths)
    for i in (0, 1, 2, 41, 42, 43, 62):
        alone = blocks(NativeBlockPass(head, tables(head), precision, 2), lengths, 2, [i])
        for got, beside in zip(alone, together, strict=True):
            assert torch.equal(got[0], beside[i])


@needs_native
def test_a_causal_block_says_the_same_of_its_first_slots_however_long_it_is() -> None:
    head = random_block(causal=True)
    longer = BlockHead(replace(head.config, block_size=head.config.block_size + 3))
    longer.load_state_dict(head.state_dict())
    short, long = (blocks(NativeBlockPass(each, tables(head), "bf16", 1), (20,)) for each in (head, longer))
    for got, wanted in zip(long, short, strict=True):
        assert torch.equal(got[:, : wanted.shape[1]], wanted)


@needs_native
def test_what_is_added_and_how_sure_it_is_are_those_of_pytorch() -> None:
    head = random_block(**VARIANTS["dspark"])
    torch_pass = by_torch(head, tables(head))
    tokens, states = torch.arange(VOCAB), torch.randn(VOCAB, 96, generator=torch.Generator().manual_seed(3))
    for precision, tolerance in (("fp32", 1e-5), ("bf16", 0.02), ("int8", 0.1)):
        native = NativeBlockPass(head, tables(head), precision, 1)  # type: ignore[arg-type]
        assert native.chained
        assert native.confident
        assert distance([native.following(tokens, states)], [torch_pass.following(tokens, states)]) < tolerance
        torch.testing.assert_close(native.confidence(states, tokens), torch_pass.confidence(states, tokens))
        assert native.nbytes > NativeBlockPass(random_block(), tables(head), precision, 1).nbytes  # type: ignore[arg-type]


@needs_native
@pytest.mark.parametrize("name", SELECTING)
def test_a_selector_chooses_among_the_candidates_of_pytorch(name: str) -> None:
    head = random_block(**SELECTING[name])
    torch_pass, native = by_torch(head, tables(head)), NativeBlockPass(head, tables(head), "fp32", 1)
    for got, wanted in zip(blocks(native, (70, 5)), blocks(torch_pass, (70, 5)), strict=True):
        assert torch.equal(got.isfinite(), wanted.isfinite())
        torch.testing.assert_close(got.nan_to_num(neginf=0), wanted.nan_to_num(neginf=0), rtol=1e-4, atol=1e-4)
    tokens, states = torch.arange(VOCAB), torch.randn(VOCAB, 96, generator=torch.Generator().manual_seed(3))
    assert distance([native.following(tokens, states)], [torch_pass.following(tokens, states)]) < 1e-5
    assert native.nbytes > NativeBlockPass(random_block(draft_vocab_size=VOCAB), tables(head), "fp32", 1).nbytes


@needs_native
def test_copied_rows_are_the_rows() -> None:
    head = random_block()
    native = NativeBlockPass(head, tables(head), "int4-fast", 1)
    features = torch.randn(200, head.config.target_hidden_size * len(head.config.taps))
    source, target = native.new_cache(), native.new_cache()
    native.read(features, [DraftRows(source, 200)])
    for first, count in ((0, 31), (31, 32), (63, 137)):
        target.extend(source, first, count)
    roots = np.array([3, 3], np.int32)
    states, logits = native.block(roots, [source, target], SLOTS)
    assert torch.equal(states[0], states[1])
    assert torch.equal(logits[0], logits[1])


@needs_native
def test_what_cannot_be_read_is_refused() -> None:
    head = random_block()
    native = NativeBlockPass(head, tables(head), "bf16", 1)
    cache = native.new_cache()
    with pytest.raises(ValueError, match="features are"):
        native.read(torch.zeros(2, 5), [DraftRows(cache, 2)])
    native.read(torch.zeros(2, native._features), [DraftRows(cache, 2)])
    with pytest.raises(ValueError, match="vocabulary"):
        native.block(np.array([VOCAB], np.int32), [cache], 2)
    assert cache.rows == 2
    config = replace(head.config, head_dim=24)
    assert "head_dim 24" in (supports_block(config) or "")
    with pytest.raises(ConfigError, match="head_dim 24"):
        NativeBlockPass(BlockHead(config), tables(head))


def drafts(running: NativeBlockPass, counts: Sequence[int], which: Sequence[int], nodes: int = 20) -> list[GrownTree]:
    """Two drafts of each sequence, side by side, the second of which comes after two more states."""
    config = running.config
    ids = running.target_ids.numpy().astype(np.int32)
    growth, width = running.growth(4, ids, ends=True), config.target_hidden_size * len(config.taps)
    caches = [running.new_cache() for _ in which]
    trees: list[GrownTree] = []
    for turn in range(2):
        roots = []
        for i, cache in zip(which, caches, strict=True):
            rng = np.random.default_rng([i, turn])
            count = 2 if turn else counts[i]
            tokens, features = rng.integers(0, VOCAB, count), rng.normal(size=(count, width))
            roots.append(DraftRoot(cache, tokens.astype(np.int32), features.astype(np.float32), nodes, 3 + i % 4))
        trees += growth.grow(roots, PathBounds(-9.0, -7.0), None)
        assert [cache.rows for cache in caches] == [counts[i] + 2 * turn for i in which]
    return trees


@needs_native
@pytest.mark.parametrize("name", ["dflash", "causal", "dspark", "biases and an output of its own", *SELECTING])
@pytest.mark.parametrize("precision", ["bf16", "int8-fast", "int4-fast", "fp32"])
def test_a_draft_does_not_depend_on_its_company(name: str, precision: Precision) -> None:
    """Other sequences, more of them than a panel of rows holds, and threads."""
    head = random_block(**(VARIANTS | SELECTING)[name])
    counts = [40, 7, 300, *[1 + i % 5 for i in range(40)]]
    together = drafts(NativeBlockPass(head, tables(head), precision, 2), counts, range(len(counts)))
    assert any(len(tree.tokens) > 3 for tree in together)
    for i in (0, 2, 5, 30, 42):
        alone = drafts(NativeBlockPass(head, tables(head), precision, 1), counts, [i])
        for turn, tree in enumerate(alone):
            for got, wanted in zip(tree, together[turn * len(counts) + i], strict=True):
                np.testing.assert_array_equal(got, wanted)


@needs_native
def test_states_that_are_no_numbers_bring_no_guess() -> None:
    for name in ("dflash", "dspark", *SELECTING):
        head = random_block(**(VARIANTS | SELECTING)[name])
        native = NativeBlockPass(head, tables(head), "fp32", 1)
        growth = native.growth(3, native.target_ids.numpy().astype(np.int32), ends=True)
        states = np.full((2, native._features), np.nan, np.float32)
        root = DraftRoot(native.new_cache(), np.array([5, 6], np.int32), states, 9, 3)
        (tree,) = growth.grow([root], PathBounds(-1e9, -1e9), None)
        assert len(tree.tokens) == 0
