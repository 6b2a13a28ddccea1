"""Whatever ``auto`` chooses is at most as far from the file as bf16 is, for every type that GGUF has."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_blocks import BLOCK_TYPES, VOCAB, random_blocks, write_llama
from native_cases import Rows, isa_params, make_pass, random_tokens, run_chunks
from native_here import needs_native
from numpy.typing import NDArray
from thinning import thorough_but
from torch import Tensor

from headstart.backends.native import packed_model
from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.formats import BF16, EIGHT, FOUR, KINDS, OWN, nearest_forms
from headstart.backends.native.linear import NativeLinear
from headstart.backends.native.loader import load_library
from headstart.backends.torch.backend import TorchBackend
from headstart.common.enumerations import Precision
from headstart.loading.model import create_backend
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.gguf_types import dequantised
from headstart.models.linear_weights import LinearWeights
from headstart.models.stored import FileMatrix, MatrixPart, StoredTensor
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights

KEPT_TO_THE_BIT = {
    FOUR: ("Q4_0", "Q4_1", "TQ2_0"),
    EIGHT: ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "MXFP4", "TQ2_0"),
}
"""Their units and offsets are halves."""
KEPT_TO_A_HALF = {FOUR: ("Q4_K",), EIGHT: ("IQ4_XS",)}
"""Theirs have more digits."""
MIXES = {
    "Q4_K_M": {"attn_v.weight": "Q6_K", "ffn_down.weight": "Q6_K", "output.weight": "Q6_K", "": "Q4_K"},
    "Q4_K_S": {"attn_v.weight": "Q5_K", "output.weight": "Q6_K", "": "Q4_K"},
    "Q5_K_M": {"attn_v.weight": "Q6_K", "output.weight": "Q6_K", "": "Q5_K"},
    "Q3_K_M": {"attn_v.weight": "Q5_K", "ffn_down.weight": "Q4_K", "output.weight": "Q6_K", "": "Q3_K"},
    "Q2_K": {"attn_v.weight": "Q3_K", "output.weight": "Q6_K", "": "Q2_K"},
    "IQ4_XS": {"attn_v.weight": "Q5_K", "output.weight": "Q6_K", "": "IQ4_XS"},
    "IQ3_M": {"attn_v.weight": "Q4_K", "output.weight": "Q5_K", "": "IQ3_S"},
    "IQ2_M": {"attn_v.weight": "Q4_K", "output.weight": "Q5_K", "": "IQ2_S"},
    "Q4_0": {"ffn_down.weight": "Q4_1", "output.weight": "Q6_K", "": "Q4_0"},
    "Q4_K + F16": {"output.weight": "F16", "token_embd.weight": "F16", "": "Q4_K"},
    "UD-IQ2_XXS": {
        "attn_v.weight": "Q4_K",
        "ffn_gate.weight": "IQ2_S",
        "ffn_down.weight": "IQ3_XXS",
        "output.weight": "Q5_K",
        "": "IQ2_XXS",
    },
    "Q8_0 + IQ1_M": {"attn_k.weight": "IQ1_M", "": "Q8_0"},
}


def stored_linear(kind: str, data: np.ndarray, inputs: int) -> LinearWeights:
    values = torch.from_numpy(dequantised(data, kind))
    stored = StoredTensor(kind, (len(data), inputs), data.reshape(-1), in_blocks=True)
    return LinearWeights(FileMatrix((MatrixPart(kind, len(data), lambda: values, stored),), inputs, torch.float32))


def kept(weights: LinearWeights, bits: int, isa: str | None = None) -> Tensor:
    """What a layer of such blocks multiplies with."""
    library = load_library(isa)
    assert library is not None
    return NativeLinear(library, weights, "int4", 2, bits)(torch.eye(weights.matrix.shape[1])).T


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize(("bits", "kind"), [(bits, kind) for bits in KEPT_TO_THE_BIT for kind in KEPT_TO_THE_BIT[bits]])
def test_weights_are_kept_to_the_bit(bits: int, kind: str, isa: str) -> None:
    """Also where units are negative, as half of Q4_0's are."""
    weights = stored_linear(kind, random_blocks(kind, 40, 256, np.random.default_rng(1)), 256)
    assert (weights.weight < 0).any()
    assert (weights.weight > 0).any()
    tolerance = 1e-6 if bits == FOUR else 0.0
    near = torch.allclose(kept(weights, bits, isa), weights.weight, rtol=0, atol=tolerance * weights.weight.abs().max())
    assert near if tolerance else torch.equal(kept(weights, bits, isa), weights.weight)


@needs_native
@pytest.mark.parametrize(("bits", "kind"), [(bits, kind) for bits in KEPT_TO_A_HALF for kind in KEPT_TO_A_HALF[bits]])
def test_units_with_more_digits_are_rounded_to_halves(bits: int, kind: str) -> None:
    """Which takes less from the weights than bf16."""
    weight = (linear := stored_linear(kind, random_blocks(kind, 40, 512, np.random.default_rng(2)), 512)).weight
    lost, by_bf16 = ((other - weight).norm() for other in (kept(linear, bits), weight.bfloat16().float()))
    assert lost < 0.7 * by_bf16


@needs_native
def test_q4_0_is_kept_where_the_file_is_not_at_hand() -> None:
    """As floats, units of either sign: a grid of sixteen levels is found again."""
    weight = stored_linear("Q4_0", random_blocks("Q4_0", 64, 512, np.random.default_rng(3)), 512).weight
    off = (kept(LinearWeights(weight), FOUR) - weight).abs()
    assert float(off.max()) < 1e-6 * float(weight.abs().max())


def load(path: Path, types: dict[str, str], seed: int = 0) -> tuple[ModelConfig, DecoderWeights]:
    return load_decoder(open_checkpoint(write_llama(path / "model.gguf", types, seed)), torch.float32)


def logits_of(backend: NativeBackend | TorchBackend) -> Tensor:
    out = backend.forward(make_pass(Rows(random_tokens(48, 1, VOCAB), 0, [0, 1])), backend.allocate_cache(2, 32))
    return out.logits.double()


def distances(actual: Tensor, expected: Tensor) -> tuple[float, float]:
    """Relative error of the logits, mean KL from those expected."""
    log_p, log_q = expected.log_softmax(-1), actual.log_softmax(-1)
    return float((actual - expected).norm() / expected.norm()), float((log_p.exp() * (log_p - log_q)).sum(-1).mean())


def errors(path: Path, types: dict[str, str], isa: str) -> tuple[list[float], list[float]]:
    """Distances from the file in fp32 of what ``auto`` takes, and of bf16; three models, together."""
    of_nearest, of_bf16 = [], []
    for seed in range(3):
        config, weights = load(path, types, seed)
        expected = logits_of(TorchBackend(config, weights))
        of_nearest.append(distances(logits_of(NativeBackend(config, weights, "nearest", 2, isa)), expected))
        of_bf16.append(distances(logits_of(NativeBackend(config, weights, "bf16", 2, isa)), expected))
    return np.mean(of_nearest, 0).tolist(), np.mean(of_bf16, 0).tolist()


@pytest.mark.parametrize("unit", isa_params(("amx", "amx-emulated")))
def test_auto_is_the_files_own_blocks_with_a_matrix_unit_too(
    tmp_path: Path, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the file's size, and of more rows than go through tiles together the same bits as row by row."""
    monkeypatch.setenv("HEADSTART_NATIVE", unit)
    path = write_llama(tmp_path / "model.gguf", MIXES["Q4_K_M"], tied=True)
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    backend = create_backend(config, weights, Precision.AUTO)
    assert isinstance(backend, NativeBackend)
    assert backend.kept == "Weights are computed in the file's own blocks (Q4_K, Q6_K)."
    assert backend.nbytes <= 1.02 * path.stat().st_size
    tokens = random_tokens(70, 2, VOCAB)
    whole, apart = (
        run_chunks(backend, backend.allocate_cache(1, 96), tokens, sizes, [0]) for sizes in ([70], [1, 2, 35, 3, 29])
    )
    assert torch.equal(whole, apart)
    assert create_backend(config, weights, Precision.BF16).name == f"native-{unit}-bf16"


CASES = {kind: {"": kind} for kind in (*BLOCK_TYPES, "F32", "F16", "BF16")} | MIXES
FEW = ("Q4_K_M", "UD-IQ2_XXS")
"""Those of ``make test``."""


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("name", thorough_but(FEW, CASES))
def test_the_nearest_is_no_further_from_the_file_than_bf16(tmp_path: Path, name: str, isa: str) -> None:
    nearest, by_bf16 = errors(tmp_path, CASES[name], isa)
    for ours, theirs in zip(nearest, by_bf16, strict=True):
        assert ours <= 1.02 * theirs + 1e-6, (nearest, by_bf16)


FORMS = {
    "attn_v.weight": "Q6_K",
    "ffn_up.weight": "F16",
    "ffn_down.weight": "IQ1_M",
    "output.weight": "Q8_0",
    "": "Q4_1",
}


@pytest.mark.parametrize("isa", isa_params())
def test_rows_of_mixed_models_keep_their_bits(tmp_path: Path, isa: str) -> None:
    """The file's own blocks, bf16, blocks of 4 and 8 bits in one model: in chunks, in company, with other threads."""
    config, weights = load(tmp_path, FORMS)
    backend = NativeBackend(config, weights, "nearest", 1, isa)
    tokens, others = random_tokens(60, 7, VOCAB), random_tokens(40, 8, VOCAB)
    whole = run_chunks(backend, backend.allocate_cache(4, 32), tokens, [60], [0, 1])
    for sizes in ([1], [2, 3], [7, 33, 1]):
        assert torch.equal(run_chunks(backend, backend.allocate_cache(4, 32), tokens, sizes, [0, 1]), whole), sizes
    both = make_pass(Rows(others, 0, [2, 3]), Rows(tokens, 0, [0, 1]))
    assert torch.equal(backend.forward(both, backend.allocate_cache(4, 32)).logits[40:], whole)
    team = NativeBackend(config, weights, "nearest", 2, isa)
    assert torch.equal(run_chunks(team, team.allocate_cache(4, 32), tokens, [5], [0, 1]), whole)


def forms_of(weights: DecoderWeights, multiplies_bytes: bool = True) -> list[int | list[int]]:
    """One for each matrix that there is, where its parts have the same."""
    rows = nearest_forms(weights, multiplies_bytes).tolist()
    return [row[0] if len(set(row)) == 1 else row for row in rows if any(row)]


@needs_native
def test_matrices_are_in_what_holds_them(tmp_path: Path) -> None:
    _, weights = load(tmp_path, MIXES["Q4_K_M"])
    four, six = OWN + KINDS["Q4_K"], OWN + KINDS["Q6_K"]
    # Of seven parts that a matrix may have, absent ones are as the last.
    kept: list[int | list[int]] = [[four, four, *[six] * 5], four, four, six]
    assert forms_of(weights) == [*kept * 2, six]
    assert forms_of(weights, multiplies_bytes=False) == [*kept * 2, six]
    _, weights = load(tmp_path, {"ffn_up.weight": "Q5_K", "": "Q4_K"})
    kept = [four, four, [four, *[OWN + KINDS["Q5_K"]] * 6], four]
    assert forms_of(weights) == forms_of(weights, multiplies_bytes=False) == [*kept * 2, four]
    _, weights = load(tmp_path, {"": "IQ1_S"})
    assert forms_of(weights) == forms_of(weights, multiplies_bytes=False) == [OWN + KINDS["IQ1_S"]] * 9
    _, weights = load(tmp_path, {"": "F16"})
    assert forms_of(weights) == [BF16] * 9
    # Where blocks of the older kinds are as small, they are kept, but for those of 8 bits where bytes are dear.
    _, weights = load(tmp_path, {"output.weight": "Q8_0", "": "Q4_1"})
    assert forms_of(weights) == forms_of(weights, multiplies_bytes=False) == [FOUR] * 8 + [EIGHT]
    _, weights = load(tmp_path, {"": "Q8_0"})
    assert forms_of(weights) == [EIGHT] * 9
    assert forms_of(weights, multiplies_bytes=False) == [OWN + KINDS["Q8_0"]] * 8 + [EIGHT]


class Spoiled(packed_model.PackedModel):
    """As if blocks took more from the first gates and ups than bf16: nothing that a quantiser writes comes to that."""

    def _losses(self, handle: int) -> NDArray[np.float64]:
        losses = super()._losses(handle)
        losses[2, 0] = losses[2, 1] + losses[2, 2]
        return losses


def test_what_blocks_do_not_hold_is_in_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule goes by types; what is lost is measured, too, and room asked for again."""
    library = load_library()
    if library is None:
        pytest.skip("no native path on this machine")
    config, weights = load(tmp_path, {"": "Q4_1"})
    asked: list[int] = []
    monkeypatch.setattr(packed_model, "require_room", lambda size, *_: asked.append(size))
    owner: set[int] = set()
    sound, spoiled = (
        library.bytes(kind(owner, library, config, weights, "nearest", 1).handle)
        for kind in (packed_model.PackedModel, Spoiled)
    )
    first, again, larger = asked
    assert first == again
    assert larger - first == spoiled - sound > 0


@needs_native
@pytest.mark.parametrize(
    ("precision", "kind", "spoils"),
    [
        ("int4", "Q8_0", True),
        ("blocks", "BF16", True),
        ("blocks", "IQ2_S", False),
        ("blocks", "Q5_K", False),
        ("int8", "Q8_0", True),
        ("int4", "Q4_0", False),
        ("blocks", "Q8_0", False),
        ("bf16", "Q6_K", False),
        ("auto", "IQ1_M", False),
    ],
)
def test_a_precision_that_spoils_a_file_says_how_much(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, precision: str, kind: str, spoils: bool
) -> None:
    config, weights = load(tmp_path, {"output.weight": "Q8_0", "": kind})
    with caplog.at_level(logging.WARNING):
        create_backend(config, weights, Precision(precision))
    said = [record.getMessage() for record in caplog.records if "changes this file's weights" in record.getMessage()]
    assert len(said) == spoils
    if spoils:
        assert f"precision {precision} changes" in said[0]
        assert "precision auto" in said[0]
