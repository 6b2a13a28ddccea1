"""Weights in their file's own blocks: every bit of them is kept, and rows are the same in any company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_blocks import BLOCK_TYPES, VOCAB, random_blocks, type_of, write_llama
from native_cases import (
    X86,
    Rows,
    check_rows_alone,
    isa_params,
    make_pass,
    random_tokens,
    random_weights,
    run_chunks,
    small_config,
)
from native_here import needs_native, others
from test_native_nearest import load, stored_linear
from torch import Tensor

from headstart.backends.native import packed_cache, packed_model
from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.formats import (
    BF16,
    EIGHT,
    FOUR,
    KINDS,
    OWN,
    OWN_KERNELS,
    computed_in,
    nearest_forms,
    single_form,
)
from headstart.backends.native.linear import NativeLinear
from headstart.backends.native.loader import load_library
from headstart.backends.native.packed_model import PackedModel
from headstart.backends.native.precision import PRECISIONS, Precision
from headstart.common import memory
from headstart.errors import ConfigError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.gguf_types import CODEBOOK_TYPES, codebook
from headstart.models.linear_weights import LinearWeights
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights

MIX = {
    "attn_v.weight": "Q6_K",
    "ffn_gate.weight": "Q6_K",
    "ffn_down.weight": "Q5_K",
    "attn_output.weight": "Q3_K",
    "output.weight": "Q6_K",
    "": "Q4_K",
}


def own_layer(kind: str, rows: int, inputs: int, isa: str, threads: int = 2) -> tuple[NativeLinear, Tensor]:
    """A layer of random blocks and the weights that they stand for."""
    library = load_library(isa)
    assert library is not None
    linear = stored_linear(kind, random_blocks(kind, rows, inputs, np.random.default_rng(inputs)), inputs)
    return NativeLinear(library, linear, "int4", threads, OWN + KINDS[kind]), linear.weight


OF_GGUF = [kind for kind in OWN_KERNELS if kind in BLOCK_TYPES]


def inputs_of(kind: str) -> tuple[int, ...]:
    """Blocks of 32 may end within a tile of 64 or 256 inputs."""
    size = type_of(kind).block
    return (32, 96, 320) if size == 32 else (size, 3 * size) if size == 256 else (size, 5 * size)


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("kind", OF_GGUF)
def test_weights_are_those_of_the_file(kind: str, isa: str) -> None:
    """A row that is all zero but for one input says a weight; what is left are the roundings of a float."""
    for inputs in inputs_of(kind):
        layer, weight = own_layer(kind, 70, inputs, isa)
        off = (layer(torch.eye(inputs)).T - weight).abs()
        assert float(off.max()) <= 3e-7 * float(weight.abs().max())


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("kind", OF_GGUF)
def test_rows_against_own_blocks(kind: str, isa: str) -> None:
    """Rows are rounded to 8191 units for 256 inputs, nothing else; the same bits with any number of them, any threads
    and on any processor of one arithmetic.
    """
    inputs = inputs_of(kind)[-1]
    layer, weight = own_layer(kind, 70, inputs, isa)
    x = torch.randn(40, inputs, generator=torch.Generator().manual_seed(1))
    x[3] *= 1e-3
    x[5, 0], x[6, 31] = 50.0, -50.0
    x[8, :32] = 0.0
    x[10], x[11] = 1.0, -1.0  # the largest sums that there are
    said = layer(x)
    tiles = [
        (tile * (8191 / tile.abs().amax(1, keepdim=True))).round() * (tile.abs().amax(1, keepdim=True) / 8191).double()
        for tile in x.split(256, dim=1)
    ]
    wanted = torch.cat(tiles, 1) @ weight.double().T
    # One number that lies between two units may be rounded the other way: 2e-5 of a row.
    assert float(((said - wanted).abs().amax(1) / wanted.abs().amax(1)).max()) < 4e-5
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 25, 33):
        assert torch.equal(layer(x[:rows]), said[:rows]), rows
    check_rows_alone(own_layer(kind, 70, inputs, isa, 1)[0], inputs)
    for other in others(X86 if isa in X86 else ()):
        assert torch.equal(own_layer(kind, 70, inputs, other, 1)[0](x), said), other


def _all_of_one_point(kind: str, point: int) -> np.ndarray:
    """uint8 [byte] a block but for its unit: the largest scales, all signs plus."""
    low, high, scale = point & 255, point >> 8, 0xFF
    parts: dict[str, list[int]] = {
        "IQ1_S": [*[low] * 32, *divmod(0x7000 | high * 0o1111, 256)[::-1] * 8],
        "IQ1_M": [*[low] * 32, *[high * 0x11] * 16],
        "IQ2_XXS": [*([low] * 4 + [0, 0, 0, 0xF0]) * 8],
        "IQ2_XS": [*[low, high] * 32, *[scale] * 8],
        "IQ2_S": [*[low] * 32, *[0] * 32, *[high * 0x55] * 8, *[scale] * 8],
        "IQ3_XXS": [*[low] * 64, *[0, 0, 0, 0xF0] * 8],
        "IQ3_S": [*[low] * 64, *[high * 0xFF] * 8, *[0] * 32, *[scale] * 4],
    }
    return np.array(parts[kind], np.uint8)


def extreme(kind: str) -> np.ndarray:
    """Blocks of the largest levels and the largest units, of either sign."""
    blocks = random_blocks(kind, 32, 256, np.random.default_rng(0)).reshape(-1, type_of(kind).nbytes)
    if kind in CODEBOOK_TYPES:
        largest = codebook(kind).sum(1).argmax()
        if kind == "IQ1_M":  # its unit stands among the scales
            blocks[:, :48] = _all_of_one_point(kind, int(largest))
            blocks[:, 48:].view(np.uint16)[:] |= 0x0FFF
        else:
            blocks[:, 2:] = _all_of_one_point(kind, int(largest))
    elif kind == "Q6_K":
        blocks[:, :192] = 0  # level -32
        blocks[:, 192:208] = 128  # -128 units
    else:
        blocks[:, 4:] = 255
    return blocks.reshape(32, -1)


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", *CODEBOOK_TYPES])
def test_the_largest_sums_fit(kind: str, isa: str) -> None:
    library = load_library(isa)
    assert library is not None
    linear = stored_linear(kind, extreme(kind), 256)
    x = torch.ones(3, 256)
    x[1] = -1
    said = NativeLinear(library, linear, "int4", 1, OWN + KINDS[kind])(x)
    wanted = x.double() @ linear.weight.double().T
    if kind in CODEBOOK_TYPES:  # as much as 256 weights of such a point come to
        assert float((wanted[0].abs() / linear.weight.abs().amax(1)).min()) > 150
    torch.testing.assert_close(said.double(), wanted, rtol=1e-5, atol=1e-5 * float(linear.weight.abs().sum(1).max()))


@pytest.mark.parametrize("isa", isa_params())
def test_rows_of_a_model_keep_their_bits(tmp_path: Path, isa: str) -> None:
    """Queries, keys and values of two types in one matrix; in chunks, in company, with other threads."""
    config, weights = load(tmp_path, MIX)
    backend = NativeBackend(config, weights, "blocks", 1, isa)
    assert backend.kept == "Weights are computed in the file's own blocks (Q3_K, Q4_K, Q5_K, Q6_K)."
    tokens, others = random_tokens(60, 7, VOCAB), random_tokens(40, 8, VOCAB)
    whole = run_chunks(backend, backend.allocate_cache(4, 32), tokens, [60], [0, 1])
    for sizes in ([1], [2, 3], [7, 33, 1]):
        assert torch.equal(run_chunks(backend, backend.allocate_cache(4, 32), tokens, sizes, [0, 1]), whole), sizes
    both = make_pass(Rows(others, 0, [2, 3]), Rows(tokens, 0, [0, 1]))
    assert torch.equal(backend.forward(both, backend.allocate_cache(4, 32)).logits[40:], whole)
    team = NativeBackend(config, weights, "blocks", 3, isa)
    assert torch.equal(run_chunks(team, team.allocate_cache(4, 32), tokens, [5], [0, 1]), whole)


@needs_native
@pytest.mark.parametrize("tied", [False, True])
def test_a_file_is_kept_at_its_own_size(tmp_path: Path, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tied table once: its rows are read from the output head, also from what is kept on disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(packed_cache.VARIABLE, "100MB")
    path = write_llama(tmp_path / "model.gguf", MIX, tied=tied)
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    backend = NativeBackend(config, weights, "blocks", 2)
    assert backend.nbytes <= 1.02 * path.stat().st_size
    tokens = random_tokens(20, 3, VOCAB)
    logits = run_chunks(backend, backend.allocate_cache(1, 32), tokens, [20], [0])
    again = NativeBackend(config, weights, "blocks", 2)
    assert torch.equal(run_chunks(again, again.allocate_cache(1, 32), tokens, [20], [0]), logits)
    apart = NativeBackend(config, weights, "bf16", 2)
    near = run_chunks(apart, apart.allocate_cache(1, 32), tokens, [20], [0])
    assert float((logits - near).norm() / near.norm()) < 0.05


@needs_native
def test_a_tied_table_in_eight_bits_is_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the output head's blocks, whose rows are the file's; from what is kept on disk too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(packed_cache.VARIABLE, "100MB")
    path = write_llama(tmp_path / "model.gguf", {"": "Q8_0"}, tied=True)
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    tokens, said = random_tokens(20, 3, VOCAB), []
    for _ in range(2):
        backend = NativeBackend(config, weights, "nearest", 2)
        assert backend.nbytes <= 1.02 * path.stat().st_size
        said.append(run_chunks(backend, backend.allocate_cache(1, 32), tokens, [20], [0]))
    monkeypatch.setenv(packed_cache.VARIABLE, "0")
    monkeypatch.setattr(PackedModel, "_shares_head", lambda *_: False)
    twice = NativeBackend(config, weights, "nearest", 2)
    assert twice.nbytes > backend.nbytes
    said.append(run_chunks(twice, twice.allocate_cache(1, 32), tokens, [20], [0]))
    assert torch.equal(said[0], said[1])
    assert torch.equal(said[0], said[2])


@needs_native
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_tied_table_in_eight_bits_is_read_in_every_precision(tmp_path: Path, precision: Precision) -> None:
    """Also in those that pack the head in another form."""
    path = write_llama(tmp_path / "model.gguf", {"": "Q8_0"}, tied=True)
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    tokens = random_tokens(20, 3, VOCAB)
    logits, exact = (
        run_chunks(backend, backend.allocate_cache(1, 32), tokens, [20], [0])
        for backend in (NativeBackend(config, weights, each, 2) for each in (precision, "fp32"))
    )
    assert float((logits - exact).norm() / exact.norm()) < (0.25 if precision.startswith("int4") else 0.05)


IN_CODES = {"IQ2_XXS": 3.1875, "IQ2_XS": 3.3125, "IQ2_S": 3.3125, "IQ3_XXS": 4.1875, "IQ3_S": 4.1875}
IN_CODES |= {"IQ1_S": 2.1875, "IQ1_M": 2.375, "TQ1_0": 2.0625}
"""Bits of a weight."""


@needs_native
@pytest.mark.parametrize("kind", IN_CODES)
def test_points_of_a_codebook_are_kept_as_codes(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tied table once, whose rows are read from codes; from what is kept on disk too. The room is known before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(packed_cache.VARIABLE, "100MB")
    config, weights = load_decoder(
        open_checkpoint(write_llama(tmp_path / "model.gguf", {"": kind}, tied=True)), torch.float32
    )
    count = sum(each.matrix.shape[0] * each.matrix.shape[1] for each in weights.linears)
    tokens, said, asked = random_tokens(20, 3, VOCAB), [], list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(packed_model, "require_room", lambda size, *_: asked.append(size))
        for _ in range(2):
            backend = NativeBackend(config, weights, "nearest", 2)
            said.append(run_chunks(backend, backend.allocate_cache(1, 32), tokens, [20], [0]))
    assert backend.kept == f"Weights are computed in the file's own blocks ({kind})."
    assert count * IN_CODES[kind] / 8 <= backend.nbytes < 1.01 * count * IN_CODES[kind] / 8
    assert asked == [backend.nbytes + (64 << 20)] * 2
    monkeypatch.setenv(packed_cache.VARIABLE, "0")
    monkeypatch.setattr(PackedModel, "_shares_head", lambda *_: False)
    twice = NativeBackend(config, weights, "nearest", 2)
    table = VOCAB * config.hidden_size // 256 * type_of(kind).nbytes
    assert twice.nbytes == backend.nbytes + table
    said.append(run_chunks(twice, twice.allocate_cache(1, 32), tokens, [20], [0]))
    assert torch.equal(said[0], said[1])
    assert torch.equal(said[0], said[2])


def test_a_restored_table_is_read_with_its_codebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a library that has packed nothing of the type, as that of a later start has not."""
    library = load_library()
    if library is None:
        pytest.skip("no native path on this machine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(packed_cache.VARIABLE, "100MB")
    config, weights = load(tmp_path, {"token_embd.weight": "IQ3_S", "": "Q4_K"})
    tokens, said = random_tokens(20, 3, VOCAB), []
    for _ in range(2):
        backend = NativeBackend(config, weights, "nearest", 2)
        said.append(run_chunks(backend, backend.allocate_cache(1, 32), tokens, [20], [0]))
        empty = np.zeros_like(codebook("IQ3_S"))
        library.set_codebook(KINDS["IQ3_S"], empty.ctypes.data)
        library.codebooks.clear()
    assert torch.equal(said[0], said[1])


ODD = small_config()
"""Its rows end within a tile of 64 inputs."""


def tied_in_eight_bits(table: np.ndarray) -> DecoderWeights:
    """``ODD``'s, the layers in bf16; ``table``: Q8_0."""
    weights, head = random_weights(ODD), stored_linear("Q8_0", table, ODD.hidden_size)
    return DecoderWeights(weights.layers, weights.final_norm, head, head.matrix)  # type: ignore[arg-type]


def eight_bits() -> np.ndarray:
    return random_blocks("Q8_0", ODD.vocab_size, ODD.hidden_size, np.random.default_rng(0))


@pytest.mark.parametrize("isa", isa_params())
def test_what_stands_behind_a_row_is_no_loss(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tied table that ends within a tile is kept once as well."""
    weights, tokens = tied_in_eight_bits(eight_bits()), random_tokens(20, 3, ODD.vocab_size)
    once = NativeBackend(ODD, weights, "int4", 2, isa)
    monkeypatch.setattr(PackedModel, "_shares_head", lambda *_: False)
    twice = NativeBackend(ODD, weights, "int4", 2, isa)
    assert once.nbytes < twice.nbytes
    said, expected = (run_chunks(each, each.allocate_cache(1, 32), tokens, [20], [0]) for each in (once, twice))
    assert torch.equal(said, expected)


@needs_native
@pytest.mark.parametrize("precision", ["blocks", "int4"])
def test_room_is_asked_for_a_table_that_packing_changes(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much beside the head as is kept then; quantisers write no units so far apart."""
    table = eight_bits()
    table[0, :2] = np.array([40.0], np.float16).view(np.uint8)
    table[0, 2:34] = 127
    table[0, 34:36] = np.array([7.3e-5], np.float16).view(np.uint8)
    weights, asked = tied_in_eight_bits(table), []
    with monkeypatch.context() as patch:
        patch.setattr(packed_model, "require_room", lambda size, *_: asked.append(size))
        backend = NativeBackend(ODD, weights, precision, 2)
    assert asked[1:] == [table.size]
    assert sum(asked) == backend.nbytes + (64 << 20)
    free = iter([1 << 40, table.size - 1])
    monkeypatch.setattr(memory, "free_bytes", lambda: next(free))
    with pytest.raises(ConfigError, match=r"embedding beside the output head 0 MB\) takes"):
        NativeBackend(ODD, weights, precision, 2)


@needs_native
def test_a_matrix_by_itself_is_in_its_files_own_blocks() -> None:
    """As those of encoders are."""

    def form(kind: str, multiplies_bytes: bool = True) -> tuple[str, int]:
        data = random_blocks(kind, 32, 256, np.random.default_rng(0))
        return single_form(stored_linear(kind, data, 256), "nearest", multiplies_bytes)

    assert form("Q6_K") == ("int4", OWN + KINDS["Q6_K"])
    assert form("Q4_1") == ("int4", FOUR)
    assert form("Q8_0") == ("int4", EIGHT)
    assert form("Q8_0", multiplies_bytes=False) == ("int4", OWN + KINDS["Q8_0"])
    assert form("IQ2_XS") == ("int4", OWN + KINDS["IQ2_XS"])
    assert form("IQ1_M") == ("int4", OWN + KINDS["IQ1_M"])
    assert single_form(LinearWeights(torch.zeros(32, 256)), "nearest", True) == ("bf16", FOUR)


@needs_native
def test_what_has_no_kernel_is_named(tmp_path: Path) -> None:
    _, weights = load(tmp_path, {"ffn_up.weight": "F16", "ffn_down.weight": "F16", "": "Q4_K"})
    forms = nearest_forms(weights, multiplies_bytes=True)
    assert forms[2, 0] == forms[3, 0] == BF16
    said = "Weights are computed in the file's own blocks (Q4_K), bf16 (Q4_K)."
    assert computed_in(weights, forms) == said
    for kind in BLOCK_TYPES:
        _, weights = load(tmp_path, {"": kind})
        said = computed_in(weights, nearest_forms(weights, multiplies_bytes=True))
        assert (kind in said) == (kind not in ("Q4_1", "Q8_0")), kind
        assert ("own blocks" in said) == (kind in (*OWN_KERNELS, "NVFP4") and kind not in ("Q4_1", "Q8_0")), kind
    _, weights = load(tmp_path, {"output.weight": "Q8_0", "": "Q4_1"})
    assert computed_in(weights, nearest_forms(weights, multiplies_bytes=True)) == ""
