"""Layers that keep states on the native pass: PyTorch's logits, and rows whose bits depend on their path alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from native_cases import (
    BLOCK,
    Rows,
    check_instruction_sets_agree,
    each_isa,
    each_precision,
    make_pass,
    native,
    path_to,
    random_tokens,
    random_tree,
    random_weights,
    small_config,
)
from native_here import FASTEST, needs_native
from thinning import thorough_but
from torch import Tensor

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.precision import Precision
from headstart.backends.native.supported import supports
from headstart.backends.torch.backend import TorchBackend
from headstart.models.config import AttentionConfig, HeadNorms, LayerConfig, ModelConfig, RopeConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.state_config import ConvolutionConfig, DeltaConfig, Mamba2Config, MambaConfig
from headstart.passes.batch import FINAL_TAP, PassBatch
from headstart.passes.runner import ModelRunner, Span, cache_bytes_per_token, state_bytes

CONVOLVING = LayerConfig(rope=None, mixer="convolution")
DELTA = LayerConfig(rope=None, mixer="delta")
KINDS = {
    "convolution": small_config(
        layers=(CONVOLVING, LayerConfig(), CONVOLVING), convolution=ConvolutionConfig(4, bias=True)
    ),
    "Mamba": small_config(
        layers=(LayerConfig(mixer="mamba"), LayerConfig(), LayerConfig(mixer="mamba", channel="none")),
        mamba=MambaConfig(112, 7, 20, 4, bias=True, norms="learnt"),
    ),
    "Mamba alone": small_config(
        layers=(LayerConfig(mixer="mamba", channel="none"),) * 3, mamba=MambaConfig(80, 16, 6, 3, kernel_bias=False)
    ),
    "Mamba-2": small_config(
        layers=(LayerConfig(mixer="mamba2"), LayerConfig(), LayerConfig(mixer="mamba2")),
        mamba2=Mamba2Config(6, 40, 24, 3, 4),
    ),
    "Mamba-2, of odd sizes and cut steps": small_config(
        layers=(LayerConfig(mixer="mamba2", channel="none"), LayerConfig(mixer="none")) * 2,
        mamba2=Mamba2Config(
            4, 12, 7, 1, 3, kernel_bias=False, bias=True, least_step=0.2, most_step=0.9, norm="before_gate"
        ),
    ),
    "attention beside Mamba-2": small_config(
        layers=(LayerConfig(mixer="attention+mamba2"),) * 3, mamba2=Mamba2Config(8, 16, 16, 2, 4, norm="none")
    ),
    "delta rule": small_config(
        layers=(DELTA, LayerConfig(), DELTA),
        delta=DeltaConfig(2, 6, 32, 64, 4),
        attention=AttentionConfig(gate="element", qk_norm=HeadNorms()),
        ropes=(RopeConfig(theta=1000.0, dim=8),),
    ),
    "tiled delta rule": small_config(
        layers=(DELTA, LayerConfig(), replace(DELTA, channel="experts")),
        delta=DeltaConfig(3, 18, 64, 32, 3, 1e-3, tiled=True),
        experts=ExpertsConfig(9, 3, 40, shared_size=72, shared_gate=True, normalised=True),
    ),
}
TREE = [-1, 0, 1, 2, 0, 4, 5, 4]
"""A root, then branches of several depths, longer than a convolution sees, and shorter."""

each_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())


def runner(backend: NativeBackend | TorchBackend, states: int = 40) -> ModelRunner:
    return ModelRunner(backend, 1200, BLOCK, num_states=states)


def read(made: ModelRunner, sequence_id: int, tokens: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Logits of chunks of these sizes (the last one repeats), which are committed."""
    logits, done = [], 0
    for i in range(len(tokens)):
        chunk = list(tokens[done : done + sizes[min(i, len(sizes) - 1)]])
        if not chunk:
            break
        with made.cache.reserve({sequence_id: len(chunk)}, final={sequence_id}):
            (output,) = made.forward([Span.chain(sequence_id, chunk)])
            made.cache.commit(sequence_id, range(len(chunk)))
        logits.append(output.logits)
        done += len(chunk)
    return torch.cat(logits)


def tree_span(sequence_id: int, tokens: Sequence[int], tree: Sequence[int]) -> Span:
    return Span(sequence_id, np.array(tokens, np.int32), np.array(tree, np.int32))


@each_isa
@each_kind
def test_logits_and_taps_are_those_of_pytorch(config: ModelConfig, isa: str) -> None:
    tokens, taps = random_tokens(70), (1, 2, 3, FINAL_TAP)
    found = []
    for backend in (native(config, "fp32", isa), TorchBackend(config, random_weights(config))):
        output = backend.forward(make_pass(Rows(tokens, 0, range(3)), taps=taps), backend.allocate_cache(3, BLOCK))
        found.append((output.logits, output.hidden.states))
    assert (found[0][0] - found[1][0]).abs().max() <= 1e-4
    assert np.abs(found[0][1] - found[1][1]).max() <= 1e-4


@each_isa
@each_precision
def test_bits_depend_on_the_path_alone(precision: Precision, isa: str) -> None:
    check_bits(KINDS["convolution"], precision, isa)


@needs_native
@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
@each_kind
def test_so_they_do_in_every_kind(config: ModelConfig, precision: Precision) -> None:
    check_bits(config, precision, FASTEST)


def check_bits(config: ModelConfig, precision: Precision, isa: str) -> None:
    """Chunked or not, beside others' rows, in trees and along their paths, with one thread or two."""
    tokens, others, nodes = random_tokens(24), random_tokens(17, seed=1), random_tokens(len(TREE), seed=2)
    said = []
    for threads in (1, 2):
        made = runner(native(config, precision, isa, threads))
        for i in range(4):
            made.cache.add(i)
        expected = read(made, 0, tokens, [1])
        assert torch.equal(read(made, 1, tokens, [24]), expected)
        assert torch.equal(read(made, 2, tokens, [2, 3, 5, 13, 1]), expected)
        trees = {0: (nodes, TREE), 3: (others, list(range(-1, 16)))}
        with made.cache.reserve({i: len(each) for i, (each, _) in trees.items()}):
            first, _ = made.forward([tree_span(i, *each) for i, each in trees.items()])
            logits = first.logits
        for leaf in sorted(set(range(len(TREE))) - set(TREE)):
            path = path_to(TREE, leaf)
            made.cache.fork(1, 9)
            assert torch.equal(read(made, 9, [nodes[row] for row in path], [1]), logits[path])
            made.cache.remove(9)
        said.append(torch.cat((expected, logits)))
    assert torch.equal(*said)


@needs_native
@each_kind
def test_nothing_ends_where_a_panel_does(config: ModelConfig) -> None:
    """Texts of more rows than go through the layers together, and trees whose states nobody keeps."""
    tokens = random_tokens(600)
    backend = native(config, "bf16", FASTEST, 2)
    made = runner(backend)
    for i in range(2):
        made.cache.add(i)
    expected = read(made, 0, tokens, [97])
    assert torch.equal(read(made, 1, tokens, [600]), expected)
    tree = [*range(-1, 250), *(row + 245 for row in random_tree(40, seed=3)[1:])]
    batch = make_pass(Rows(tokens[: len(tree)], 0, range(20), tree), Rows(tokens[:40], 0, range(20, 24)))
    assert batch.num_rows > 256 > len(tree) - 40
    logits = backend.forward(batch, backend.allocate_cache(24, BLOCK)).logits
    assert torch.equal(logits[len(tree) :], expected[:40])
    for leaf in sorted(set(range(len(tree))) - set(tree))[:3]:
        path = path_to(tree, leaf)
        chain = make_pass(Rows([tokens[row] for row in path], 0, range(20)))
        assert torch.equal(backend.forward(chain, backend.allocate_cache(20, BLOCK)).logits, logits[path])


def fresh_logits(backend: NativeBackend, tokens: Sequence[int]) -> Tensor:
    """[token, vocab] of a text that nothing is known of."""
    return backend.forward(make_pass(Rows(tokens, 0, range(8))), backend.allocate_cache(8, BLOCK)).logits


@needs_native
@pytest.mark.parametrize("precision", thorough_but({"bf16"}, ["bf16", "fp32", "int8"]))
@each_kind
def test_accepted_rows_are_replayed_to_the_bit(config: ModelConfig, precision: Precision) -> None:
    """Rounds of trees and chains of which some path is accepted, beside others, forked, rolled back, and looked at by
    passes through fewer layers: a row gives what it gives in a text that is read at once."""
    generator = np.random.default_rng(4)
    backend = native(config, precision, FASTEST, 2)
    made = runner(backend, 44)
    texts = {i: random_tokens(size, seed=i) for i, size in enumerate((3, 20, 1))}
    for i, text in texts.items():
        made.cache.add(i)
        read(made, i, text, [7])
    for turn in range(10):
        if turn in (3, 6):  # two sequences go on from one state
            made.cache.remove(2)
            made.cache.fork(turn % 2, 2)
            texts[2] = list(texts[turn % 2])
        if turn == 5:
            texts[1] = texts[1][: made.cache.truncate(1, len(texts[1]) - 2)]
        sizes = (1, 18, 3) if turn == 4 else generator.integers(1, 11, 3).tolist()
        trees = [random_tree(size, turn) if size > 2 and turn != 4 else list(range(-1, size - 1)) for size in sizes]
        spans = [tree_span(i, random_tokens(len(tree), seed=50 * turn + i), tree) for i, tree in enumerate(trees)]
        with made.cache.reserve({i: len(tree) for i, tree in enumerate(trees)}):
            if turn % 3 == 0:
                made.forward(spans[:1], num_layers=2)
            outputs = made.forward(spans)
            for span, tree, output in zip(spans, trees, outputs, strict=True):
                text = texts[span.sequence_id]
                for leaf in sorted(set(range(len(tree))) - set(tree)):
                    path = path_to(tree, leaf)
                    expected = fresh_logits(backend, [*text, *span.tokens[path].tolist()])
                    assert torch.equal(output.logits[path], expected[len(text) :])
                kept = path_to(tree, int(generator.integers(len(tree))))
                made.cache.commit(span.sequence_id, kept)
                text += span.tokens[kept].tolist()
        made.cache.check()


@needs_native
@each_kind
def test_long_ways_and_short_journals_change_nothing(config: ModelConfig) -> None:
    """States that are written whole beside replayed ones: far from where a pass begins, across the end of a panel, and
    where what entered the recurrence finds no more room."""
    tokens, (sequences, size) = random_tokens(60), (18, 15)
    backend = native(config, "bf16", FASTEST, 2)
    expected = fresh_logits(backend, tokens)
    storage = backend.allocate_cache(2 * sequences, BLOCK, 2 * sequences + 3)
    batch = make_pass(*(Rows(tokens[:size], 0, [i]) for i in range(sequences)))
    after = np.full(batch.num_rows, -1, np.int32)
    after[size - 2 :: size], after[size - 1 :: size] = range(sequences), range(sequences, 2 * sequences)
    assert batch.num_rows > 256
    backend.forward(replace(batch, states_before=np.full(sequences, -1, np.int32), states_after=after), storage)
    others = np.arange(2 * sequences, 2 * sequences + 3, dtype=np.int32)
    for first, slot in ((size - 1, 0), (size, sequences)):
        for i in range(sequences):
            chain = make_pass(Rows(tokens[first : first + 3], first, [i]))
            said = replace(chain, states_before=np.array([slot + i], np.int32), states_after=others)
            assert torch.equal(backend.forward(said, storage).logits, expected[first : first + 3])


@needs_native
@each_kind
def test_rows_that_nobody_asks_of_leave_their_states(config: ModelConfig) -> None:
    tokens = random_tokens(20)
    backend = native(config, "bf16", FASTEST)
    expected = backend.forward(make_pass(Rows(tokens, 0, [0])), backend.allocate_cache(1, BLOCK)).logits
    storage = backend.allocate_cache(1, BLOCK, 3)

    def with_states(batch: PassBatch, before: int, after: int) -> PassBatch:
        to = np.full(batch.num_rows, -1, np.int32)
        to[-1] = after
        return replace(batch, states_before=np.array([before], np.int32), states_after=to)

    silent = make_pass(Rows(tokens[:13], 0, [0]), logit_rows=[])
    assert len(backend.forward(with_states(silent, -1, 2), storage).logits) == 0
    some = make_pass(Rows(tokens[13:], 13, [0]), logit_rows=[2, 6])
    logits = backend.forward(with_states(some, 2, 0), storage).logits
    assert torch.equal(logits, expected[[15, 19]])


@needs_native
@each_kind
def test_fewer_layers_can_be_run(config: ModelConfig) -> None:
    tokens = random_tokens(30)
    backend, reference = native(config, "fp32", FASTEST), TorchBackend(config, random_weights(config))
    for depth in (1, 2):
        batch = make_pass(Rows(tokens, 0, [0]), num_layers=depth)
        found = [each.forward(batch, each.allocate_cache(1, BLOCK)).logits for each in (backend, reference)]
        assert (found[0] - found[1]).abs().max() <= 1e-4


@pytest.mark.thorough
@each_kind
def test_instruction_sets_of_one_arithmetic_agree(config: ModelConfig) -> None:
    check_instruction_sets_agree(config, "bf16")


@needs_native
@each_kind
def test_keys_take_room_only_where_layers_attend(config: ModelConfig) -> None:
    backend = native(config, "bf16", FASTEST)
    attending = sum(layer.attends for layer in config.layers)
    assert cache_bytes_per_token(backend) == max(1, attending * 2 * config.num_kv_heads * config.head_dim * 2)
    assert state_bytes(backend) == 4 * sum(map(partial(floats_of_state, config), config.layers))


def floats_of_state(config: ModelConfig, layer: LayerConfig) -> int:
    """What a layer keeps, filled up to whole vectors and bands."""
    if layer.mixer == "convolution":
        assert config.convolution is not None
        return (config.convolution.length - 1) * config.hidden_size
    if not layer.keeps_state:
        return 0
    if layer.mixer == "mamba":
        assert config.mamba is not None
        return (config.mamba.length - 1 + config.mamba.state_size) * config.mamba.inner
    if layer.mixer == "delta":
        assert config.delta is not None
        delta = config.delta
        return (delta.length - 1) * delta.convolved + delta.value_heads * delta.key_dim * delta.value_dim
    of = config.mamba2
    assert of is not None
    rows = (of.length - 1) * (-(-of.convolved // 16) * 16)
    return rows + of.heads * (-(-of.head_dim // 32) * 32) * of.state_size


@needs_native
def test_what_is_wrong_with_states_is_said() -> None:
    backend = native(KINDS["convolution"], "bf16", FASTEST)
    storage = backend.allocate_cache(2, BLOCK, 2)
    batch = make_pass(Rows([1, 2], 0, [0]))
    with pytest.raises(ValueError, match="over cached tokens must say"):
        backend.forward(make_pass(Rows([1], 4, [0])), storage)
    for before, after in ((2, -1), (0, 2)):
        told = {"states_before": np.array([before], np.int32), "states_after": np.full(2, after, np.int32)}
        with pytest.raises(ValueError, match="is outside the cache"):
            backend.forward(replace(batch, **told), storage)
    for taken in (0, 1):
        told = {"states_before": np.zeros(1, np.int32), "states_after": np.full(2, taken, np.int32)}
        with pytest.raises(ValueError, match="would stand where another one does"):
            backend.forward(replace(batch, **told), storage)
    with pytest.raises(ValueError, match="do not fit 1 sequences and 2 rows"):
        backend.forward(
            replace(batch, states_before=np.zeros(1, np.int32), states_after=np.zeros(3, np.int32)), storage
        )


def test_sizes_that_do_not_fit_are_named() -> None:
    config = KINDS["convolution"]
    assert supports(config) is None
    assert supports(replace(config, hidden_size=104)) == "a convolution of 104 channels, no multiple of 16"
    for delta, why in (
        (DeltaConfig(2, 4, 48, 64, 4), "heads of the delta rule of 48 numbers, no multiple of 32"),
        (DeltaConfig(2, 4, 32, 80, 4), "heads of the delta rule of 80 numbers, no multiple of 32"),
        (DeltaConfig(2, 4, 32, 64, 17), "convolutions see 17 rows, more than 16"),
    ):
        assert supports(replace(KINDS["delta rule"], delta=delta)) == why
    long = replace(config, convolution=ConvolutionConfig(17))
    assert supports(long) == "convolutions see 17 rows, more than 16"
