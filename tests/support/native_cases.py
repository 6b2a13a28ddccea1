"""Random decoders of many shapes, and sequences run on them in hand-made passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.isa import by_name
from headstart.backends.native.linear import NativeLinear
from headstart.backends.native.loader import usable_sets
from headstart.backends.native.matrices import LINEARS, linears_of
from headstart.backends.native.packing import Packer
from headstart.backends.native.precision import PRECISIONS, Precision
from headstart.backends.native.toolchain import find_compiler
from headstart.common.enumerations import CacheType
from headstart.common.processor import architecture
from headstart.models.compressed_weights import CompressedWeights, CompressorWeights
from headstart.models.config import LayerConfig, ModelConfig, RopeConfig
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.state_weights import ConvolutionWeights, DeltaWeights, Mamba2Weights, MambaWeights
from headstart.models.streams_config import StreamsConfig
from headstart.models.weights import (
    AttentionWeights,
    ChannelWeights,
    DecoderWeights,
    ExpertsWeights,
    LatentWeights,
    LayerInputsWeights,
    LayerInputWeights,
    LayerWeights,
    MixerWeights,
    MlpAndExpertsWeights,
    MlpWeights,
    SideWeights,
    StreamEndsWeights,
    StreamsWeights,
    TwoMixersWeights,
)
from headstart.passes.backend import Backend
from headstart.passes.batch import KVStorage, PassBatch

BLOCK = 32
ISAS = ("amx", "amx-emulated", "avx512bf16", "avx512", "avxvnni", "avx2", "neon-bf16", "neon-dot", "neon", "generic")
FUSED = ("avx512", "avxvnni", "avx2", "neon-dot", "neon")
"""Those of one arithmetic: fused multiply-adds of floats, whatever the width of vectors."""
X86 = ISAS[:6]
"""Those that multiply unsigned by signed bytes."""
ROUND_ROWS = ("amx", "amx-emulated", "avx512bf16", "neon-bf16")
"""Those that round rows to bf16 where weights are bf16."""


def small_config(**changes: object) -> ModelConfig:
    """A llama with grouped queries; ``changes`` are fields of ``ModelConfig``."""
    base = ModelConfig(
        family="test",
        vocab_size=77,
        hidden_size=96,
        num_heads=6,
        num_kv_heads=2,
        head_dim=32,
        mlp_size=112,
        max_positions=2048,
        layers=(LayerConfig(),) * 2,
        ropes=(RopeConfig(theta=1000.0, dim=32),),
    )
    return replace(base, **changes)


def random_weights(config: ModelConfig, seed: int = 0) -> DecoderWeights:
    """bfloat16 matrices, so that bf16 and fp32 backends hold the same numbers; logits of order one."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    def linear(outputs: int, inputs: int, bias: bool = False, scale: float = 1.0) -> LinearWeights:
        weight = normal(outputs, inputs, scale=scale * inputs**-0.5).bfloat16()
        return LinearWeights(weight, normal(outputs, scale=0.3) if bias else None)

    def norm(size: int) -> NormWeights:
        bias = normal(size, scale=0.2) if config.norms.kind == "layer" else None
        return NormWeights(1 - config.norms.offset + normal(size, scale=0.2), bias)

    def mlp(size: int, bias: bool, gated: bool = True) -> MlpWeights:
        return MlpWeights(linear(size * (2 if gated else 1), hidden, bias), linear(hidden, size, bias))

    def channel(layer: LayerConfig) -> ChannelWeights | None:
        if layer.channel == "mlp+experts":
            dense, mixture = channel(replace(layer, channel="mlp")), channel(replace(layer, channel="experts"))
            assert isinstance(dense, MlpWeights)
            assert isinstance(mixture, ExpertsWeights)
            return MlpAndExpertsWeights(dense, mixture, *(norm(hidden) for _ in range(4)))
        experts = config.experts
        if layer.channel == "none":
            return None
        if layer.channel == "mlp" or experts is None:
            return mlp(layer.mlp_size or config.mlp_size, config.mlp.bias, config.mlp.gated)
        return ExpertsWeights(
            router=linear(experts.count, hidden, experts.router_bias, scale=2.0),
            experts=tuple(mlp(experts.size, experts.bias, experts.gated) for _ in range(experts.count)),
            correction=normal(experts.count, scale=0.2) if experts.correction else None,
            shared=mlp(experts.shared_size, config.mlp.bias, config.mlp.gated) if experts.shared_size else None,
            shared_gate=linear(1, hidden) if experts.shared_gate else None,
            router_norm=norm(hidden) if experts.router_norm else None,
            own_scales=0.5 + normal(experts.count).abs() if experts.own_scales else None,
        )

    def head_norm(heads: int, head_dim: int) -> NormWeights | None:
        norms = config.attention.qk_norm
        if norms is None:
            return None
        shape = (heads * head_dim,) if norms.reach == "all" else (heads, head_dim) if norms.own else (head_dim,)
        return NormWeights(1 + normal(*shape, scale=0.2), normal(*shape, scale=0.2) if norms.bias else None)

    def latent(layer: LayerConfig) -> LatentWeights:
        of, heads = config.latent, config.num_heads
        assert of is not None
        rank, index = of.q_rank, of.indexer_of(layer)
        key, queries = (0, 0) if index is None else (index.dim + index.heads, index.heads * index.dim)
        pool = 1 if index is None else index.pool
        key += index.dim if index is not None and pool > 1 else 0
        return LatentWeights(
            down=linear((rank or heads_width) + of.kv_rank + of.rope_dim + key, hidden, scale=1.5),
            q_norm=None if rank is None else norm(rank),
            q_up=None if rank is None else linear(heads_width + queries, rank, scale=1.5),
            index_norm=None
            if index is None
            else NormWeights(1 + normal(index.dim, scale=0.2), normal(index.dim, scale=0.2)),
            index_places=normal(pool, index.dim) if index is not None and pool > 1 else None,
            kv_norm=norm(of.kv_rank),
            key_up=linear(heads * of.kv_rank, of.plain_dim),
            value_up=linear(heads * of.value_dim, of.kv_rank),
            output=linear(hidden, heads * of.value_dim),
        )

    def compressed(layer: LayerConfig) -> CompressedWeights:
        of, size, heads = config.compressed, config.head_dim, config.num_heads
        assert of is not None
        made, ratio = of.made(layer.compression, size), 0 if layer.compression is None else layer.compression.ratio
        index = of.index_heads if len(made) > 1 else 0
        return CompressedWeights(
            down=linear(of.q_rank + size + 2 * sum(made) + index, hidden, scale=1.5),
            q_norm=norm(of.q_rank),
            q_up=linear(heads * size + index * of.index_dim, of.q_rank),
            kv_norm=norm(size),
            compressors=tuple(
                CompressorWeights(normal(ratio, given), norm(own))
                for given, own in zip(made, (size, of.index_dim), strict=False)
            ),
            lower=linear(of.groups * of.output_rank, heads * size // of.groups),
            output=linear(hidden, of.groups * of.output_rank),
            sinks=normal(heads),
        )

    def attention(layer: LayerConfig) -> AttentionWeights:
        size, kv_heads = config.head_dim_of(layer), config.kv_heads_of(layer)
        count, value = config.heads_of(layer), config.value_dim_of(layer)
        kept = 0 if layer.reads is not None else size if layer.values_are_keys else size + value
        gates = count if config.attention.gate == "head" else count * value
        return AttentionWeights(
            qkv=linear(count * size + kv_heads * kept, hidden, config.attention.qkv_bias, scale=1.5),
            output=linear(hidden, count * value, config.attention.output_bias),
            q_norm=head_norm(count, size),
            k_norm=head_norm(kv_heads, size) if kept else None,
            sinks=normal(count) if config.attention.sinks and layer.sinks else None,
            gate=linear(gates, hidden, scale=2.0) if config.attention.gate else None,
        )

    def convolution() -> ConvolutionWeights:
        of = config.convolution
        assert of is not None
        return ConvolutionWeights(
            input=linear(3 * hidden, hidden),
            kernel=normal(hidden, of.length, scale=0.7),
            kernel_bias=normal(hidden, scale=0.3) if of.bias else None,
            output=linear(hidden, hidden),
        )

    def mamba() -> MambaWeights:
        of = config.mamba
        assert of is not None
        sizes = (of.step_rank, of.state_size, of.state_size)
        return MambaWeights(
            input=linear(2 * of.inner, hidden, of.bias),
            kernel=normal(of.inner, of.length, scale=0.7),
            kernel_bias=normal(of.inner, scale=0.3) if of.kernel_bias else None,
            selection=linear(sum(sizes), of.inner),
            step=linear(of.inner, of.step_rank),
            step_bias=normal(of.inner) - 2,
            log_decay=normal(of.inner, of.state_size),
            skip=normal(of.inner),
            norms=None if of.norms == "none" else tuple(NormWeights(1 + normal(size, scale=0.2)) for size in sizes),  # type: ignore[arg-type]
            output=linear(hidden, of.inner, of.bias),
        )

    def mamba2() -> Mamba2Weights:
        of = config.mamba2
        assert of is not None
        return Mamba2Weights(
            input=linear(of.inner + of.convolved + of.heads, hidden, of.bias),
            kernel=normal(of.convolved, of.length, scale=0.7),
            kernel_bias=normal(of.convolved, scale=0.3) if of.kernel_bias else None,
            step_bias=normal(of.heads) - 2,
            log_decay=normal(of.heads),
            skip=normal(of.heads),
            norm=None if of.norm == "none" else NormWeights(1 + normal(of.inner, scale=0.2)),
            output=linear(hidden, of.inner, of.bias),
        )

    def delta() -> DeltaWeights:
        of = config.delta
        assert of is not None
        return DeltaWeights(
            input=linear(of.convolved + of.values, hidden),
            rates=linear(2 * of.value_heads, hidden),
            kernel=normal(of.convolved, of.length, scale=0.7),
            step_bias=normal(of.value_heads),
            log_decay=normal(of.value_heads),
            norm=NormWeights(1 + normal(of.value_dim, scale=0.2)),
            output=linear(hidden, of.values),
        )

    def streams(of: StreamsConfig) -> StreamsWeights:
        return StreamsWeights(
            router=linear(of.count, hidden, scale=float(hidden)),
            router_norm=norm(hidden),
            predict=linear(of.count**2, of.count, scale=0.5),
            correct=linear(of.count, of.count, scale=0.5),
            scale=0.5 + normal(hidden).abs() if of.scaled else None,
        )

    of_layer: dict[str, Callable[[LayerConfig], MixerWeights]] = {
        "attention": attention,
        "latent": latent,
        "compressed": compressed,
    }
    mixers: dict[str, Callable[[], MixerWeights | None]] = {
        "convolution": convolution,
        "mamba": mamba,
        "mamba2": mamba2,
        "attention+mamba2": lambda: TwoMixersWeights(attention(LayerConfig()), mamba2()),
        "none": lambda: None,
        "delta": delta,
    }
    hidden = config.hidden_size
    heads_width = config.num_heads * config.head_dim
    layers = tuple(
        LayerWeights(
            attention_norm=norm(hidden) if config.norms.pre and layer.mixer != "none" else None,
            mixer=of_layer[layer.mixer](layer) if layer.mixer in of_layer else mixers[layer.mixer](),
            mlp_norm=norm(hidden)
            if config.norms.pre and not config.norms.shared and layer.channel not in ("none", "mlp+experts")
            else None,
            channel=channel(layer),
            attention_post_norm=norm(hidden) if config.norms.post else None,
            mlp_post_norm=norm(hidden) if config.norms.post else None,
            scale=0.5 + normal(1).abs() if config.residual.layer_scales else None,
            side=None
            if config.residual.side_rank is None
            else SideWeights(
                linear(config.residual.side_rank, hidden), linear(hidden, config.residual.side_rank), norm(hidden)
            ),
            streams=None if config.residual.streams is None else streams(config.residual.streams),
            input=None
            if config.layer_inputs is None or layer.input is None
            else LayerInputWeights(
                linear(config.layer_inputs.size, hidden), linear(hidden, config.layer_inputs.size), norm(hidden)
            ),
        )
        for layer in config.layers
    )
    embedding = normal(config.vocab_size, hidden, scale=0.3).bfloat16()
    head = LinearWeights(embedding) if config.head.tied else linear(config.vocab_size, hidden, scale=2.0)
    inputs = None
    if config.layer_inputs is not None:
        of = config.layer_inputs
        inputs = LayerInputsWeights(
            linear(of.count * of.size, hidden),
            norm(of.size),
            normal(of.vocab_size, of.count * of.size, scale=0.1).bfloat16(),
        )
    ends = None
    if config.residual.streams is not None:
        spread, merge = (
            tuple(linear(hidden, hidden) for _ in range(config.residual.streams.count - 1)) for _ in ("spread", "merge")
        )
        ends = StreamEndsWeights(spread, merge)
    return DecoderWeights(
        embedding=embedding,
        layers=layers,
        final_norm=norm(hidden),
        head=head,
        positions=normal(config.max_positions, hidden, scale=0.3) if config.embedding.positions == "learned" else None,
        layer_inputs=inputs,
        streams=ends,
    )


def with_linears(layer: LayerWeights, change: Callable[[str, LinearWeights], LinearWeights]) -> LayerWeights:
    """The same layer with each of its matrices changed, which are told by ``LINEARS``."""
    qkv, output, up, down = map(change, LINEARS, linears_of(layer))
    assert isinstance(layer.mixer, AttentionWeights)
    return replace(layer, mixer=replace(layer.mixer, qkv=qkv, output=output), channel=MlpWeights(up, down))


def on_grids(matrix: Tensor) -> Tensor:
    """A matrix [output, input] with every 32 inputs rounded to a grid of sixteen levels, as 4-bit blocks hold it."""
    parts = []
    for block in matrix.float().split(32, dim=1):
        low = block.amin(1, keepdim=True).half().float()
        unit = ((block.amax(1, keepdim=True) - low) / 15).half().float()
        parts.append(((block - low) / unit).round().clamp(0, 15) * unit + low)
    return torch.cat(parts, dim=1)


def has_isa(isa: str) -> bool:
    """Whether its library can be compiled and run here; nothing is compiled before a test runs."""
    return find_compiler() is not None and bool(usable_sets(isa))


def isa_params(names: Sequence[str] = ISAS) -> list[object]:
    """One parameter for each instruction set of this architecture, skipped with a reason where it cannot run. What is
    emulated takes a library of its own, and is left to the thorough tests."""
    return [
        pytest.param(
            name,
            marks=[
                pytest.mark.skipif(not has_isa(name), reason=f"no compiler or no {name} on this machine"),
                *([pytest.mark.thorough] if name.endswith("-emulated") else []),
            ],
        )
        for name in names
        if (isa := by_name(name)) is not None and isa.architecture in (None, architecture())
    ]


each_isa = pytest.mark.parametrize("isa", isa_params())
each_precision = pytest.mark.parametrize("precision", PRECISIONS)

_backends: dict[str, NativeBackend] = {}


def native(config: ModelConfig, precision: Precision, isa: str, threads: int = 1) -> NativeBackend:
    """A backend with ``random_weights``; the same one for the same arguments, until ``forget_backends``."""
    key = repr((config, precision, isa, threads))
    if key not in _backends:
        _backends[key] = NativeBackend(config, random_weights(config), precision, threads, isa)
    return _backends[key]


def forget_backends() -> None:
    """Those of every precision and instruction set take gigabytes together."""
    _backends.clear()


@contextmanager
def no_number(backend: NativeBackend, token: int) -> Iterator[None]:
    """The embedding of a token of a backend with ``random_weights`` is none, for as long as it lasts."""
    weights = random_weights(backend.config)
    spoilt = weights.embedding.clone()
    spoilt[token] = torch.nan
    packer = Packer(backend._library, backend.handle)
    try:
        packer.embedding(spoilt, weights.positions, keeps=True)
        yield
    finally:
        packer.embedding(weights.embedding, weights.positions, keeps=True)


@dataclass
class Rows:
    """What one sequence adds to a pass. ``parents`` are rows of this sequence, None for a chunk."""

    tokens: Sequence[int]
    cached: int
    blocks: Sequence[int]
    parents: Sequence[int] | None = None


def make_pass(*parts: Rows, logit_rows: Sequence[int] | None = None, **settings: object) -> PassBatch:
    tokens: list[int] = []
    parents: list[int] = []
    starts = [0]
    for part in parts:
        local = list(part.parents) if part.parents is not None else list(range(-1, len(part.tokens) - 1))
        tokens += part.tokens
        parents += [-1 if parent < 0 else starts[-1] + parent for parent in local]
        starts.append(starts[-1] + len(part.tokens))
    tables = np.zeros((len(parts), max(len(part.blocks) for part in parts)), np.int32)
    for i, part in enumerate(parts):
        tables[i, : len(part.blocks)] = part.blocks
    wanted = list(range(len(tokens))) if logit_rows is None else list(logit_rows)
    arrays = (tokens, parents, starts, [part.cached for part in parts])
    return PassBatch(*(np.asarray(a, np.int32) for a in arrays), tables, np.asarray(wanted, np.int32), **settings)


def run_chunks(
    backend: Backend,
    storage: KVStorage,
    tokens: Sequence[int],
    sizes: Sequence[int],
    blocks: Sequence[int],
    start: int = 0,
) -> Tensor:
    """Logits of ``tokens`` from position ``start`` on, run in chunks of these sizes (the last one repeats)."""
    logits, done = [], 0
    for i in range(len(tokens)):
        if done == len(tokens):
            break
        size = sizes[min(i, len(sizes) - 1)]
        chunk = tokens[done : done + size]
        logits.append(backend.forward(make_pass(Rows(chunk, start + done, blocks)), storage).logits)
        done += len(chunk)
    return torch.cat(logits)


SHUFFLED = [3, 0, 2, 1, 5, 4]
"""Six blocks in no order."""


def check_rows_of_their_own(
    config: ModelConfig,
    precision: Precision,
    isa: str,
    cache_type: CacheType = CacheType.AUTO,
    weights: DecoderWeights | None = None,
) -> None:
    """Rows have the same bits chunked or not, beside others' rows, in trees and along their paths, where the last layer
    has fewer rows, with one thread or two."""
    tokens, others, tree = random_tokens(24), random_tokens(40, seed=1), random_tree(9, seed=2)
    own, foreign = SHUFFLED[:3], SHUFFLED[3:]
    said: list[Tensor] = []
    for threads in (1, 2):
        if weights is None:
            backend = native(config, precision, isa, threads)
        else:
            backend = NativeBackend(config, weights, precision, threads, isa)
        room = partial(backend.allocate_cache, 6, BLOCK, cache_type=cache_type)
        expected = run_chunks(backend, storage := room(), tokens, [1], own)
        for sizes in ([24], [2, 3, 5, 13, 1]):
            again = run_chunks(backend, room(), tokens, sizes, own)
            assert torch.equal(again, expected), sizes
        beside = make_pass(Rows(others, 0, foreign), Rows(tokens, 0, own))
        assert torch.equal(backend.forward(beside, room()).logits[40:], expected)
        some = make_pass(Rows(tokens, 0, own), logit_rows=[5, 23])
        assert torch.equal(backend.forward(some, room()).logits, expected[[5, 23]])
        nodes = backend.forward(make_pass(Rows(others[:9], 24, own, tree)), storage).logits
        for leaf in sorted(set(range(9)) - set(tree))[:2]:
            path = path_to(tree, leaf)
            plain = run_chunks(backend, storage, [others[row] for row in path], [1], own, start=24)
            assert torch.equal(nodes[path], plain)
        said.append(torch.cat((expected, nodes)))
    assert torch.equal(*said)


def check_rows_alone(layer: NativeLinear, inputs: int) -> None:
    """Rows have the same bits by themselves as among many, in whole blocks of rows and others, in one panel and two."""
    x = torch.randn(257, inputs, generator=torch.Generator().manual_seed(4))
    for count in (33, 64, 257):
        said = layer(x[:count])
        for row in (*range(0, count, 19), count - 1):
            assert torch.equal(said[row : row + 1], layer(x[row : row + 1])), (count, row)


def check_instruction_sets_agree(config: ModelConfig, precision: Precision) -> None:
    """Those of one arithmetic give the same bits; skipped where this machine has but one of them."""
    here = [isa for isa in FUSED if has_isa(isa)]
    if len(here) < 2:
        pytest.skip("one such instruction set on this machine")
    batch = make_pass(Rows(random_tokens(40), 0, SHUFFLED))
    backends = [native(config, precision, isa, 2) for isa in here]
    first, *others = (each.forward(batch, each.allocate_cache(6, BLOCK)).logits for each in backends)
    assert all(torch.equal(first, each) for each in others)


def check_a_broken_row_is_alone(config: ModelConfig, isa: str, cache_type: CacheType = CacheType.AUTO) -> None:
    """Not-a-number in a row's own embedding leaves the rows of other sequences as they were."""
    backend = native(config, "bf16", isa)
    batch = make_pass(*(Rows([token], 0, [place]) for place, token in enumerate([5, 1, 2, 3])))
    whole = backend.forward(batch, backend.allocate_cache(4, BLOCK, cache_type=cache_type)).logits
    with no_number(backend, 5):
        after = backend.forward(batch, backend.allocate_cache(4, BLOCK, cache_type=cache_type)).logits
    assert after[0].isnan().all()
    assert torch.equal(after[1:], whole[1:])


def make_random(head: nn.Module) -> None:
    """Parameters that tell every input apart; bfloat16 numbers, so that both precisions hold the same ones."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            norm = parameter.dim() == 1
            scale = 0.2 if norm else 1.5 * parameter.shape[-1] ** -0.5
            parameter.copy_((torch.randn(parameter.shape, generator=generator) * scale).bfloat16() + norm)


def random_tokens(count: int, seed: int = 0, vocab: int = 77) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def random_tree(nodes: int, seed: int) -> list[int]:
    """Parents of a root and its nodes; some deep paths, some bushes, never a plain chain."""
    rng = np.random.default_rng(seed)
    parents = [-1, 0, 0]
    while len(parents) < nodes:
        parents.append(len(parents) - 1 if rng.random() < 0.5 else int(rng.integers(0, len(parents))))
    return parents


def path_to(parents: Sequence[int], row: int) -> list[int]:
    """Rows from the root down to ``row``, itself included."""
    path = [row]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]
