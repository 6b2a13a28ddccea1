"""A row's bits never depend on the pass it rides in."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from native_cases import (
    BLOCK,
    FUSED,
    Rows,
    check_rows_alone,
    each_isa,
    each_precision,
    has_isa,
    isa_params,
    make_pass,
    native,
    path_to,
    random_tokens,
    random_tree,
    random_weights,
    run_chunks,
    small_config,
)
from native_here import FASTEST
from thinning import thorough_but
from torch import Tensor

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.linear import NativeLinear
from headstart.backends.native.loader import load_library
from headstart.backends.native.precision import Precision
from headstart.backends.native.storage import NativeStorage
from headstart.backends.torch.backend import TorchBackend
from headstart.models.config import AttentionConfig, LayerConfig, ModelConfig, ResidualConfig, RopeConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.linear_weights import LinearWeights
from headstart.passes.batch import FINAL_TAP, IntArray, RowInputs

CONFIGS = {
    "grouped": small_config(),
    "window": small_config(
        num_heads=2, num_kv_heads=1, head_dim=64, ropes=(RopeConfig(theta=1e4, dim=64),),
        layers=(LayerConfig(window=21), LayerConfig()),
    ),
}  # fmt: skip
SHUFFLED = np.random.default_rng(7).permutation(40).tolist()
"""Physical blocks in no order, so that logical and physical places differ."""

OF_SEVERAL_SIZES = {
    "heads": small_config(
        head_dim=64, ropes=(RopeConfig(theta=1e4, dim=32),),
        layers=(LayerConfig(head_dim=32, num_heads=2, num_kv_heads=1), LayerConfig(head_dim=64)),
    ),
    "narrow values": small_config(
        head_dim=96, ropes=(RopeConfig(theta=1e4, dim=32),), experts=ExpertsConfig(4, 2, 48, shared_size=64),
        attention=AttentionConfig(value_dim=64, value_scale=0.7, sinks=True, gate="head"),
        layers=(
            LayerConfig(window=900, num_heads=8, num_kv_heads=4, mlp_limit=0.5),
            LayerConfig(channel="experts", sinks=False, mlp_limit=0.6, expert_limit=0.4),
        ),
    ),
}  # fmt: skip
"""Layers that differ in their heads, sinks and limits."""

each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def storage_of(backend: NativeBackend, blocks: int = 40) -> NativeStorage:
    storage = backend.allocate_cache(blocks, BLOCK)
    assert isinstance(storage, NativeStorage)
    return storage


@each_isa
@each_precision
@each_config
def test_any_chunking(config: object, precision: Precision, isa: str) -> None:
    backend = native(config, precision, isa)  # type: ignore[arg-type]
    tokens = random_tokens(120)
    expected = run_chunks(backend, storage_of(backend), tokens, [1], SHUFFLED)
    for sizes in ([120], [2], [3, 30, 7], [16], [17, 40, 31, 32], [33, 1], [5]):
        assert torch.equal(run_chunks(backend, storage_of(backend), tokens, sizes, SHUFFLED), expected), sizes


@pytest.mark.parametrize("isa", isa_params())
@each_precision
def test_every_row_count(precision: Precision, isa: str) -> None:
    backend = native(CONFIGS["grouped"], precision, isa)
    tokens, storage = random_tokens(60), storage_of(backend)
    expected = run_chunks(backend, storage, tokens, [1], SHUFFLED)
    for rows in range(1, 41):
        actual = backend.forward(make_pass(Rows(tokens[20 : 20 + rows], 20, SHUFFLED)), storage).logits
        assert torch.equal(actual, expected[20 : 20 + rows]), rows


@pytest.mark.thorough
@pytest.mark.parametrize("isa", isa_params(("zen4",)))
@each_precision
def test_how_memory_is_asked_changes_no_bit(precision: Precision, isa: str) -> None:
    """Processors that compute alike agree."""
    tokens = random_tokens(60)
    logits = []
    for name in (isa, "avx512bf16"):
        backend = native(CONFIGS["grouped"], precision, name)
        logits.append(run_chunks(backend, storage_of(backend), tokens, [1, 40, 3], SHUFFLED))
    assert torch.equal(*logits)


def physical_slots(logical: Iterable[int]) -> IntArray:
    return np.array([SHUFFLED[i // BLOCK] * BLOCK + i % BLOCK for i in logical], np.int32)


def check_tree(backend: NativeBackend, base: int, parents: list[int], seed: int, chunk: int = 64) -> None:
    prompt, nodes = random_tokens(base, seed), random_tokens(len(parents), seed + 1)
    storage = storage_of(backend)
    if prompt:
        run_chunks(backend, storage, prompt, [chunk], SHUFFLED)
    tree = backend.forward(make_pass(Rows(nodes, base, SHUFFLED, parents)), storage).logits
    leaves = set(range(len(parents))) - set(parents)
    for leaf in sorted(leaves)[::3]:
        path = path_to(parents, leaf)
        plain = run_chunks(backend, storage, [nodes[row] for row in path], [1], SHUFFLED, start=base)
        assert torch.equal(tree[path], plain), (base, leaf)


@each_isa
@each_precision
@each_config
def test_tree_nodes_equal_plain_decoding_of_their_path(config: object, precision: Precision, isa: str) -> None:
    backend = native(config, precision, isa)  # type: ignore[arg-type]
    for base in (0, 1, 30, 31, 32, 33, 63):
        check_tree(backend, base, random_tree(14, seed=base), seed=base)


@each_isa
@pytest.mark.parametrize("precision", ["bf16", "int8", "fp32"])
@each_config
def test_trees_across_the_chunk_border(config: object, precision: Precision, isa: str) -> None:
    backend = native(config, precision, isa)  # type: ignore[arg-type]
    for base in (506, 511, 512):
        check_tree(backend, base, random_tree(12, seed=base), seed=base)


@pytest.mark.parametrize("isa", isa_params())
def test_tree_larger_than_a_panel(isa: str) -> None:
    check_tree(native(CONFIGS["grouped"], "bf16", isa), 40, [-1, 0, *random_tree(300, seed=5)[2:]], seed=5)


@pytest.mark.parametrize("isa", isa_params(("amx", "amx-emulated", "avx512bf16", "avx512", "avx2")))
@pytest.mark.parametrize("precision", thorough_but(["bf16"], ["bf16", "int8", "int4", "blocks"]))
def test_prompt_longer_than_a_panel(precision: Precision, isa: str) -> None:
    backend = native(CONFIGS["grouped"], precision, isa)
    tokens = random_tokens(600)
    whole = backend.forward(make_pass(Rows(tokens, 0, SHUFFLED)), storage_of(backend)).logits
    assert torch.equal(run_chunks(backend, storage_of(backend), tokens, [100, 255, 3], SHUFFLED), whole)


@each_isa
@pytest.mark.parametrize("precision", ["bf16", "fp32", "int8", "int8-fast", "int4", "int4-fast"])
def test_rows_alone_and_among_many(precision: Precision, isa: str) -> None:
    """Of a layer whose inputs are multiplied part by part where rows are many, and whose last columns fill no pair."""
    library = load_library(isa)
    assert library is not None
    weight = torch.randn(100, 1184, generator=torch.Generator().manual_seed(3)).bfloat16()
    check_rows_alone(NativeLinear(library, LinearWeights(weight), precision, 1), 1184)


@each_isa
@each_precision
def test_neighbours_in_the_batch(precision: Precision, isa: str) -> None:
    backend = native(CONFIGS["grouped"], precision, isa)
    prompts = [random_tokens(n, seed=n) for n in (50, 3, 33, 64)]
    tables = [SHUFFLED[10 * i : 10 * i + 10] for i in range(4)]
    trees = [None, random_tree(9, seed=1), random_tree(5, seed=2), None]
    rows = [random_tokens(9 if tree is None else len(tree), seed=70 + i) for i, tree in enumerate(trees)]
    alone = []
    for prompt, table, tree, tokens in zip(prompts, tables, trees, rows, strict=True):
        storage = storage_of(backend)
        run_chunks(backend, storage, prompt, [17], table)
        alone.append(backend.forward(make_pass(Rows(tokens, len(prompt), table, tree)), storage).logits)
    storage = storage_of(backend)
    backend.forward(make_pass(*(Rows(p, 0, t) for p, t in zip(prompts, tables, strict=True))), storage)
    parts = [Rows(*part) for part in zip(rows, map(len, prompts), tables, trees, strict=True)]
    together = backend.forward(make_pass(*parts), storage).logits
    assert torch.equal(together, torch.cat(alone))


@each_isa
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 6, 11])
@pytest.mark.parametrize("context", [20, 600])
def test_however_few_rows_are_shared_out(context: int, rows: int, isa: str) -> None:
    """Attention is cut by rows, heads and chunks so that no thread waits; the bits stay."""
    config = small_config(num_heads=9, num_kv_heads=3)
    prompt, tokens = random_tokens(context), random_tokens(rows, seed=17)
    batch = make_pass(Rows(tokens, context, SHUFFLED, random_tree(rows, seed=18) if rows > 2 else None))
    logits: list[Tensor] = []
    for threads in (1, 2, 4):
        backend = native(config, "bf16", isa, threads)
        storage = storage_of(backend)
        backend.forward(make_pass(Rows(prompt, 0, SHUFFLED), logit_rows=[]), storage)
        logits.append(backend.forward(batch, storage).logits)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@each_isa
@each_precision
def test_one_thread_or_two(precision: Precision, isa: str) -> None:
    config = CONFIGS["grouped"]
    tokens, tree = random_tokens(40), random_tree(20, seed=4)
    logits: list[Tensor] = []
    for threads in (1, 2, 3):
        backend = native(config, precision, isa, threads)
        storage = storage_of(backend)
        prefill = backend.forward(make_pass(Rows(tokens[:20], 0, SHUFFLED)), storage).logits
        step = backend.forward(make_pass(Rows(tokens[20:21], 20, SHUFFLED)), storage).logits
        nodes = backend.forward(make_pass(Rows(tokens[20:], 20, SHUFFLED, tree)), storage).logits
        logits.append(torch.cat([prefill, step, nodes]))
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@each_isa
@each_precision
def test_three_threads_say_the_same_every_time(precision: Precision, isa: str) -> None:
    """Threads write neighbouring cells of the cache, and take work over from each other as it happens."""
    config = CONFIGS["grouped"]
    tokens, tree = random_tokens(40), random_tree(20, seed=5)
    said: list[Tensor] = []
    for _ in range(12):
        backend = native(config, precision, isa, 3)
        storage = storage_of(backend)
        prefill = backend.forward(make_pass(Rows(tokens[:20], 0, SHUFFLED)), storage).logits
        nodes = backend.forward(make_pass(Rows(tokens[20:], 20, SHUFFLED, tree)), storage).logits
        said.append(torch.cat([prefill, nodes]))
    assert all(torch.equal(said[0], again) for again in said)


@each_isa
@each_precision
@pytest.mark.parametrize("base", [20, 31, 505])
def test_decoding_goes_on_from_an_accepted_path(base: int, precision: Precision, isa: str) -> None:
    """The accepted path moved into place leaves the cache as plain decoding would."""
    backend = native(CONFIGS["grouped"], precision, isa)
    prompt, parents = random_tokens(base), random_tree(16, seed=11)
    nodes, storage = random_tokens(16, seed=12), storage_of(backend)
    run_chunks(backend, storage, prompt, [64], SHUFFLED)
    backend.forward(make_pass(Rows(nodes, base, SHUFFLED, parents)), storage)
    accepted = max((path_to(parents, row) for row in range(16)), key=len)
    assert accepted != list(range(len(accepted)))

    places = range(base, base + len(accepted))
    storage.move(physical_slots([base + row for row in accepted]).tolist(), physical_slots(places).tolist())
    tail = random_tokens(5, seed=13)
    after = run_chunks(backend, storage, tail, [2], SHUFFLED, start=base + len(accepted))
    fresh, text = storage_of(backend), prompt + [nodes[row] for row in accepted] + tail
    assert torch.equal(after, run_chunks(backend, fresh, text, [base, 1], SHUFFLED)[-5:])


def spoil_unused(storage: NativeStorage, used: list[int], value: float, precision: Precision) -> None:
    """Write ``value`` into every slot but the physical ones in ``used``: move it there from a slot full of it."""
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    donor = next(b for b in range(storage.num_blocks) if b * BLOCK not in used and b * BLOCK + 1 not in used)
    pages = torch.from_numpy(storage.memory).view(dtype).view(len(CONFIGS["grouped"].layers), storage.num_blocks, -1)
    pages[:, donor] = value
    free = np.setdiff1d(np.arange(storage.num_blocks * BLOCK), used).astype(np.int32)
    storage.move([donor * BLOCK] * len(free), free.tolist())


@each_isa
@each_precision
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3e38])
def test_junk_in_unused_slots(value: float, precision: Precision, isa: str) -> None:
    backend = native(CONFIGS["grouped"], precision, isa)
    prompt, tree = random_tokens(43), random_tree(13, seed=6)
    nodes = random_tokens(13, seed=8)

    def run(spoil: bool) -> Tensor:
        storage = storage_of(backend)
        logits = [run_chunks(backend, storage, prompt[:10], [10], SHUFFLED)]
        steps = ((prompt[10:42], 10, None), (prompt[42:], 42, None), (nodes, 43, tree))
        for tokens, cached, parents in steps:
            if spoil:
                spoil_unused(storage, physical_slots(range(cached)).tolist(), value, precision)
            logits.append(backend.forward(make_pass(Rows(tokens, cached, SHUFFLED, parents)), storage).logits)
        return torch.cat(logits)

    clean = run(spoil=False)
    assert clean.isfinite().all()
    assert torch.equal(run(spoil=True), clean)


@each_isa
@pytest.mark.parametrize(
    ("parents", "broken"), [([-1, 0, 0, 1, 2], [1, 3]), ([-1, 0, 1, 2, 3], [1, 2, 3, 4])], ids=["tree", "chain"]
)
def test_a_row_that_breaks_does_not_break_others(parents: list[int], broken: list[int], isa: str) -> None:
    """Not-a-number in one row's own state reaches the rows that see it, and no other."""
    backend = native(CONFIGS["grouped"], "bf16", isa)
    storage = storage_of(backend)
    run_chunks(backend, storage, random_tokens(37), [64], SHUFFLED)
    inputs = torch.randn(5, 96, generator=torch.Generator().manual_seed(0))
    given = RowInputs(np.arange(5, dtype=np.int32), inputs)
    batch = make_pass(Rows([0] * 5, 37, SHUFFLED, parents), inputs=given)
    whole = backend.forward(batch, storage).logits
    inputs[1] = float("nan")
    after = backend.forward(batch, storage).logits
    sound = [row for row in range(5) if row not in broken]
    assert torch.equal(after[sound], whole[sound])
    assert after[broken].isnan().all()


@each_isa
def test_taps_and_few_logits_are_the_same_rows(isa: str) -> None:
    backend = native(CONFIGS["grouped"], "bf16", isa)
    tokens, taps = random_tokens(40), (0, 1, 2, FINAL_TAP)
    whole = backend.forward(make_pass(Rows(tokens, 0, SHUFFLED), taps=taps), storage_of(backend))
    few = backend.forward(make_pass(Rows(tokens, 0, SHUFFLED), logit_rows=[0, 17, 39]), storage_of(backend))
    assert torch.equal(few.logits, whole.logits[[0, 17, 39]])
    storage = storage_of(backend)
    for position, token in enumerate(tokens):
        out = backend.forward(make_pass(Rows([token], position, SHUFFLED), taps=taps, logit_rows=[]), storage)
        assert out.logits.shape == (0, 77)
        for tap in taps:
            assert np.array_equal(out.hidden[tap][0], whole.hidden[tap][position])


ASKED_OF = {
    "nobody": [],
    "the last of each": [299, 319, 379],
    "some, on both sides of a panel's border": [0, 3, 4, 5, 254, 255, 256, 300, 310, 320, 333, 378],
    "the last panel's": [*range(256, 380)],
}
"""Logits that are wanted of a pass of three sequences: a long prompt, a tree, a chunk."""


@each_isa
@each_precision
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("wanted", ASKED_OF.values(), ids=ASKED_OF.keys())
def test_rows_that_nobody_asks_of_end_early(wanted: list[int], parallel: bool, precision: Precision, isa: str) -> None:
    """The last layer computes but their keys and values; whatever is asked for, then or later, stays the same."""
    config = small_config(residual=ResidualConfig(parallel=parallel), layers=(LayerConfig(window=21), LayerConfig()))
    tables = [SHUFFLED[:20], SHUFFLED[20:25], SHUFFLED[25:40]]
    tree, lengths = random_tree(20, seed=3), (300, 20, 60)
    tokens = [random_tokens(count, seed=count) for count in lengths]
    parts = [
        Rows(tokens[0], 0, tables[0]),
        Rows(tokens[1], 40, tables[1], tree),
        Rows(tokens[2], 30, tables[2]),
    ]
    earlier = make_pass(Rows(random_tokens(40), 0, tables[1]), Rows(random_tokens(30), 0, tables[2]), logit_rows=[])
    said: list[Tensor] = []
    for rows, threads in ((None, 1), (wanted, 1), (wanted, 3)):
        backend = native(config, precision, isa, threads)
        storage = storage_of(backend)
        backend.forward(earlier, storage)
        out = backend.forward(make_pass(*parts, logit_rows=rows), storage)
        behind = make_pass(
            *(Rows([7], cached, table) for cached, table in zip((300, 41, 90), tables, strict=True)),
            best_rows=np.array([1], np.int32), logit_rows=[0, 2],
        )  # fmt: skip
        later = backend.forward(behind, storage)
        logits = out.logits[wanted] if rows is None else out.logits
        said.append(torch.cat((logits, later.logits, torch.from_numpy(later.best)[:, None].expand(1, 77))))
    assert torch.equal(said[0], said[1])
    assert torch.equal(said[0], said[2])


VECTORS = [isa for isa in FUSED if has_isa(isa)]


@pytest.mark.thorough
@pytest.mark.skipif(len(VECTORS) < 2, reason=f"needs a compiler, and two of {FUSED}")
@each_precision
def test_vectors_of_any_width_agree(precision: Precision) -> None:
    tokens, tree = random_tokens(50), random_tree(12, seed=2)
    said = []
    for isa in VECTORS:
        backend = native(CONFIGS["grouped"], precision, isa)
        storage = storage_of(backend)
        prefill = run_chunks(backend, storage, tokens, [50], SHUFFLED)
        nodes = backend.forward(make_pass(Rows(tokens[:12], 50, SHUFFLED, tree)), storage).logits
        said.append(torch.cat([prefill, nodes]))
    assert all(torch.equal(each, said[0]) for each in said)


@pytest.mark.parametrize("precision", thorough_but(["bf16"], ["bf16", "fp32"]))
@pytest.mark.parametrize("config", OF_SEVERAL_SIZES.values(), ids=OF_SEVERAL_SIZES.keys())
def test_layers_of_several_sizes_are_exact_and_agree_with_pytorch(config: ModelConfig, precision: Precision) -> None:
    """Also where threads share the chunks of a long context."""
    prompt, nodes = random_tokens(1100), random_tokens(9, seed=16)
    logits: list[Tensor] = []
    for threads in (1, 4):
        backend = native(config, precision, FASTEST, threads)
        storage = storage_of(backend)
        run_chunks(backend, storage, prompt, [300], SHUFFLED)
        logits.append(backend.forward(make_pass(Rows(nodes[:1], 1100, SHUFFLED)), storage).logits)
    assert torch.equal(*logits)
    check_tree(backend, 1100, random_tree(9, seed=15), seed=5, chunk=300)
    torch_backend = TorchBackend(config, random_weights(config), torch.float32)
    pages = torch_backend.allocate_cache(40, BLOCK)
    expected = torch_backend.forward(make_pass(Rows([*prompt, nodes[0]], 0, SHUFFLED), logit_rows=[1100]), pages).logits
    assert (logits[0] - expected).abs().max() < (1e-4 if precision == "fp32" else 0.15)


@each_isa
def test_larger_blocks_hold_the_same_bits(isa: str) -> None:
    backend = native(CONFIGS["grouped"], "bf16", isa)
    tokens = random_tokens(150)
    expected = run_chunks(backend, storage_of(backend), tokens, [37], SHUFFLED)
    storage = backend.allocate_cache(5, 96)
    first = run_chunks(backend, storage, tokens[:100], [33], [4, 2])
    storage.copy_blocks([2], [1])
    rest = run_chunks(backend, storage, tokens[100:], [50], [4, 1], start=100)
    assert torch.equal(torch.cat([first, rest]), expected)


@each_isa
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@each_config
def test_chunks_of_a_long_context_shared_by_threads(config: object, precision: Precision, isa: str) -> None:
    """Few rows over many keys are cut by chunk where there are threads for it; the bits stay."""
    prompt, tree = random_tokens(1100), random_tree(9, seed=15)
    nodes = random_tokens(9, seed=16)
    logits: list[Tensor] = []
    for threads in (1, 2, 4):
        backend = native(config, precision, isa, threads)  # type: ignore[arg-type]
        storage = storage_of(backend)
        backend.forward(make_pass(Rows(prompt, 0, SHUFFLED), logit_rows=[]), storage)
        step = backend.forward(make_pass(Rows(nodes[:1], 1100, SHUFFLED)), storage).logits
        logits.append(torch.cat([step, backend.forward(make_pass(Rows(nodes, 1100, SHUFFLED, tree)), storage).logits]))
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
