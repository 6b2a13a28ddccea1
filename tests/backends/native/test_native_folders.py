"""Quantised folders in their own numbers: none is changed, rows are the same in any company, and ``auto`` is no further
from a folder than bf16.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from native_cases import ROUND_ROWS, X86, Rows, check_rows_alone, isa_params, make_pass, random_tokens, run_chunks
from native_here import needs_native, others
from quantised_modules import MAKERS, Make, Maker, Module, named, write_folder, write_mxfp4_folder
from safetensors.torch import save_file
from thinning import thorough_but
from tiny_models import make_model
from torch import Tensor

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.formats import (
    ABSENT,
    BF16,
    FLOAT8_KERNELS,
    FOLDER_KERNELS,
    KINDS,
    OWN,
    computed_in,
    nearest_forms,
    own_types,
)
from headstart.backends.native.linear import NativeLinear
from headstart.backends.native.loader import load_library
from headstart.backends.native.matrices import LINEARS, MATRICES, head_row
from headstart.backends.native.packed_model import PackedModel
from headstart.backends.native.packing import read_matrix
from headstart.backends.torch.backend import TorchBackend
from headstart.models.checkpoint import open_checkpoint
from headstart.models.linear_weights import LinearWeights
from headstart.models.quantised.opening import dequantised
from headstart.models.safetensors_files import SafetensorsFiles
from headstart.models.stored import FileMatrix, MatrixPart
from headstart.models.weight_loading import load_decoder

TYPES = (*FOLDER_KERNELS, *FLOAT8_KERNELS)
VOCAB = 96


def matrix_of(
    directory: Path, kind: str, outputs: int, inputs: int, made: Module | None = None
) -> tuple[LinearWeights, Tensor]:
    """A module as a folder's, and the values that its reader gives."""
    tensors, settings = made or MAKERS[kind](Maker(inputs), outputs, inputs)
    save_file(named("m", tensors), directory / "model.safetensors")
    weights = dequantised(SafetensorsFiles(directory), {"quantization_config": settings}, directory)
    stored = weights.stored("m.weight")
    assert stored.type == kind
    part = MatrixPart("m", outputs, lambda: weights.read("m.weight"), stored)
    return LinearWeights(FileMatrix((part,), inputs, torch.float32)), weights.read("m.weight")


def layer_of(linear: LinearWeights, kind: str, isa: str | None = None, threads: int = 2) -> NativeLinear:
    library = load_library(isa)
    assert library is not None
    return NativeLinear(library, linear, "int4", threads, OWN + KINDS[kind])


def is_widened(kind: str, *isas: str) -> bool:
    """Whether its weights are multiplied as bf16 on one of these: NVFP4's on a matrix unit."""
    return kind in FLOAT8_KERNELS or (kind == "NVFP4/16" and any(each.startswith("amx") for each in isas))


def inputs_of(kind: str) -> tuple[int, ...]:
    """Groups may end within what is read at once, and rows within a tile of 256."""
    return {
        "INT4/32": (32, 96, 320),
        "INT4/64": (64, 320),
        "INT4/128": (128, 384),
        "INT8/32": (32, 96, 320),
        "INT8/128": (128, 384),
        "NF4": (64, 320),
        "FP4": (64, 320),
        "NVFP4/16": (64, 320),
        "FP8": (32, 96, 320),
        "FP8/128": (192, 200, 384),
    }.get(kind, (256, 768))


@needs_native
@pytest.mark.parametrize("kind", TYPES)
def test_the_library_reads_the_values_that_a_folder_defines(tmp_path: Path, kind: str) -> None:
    for inputs in inputs_of(kind):
        linear, values = matrix_of(tmp_path, kind, 80, inputs)
        assert torch.equal(read_matrix(linear.matrix, torch.float32), values)  # type: ignore[arg-type]


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("kind", TYPES)
def test_weights_are_those_of_the_folder(tmp_path: Path, kind: str, isa: str) -> None:
    """A row that is all zero but for one input says a weight; what is left are roundings of a float, but for NF4, whose
    values are products of 13 bits."""
    for inputs in inputs_of(kind):
        linear, values = matrix_of(tmp_path, kind, 80, inputs)
        off = (layer_of(linear, kind, isa)(torch.eye(inputs)).T - values).abs()
        if kind in FLOAT8_KERNELS:
            assert torch.equal(off, torch.zeros_like(off))
        elif kind == "NF4":
            largest = values.abs().unflatten(1, (-1, 64)).amax(2).repeat_interleave(64, 1)
            assert bool((off <= 1.4e-4 * largest).all())
            assert float(off.norm() / values.norm()) < 2e-4
        else:
            assert float(off.max()) <= 3e-7 * float(values.abs().max())


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("kind", TYPES)
def test_rows_against_a_folders_numbers(tmp_path: Path, kind: str, isa: str) -> None:
    """Rows are rounded to 8191 units for 256 inputs, with weights that are widened as bf16 weights' rows are; the same
    bits with any number of them, any threads, and on any processor of one arithmetic."""
    inputs = inputs_of(kind)[-1]
    linear, weight = matrix_of(tmp_path, kind, 80, inputs)
    layer = layer_of(linear, kind, isa)
    x = torch.randn(40, inputs, generator=torch.Generator().manual_seed(1))
    x[3] *= 1e-3
    x[5, 0], x[6, 31] = 50.0, -50.0
    x[8, :32] = 0.0
    x[10], x[11] = 1.0, -1.0
    said = layer(x)
    if is_widened(kind, isa):
        rounded = x.bfloat16().double() if isa in ROUND_ROWS else x.double()
    else:
        units = [tile.abs().amax(1, keepdim=True) / 8191 for tile in x.split(256, dim=1)]
        tiles = zip(x.split(256, dim=1), units, strict=True)
        rounded = torch.cat([(tile / unit).round() * unit.double() for tile, unit in tiles], 1)
    wanted = rounded @ weight.double().T
    off = float(((said - wanted).abs().amax(1) / wanted.abs().amax(1)).max())
    assert off < (8e-4 if kind == "NF4" else 6e-5), off
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 25, 33):
        assert torch.equal(layer(x[:rows]), said[:rows]), rows
    check_rows_alone(layer_of(linear, kind, isa, 1), inputs)
    same = [each for each in (X86 if isa in X86 else ()) if each == isa or not is_widened(kind, isa, each)]
    for other in others(same):
        assert torch.equal(layer_of(linear, kind, other, 1)(x), said), other


def folder(directory: Path, kind: str | Make, table: bool = False, **changes: object) -> Path:
    """A llama with layers of this type, or made so, and a table of embeddings if asked for."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}
    sizes |= {"vocab_size": VOCAB, "num_hidden_layers": 2, "head_dim": 32}
    model = make_model("llama", **(sizes | changes))  # type: ignore[arg-type]
    directory.mkdir(exist_ok=True)
    return write_folder(directory, model, MAKERS[kind] if isinstance(kind, str) else kind, seed=0, table=table)


def logits_of(backend: NativeBackend | TorchBackend) -> Tensor:
    out = backend.forward(make_pass(Rows(random_tokens(48, 1, VOCAB), 0, [0, 1])), backend.allocate_cache(2, 32))
    return out.logits.double()


def distance(actual: Tensor, expected: Tensor) -> float:
    """Mean KL."""
    log_p, log_q = expected.log_softmax(-1), actual.log_softmax(-1)
    return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("kind", thorough_but(["INT4/128", "NF4", "FP8/128"], TYPES))
def test_auto_is_no_further_from_a_folder_than_bf16(tmp_path: Path, kind: str, isa: str) -> None:
    """And keeps it at its own size; rows of a model have the same bits in chunks and with other threads."""
    path = folder(tmp_path, kind)
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    expected = logits_of(TorchBackend(config, weights))
    backend = NativeBackend(config, weights, "nearest", 2, isa)
    by_bf16 = distance(logits_of(NativeBackend(config, weights, "bf16", 2, isa)), expected)
    assert distance(logits_of(backend), expected) <= 1.02 * by_bf16 + 1e-12
    assert backend.kept == f"Weights are computed in the file's own blocks ({kind})."
    assert backend.nbytes <= (1.08 if kind == "NF4" else 1.04) * (path / "model.safetensors").stat().st_size
    tokens = random_tokens(40, 7, VOCAB)
    whole = run_chunks(backend, backend.allocate_cache(2, 32), tokens, [40], [0, 1])
    team = NativeBackend(config, weights, "nearest", 3, isa)
    assert torch.equal(run_chunks(team, team.allocate_cache(2, 32), tokens, [2, 5, 1], [0, 1]), whole)


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("bits", thorough_but([3], [2, 3]))
def test_fewer_bits_stand_in_four(tmp_path: Path, bits: int, isa: str) -> None:
    for group in (32, 64, 128, 256):
        kind, made = f"INT4/{group}", Maker(group).gptq(96, 768, bits, group)
        linear, values = matrix_of(tmp_path, kind, 96, 768, made)
        assert torch.equal(read_matrix(linear.matrix, torch.float32), values)  # type: ignore[arg-type]
        off = (layer_of(linear, kind, isa)(torch.eye(768)).T - values).abs()
        assert float(off.max()) <= 3e-7 * float(values.abs().max())
    path = folder(tmp_path, lambda maker, *shape: maker.gptq(*shape, bits, 32))
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    expected = logits_of(TorchBackend(config, weights))
    backend = NativeBackend(config, weights, "nearest", 2, isa)
    by_bf16 = distance(logits_of(NativeBackend(config, weights, "bf16", 2, isa)), expected)
    assert distance(logits_of(backend), expected) <= 1.02 * by_bf16
    assert backend.kept == "Weights are computed in the file's own blocks (INT4/32)."


@needs_native
@pytest.mark.parametrize("kind", thorough_but(["INT4/32", "FP4", "FP8"], TYPES))
def test_a_tied_table_is_kept_once(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows, read from what the output head is multiplied in, are the folder's; eight units a row in FP8."""
    path = folder(tmp_path, kind, table=True, hidden_size=1024, num_hidden_layers=1, tie_word_embeddings=True)
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    assert weights.table is weights.head.matrix
    once = NativeBackend(config, weights, "nearest", 2)
    monkeypatch.setattr(PackedModel, "_shares_head", lambda *_: False)
    twice = NativeBackend(config, weights, "nearest", 2)
    assert once.nbytes < twice.nbytes
    assert torch.equal(logits_of(once), logits_of(twice))


@pytest.mark.parametrize("isa", isa_params())
def test_experts_in_mxfp4_are_kept_as_they_are(tmp_path: Path, isa: str) -> None:
    """Of a folder as gpt-oss was released: gates and ups alternate in it."""
    sizes = {"hidden_size": 96, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = make_model("gpt_oss", head_dim=32, vocab_size=VOCAB, **sizes)
    config, weights = load_decoder(open_checkpoint(write_mxfp4_folder(tmp_path, model, 3)), torch.float32)
    expected = logits_of(TorchBackend(config, weights))
    backend = NativeBackend(config, weights, "nearest", 2, isa)
    assert backend.kept == "Weights are computed in the file's own blocks (MXFP4)."
    by_bf16 = distance(logits_of(NativeBackend(config, weights, "bf16", 2, isa)), expected)
    assert distance(logits_of(backend), expected) <= 1.02 * by_bf16


@needs_native
def test_fp8_moves_by_runs_of_rows_that_share_a_scale(tmp_path: Path) -> None:
    """Queries and gates of attention are picked out of one tensor."""
    sizes = {"hidden_size": 256, "head_dim": 64, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
    model = make_model("qwen3_5_text", vocab_size=VOCAB, **sizes)  # type: ignore[arg-type]
    path = write_folder(tmp_path, model, MAKERS["FP8/128"], seed=0)
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    attention = nearest_forms(weights, multiplies_bytes=True)[MATRICES : 2 * MATRICES, 0]
    assert attention[[0, len(LINEARS)]].tolist() == [OWN + KINDS["FP8/128"]] * 2
    expected = logits_of(TorchBackend(config, weights))
    kept, by_bf16 = (
        distance(logits_of(NativeBackend(config, weights, each, 2)), expected) for each in ("nearest", "bf16")
    )
    assert kept <= 1.5 * by_bf16 < 0.01
    part = weights.layers[1].mixer.qkv.matrix.parts[0]  # type: ignore[union-attr]
    for order, stays in ((np.roll(np.arange(64), 16), True), (np.roll(np.arange(64), 8), False), ([1, 0], False)):
        moved = replace(part, rows=len(order), order=np.array(order, np.int32))
        assert bool(own_types(FileMatrix((moved,), 256, torch.float32))) == stays


@needs_native
def test_what_no_blocks_hold_is_computed_in_others(tmp_path: Path) -> None:
    """Groups of 16; FP8 whose matrices do not end where a pair's halves do; inputs that groups mix."""
    path = folder(tmp_path / "a", "FP8/128", num_key_value_heads=1, num_attention_heads=1, head_dim=256)
    _, weights = load_decoder(open_checkpoint(path), torch.float32)
    forms = nearest_forms(weights, multiplies_bytes=True)[: head_row(weights.layers)]
    assert (forms[forms != ABSENT] == OWN + KINDS["FP8/128"]).all()
    path = folder(tmp_path / "b", "FP8/128", intermediate_size=520)
    _, weights = load_decoder(open_checkpoint(path), torch.float32)
    forms = nearest_forms(weights, multiplies_bytes=True)
    assert forms[2, 0] == BF16
    assert computed_in(weights, forms) == "Weights are computed in the file's own blocks (FP8/128), bf16 (FP8/128)."
    mixed = Maker(0).gptq(64, 128, 4, 32)
    mixed[0]["g_idx"] = mixed[0]["g_idx"].flip(0)
    for tensors, settings in (mixed, Maker(0).gptq(64, 128, 4, 16), Maker(0).gptq(64, 128, 2, 16)):
        save_file(named("m", tensors), tmp_path / "model.safetensors")
        stored = dequantised(SafetensorsFiles(tmp_path), {"quantization_config": settings}, tmp_path).stored("m.weight")
        assert stored.type == f"INT{settings['bits']}"
        assert stored.make is None
