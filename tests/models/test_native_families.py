"""Families that need nothing of the native pass that it does not have run there, with the same logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_hybrids import write_hybrid
from gguf_latent import write_latent
from gguf_mamba import ARCHITECTURES as MAMBAS
from gguf_mamba import write_mamba
from model_document import widened
from more_families import MORE_FAMILIES
from native_here import needs_native
from numpy.typing import NDArray
from tiny_models import make_model, reference_logits

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.formats import ABSENT, BF16, EIGHT, KINDS, OWN, PARTS, nearest_forms
from headstart.backends.native.loader import load_library
from headstart.backends.native.matrices import LINEARS, MATRICES, linears_of
from headstart.backends.native.supported import supports
from headstart.backends.torch.backend import TorchBackend
from headstart.models.checkpoint import Checkpoint, open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights
from headstart.passes.backend import Backend
from passes import Rows, make_pass, usual_distance

pytestmark = needs_native
NATIVE = (
    "olmo-unclipped",
    "helium",
    "seed_oss",
    "ernie4_5",
    "cwm",
    "ministral",
    "hyperclovax",
    "glm",
    "glm4",
    "gemma",
    "vaultgemma",
    "mistral3",
    "qwen3_vl",
    "starcoder2",
    "biogpt",
    "gpt_neo",
    "gpt_bigcode",
    "falcon-new",
    "olmo2",
    "olmo3",
    "exaone4",
    "granite_swa",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "flex_olmo",
    "granitemoe",
    "granitemoeshared",
    "granite4-moe",
    "phimoe",
    "glm4_moe",
    "ernie4_5_moe",
    "hy_v3",
    "cohere2_moe",
    "cohere2_moe-summed",
    "dots1",
    "exaone_moe",
    "mellum",
    "solar_open",
    "minimax_m2",
    "mimo_v2_flash",
    "step3p7",
    "gpt_oss",
    "opt",
    *("arcee", "nemotron", "apertus", "xglm"),
    *("deepseek_v2", "deepseek_v2-lite", "deepseek_v3", "glm4_moe_lite", "mistral4", "youtu", "minicpm3"),
    *("bloom", "mpt", "falcon", "falcon-alibi"),
    *("hunyuan_v1_dense", "hunyuan_v1_moe", "nanochat", "cohere", "phi", "persimmon", "stablelm", "stablelm-parallel"),
    *("lfm2", "lfm2-long", "lfm2_moe", "lfm3", "lfm3-plain"),
    *("bamba", "granitemoehybrid-h", "granitemoehybrid-h-experts", "nemotron_h", "mamba2"),
    *("falcon_h1", "falcon_h1-normed", "falcon_h1-normed-after"),
    *("mamba", "mamba-biased", "falcon_mamba", "jamba", "jamba-dense"),
    *(
        "qwen3_next",
        "qwen3_5_text",
        "qwen3_5_moe_text",
        "kimi_linear",
        "bailing_hybrid",
        "glm5_next",
        "hy_v4",
        *("deepseek_v32", "glm_moe_dsa", "deepseek_v4"),
        "longcat_flash",
    ),
    *("cohere2", "gptj", "codegen", "afmoe", "llama4", "ministral3", "dbrx", "qwen3_vl_moe"),
    *("gemma4_unified", "gemma4_text", "gemma4", "gemma4_text-experts", "gemma3n_text", "gemma3n_text-plain"),
)
KEYS = 32
SAID: dict[str, dict[str, object]] = {
    "lfm2": {"conv_bias": False},
    "nemotron_h": {"n_group": 1, "topk_group": 1, "time_step_min": 1e-9, "mamba_head_dim": 32}
    | {"layers_block_type": ["linear_attention", "moe", "full_attention"]},
    "qwen3_next": {"mlp_only_layers": []},
}
"""What GGUF files can say, with rows that can be quantised."""


@pytest.mark.parametrize("family", NATIVE)
def test_logits_equal_transformers(family: str, tmp_path: Path) -> None:
    model = make_model(family, **widened(MORE_FAMILIES[family][1]))
    model.save_pretrained(tmp_path)
    config, weights = load_decoder(open_checkpoint(tmp_path), torch.float32)
    assert supports(config) is None
    backend = NativeBackend(config, weights, "fp32", 1)
    tokens = [3 + (7 * i * i + i) % 250 for i in range(60)]
    logits = backend.forward(make_pass([Rows(tokens, 0, range(2))]), backend.allocate_cache(2, KEYS)).logits
    assert (logits - reference_logits(model, tokens)).abs().max().item() <= 1e-4


def test_what_it_lacks_is_said(tmp_path: Path) -> None:
    make_model("gemma4_text-experts").save_pretrained(tmp_path)
    config, _ = load_decoder(open_checkpoint(tmp_path), torch.float32)
    assert (
        supports(replace(config, residual=replace(config.residual, parallel=True)))
        == "PyTorch alone has experts and an MLP beside attention"
    )


def hybrid(family: str, path: Path, kind: str, of_part: Mapping[str, str] | None = None) -> Checkpoint:
    """A file of a model with states."""
    model = make_model(family, **widened(MORE_FAMILIES[family][1]) | SAID.get(family, {}))
    if family in MAMBAS:
        return open_checkpoint(write_mamba(model, path / "tiny.gguf", kind))
    return open_checkpoint(write_hybrid(model, path / "tiny.gguf", kind, of_part))


def forms_of_mixers(config: ModelConfig, weights: DecoderWeights) -> NDArray[np.uint8]:
    """[layer, matrix, part] of what mixers read, of what they give, and of gates."""
    forms = nearest_forms(weights, load_library().multiplies_bytes)  # type: ignore[union-attr]
    return forms[: config.num_layers * MATRICES].reshape(-1, MATRICES, PARTS)[:, [0, 1, len(LINEARS)]]


@pytest.mark.parametrize("kind", [pytest.param("Q4_0", marks=pytest.mark.thorough), "Q8_0"])
@pytest.mark.parametrize(
    ("family", "in_bf16"),
    [
        *(("lfm2", 0.05), ("lfm2_moe", 0.05), ("qwen3_5_text", 0.1), ("granitemoehybrid-h", 0.05), ("mamba2", 0.05)),
        *(("nemotron_h", 0.05), ("falcon_h1", 0.05), ("mamba", 0.05), ("jamba", 0.05)),
    ],
)
def test_gguf_files_of_models_with_states_keep_their_blocks(
    family: str, in_bf16: float, kind: str, tmp_path: Path
) -> None:
    """``in_bf16``: how far bf16 may be; PyTorch in bf16 is as far."""
    config, weights = load_decoder(hybrid(family, tmp_path, kind), torch.float32)
    batch = make_pass([Rows([3 + (7 * i * i + i) % 250 for i in range(50)], 0, range(2))])

    def logits(backend: Backend) -> torch.Tensor:
        return backend.forward(batch, backend.allocate_cache(2, KEYS)).logits

    expected = logits(TorchBackend(config, weights, torch.float32))
    off, bf16_off = (
        usual_distance(logits(NativeBackend(config, weights, each, 2)), expected) for each in ("nearest", "bf16")
    )
    assert off < bf16_off < in_bf16 * expected.norm(dim=1).median()
    unquantised = {ABSENT, BF16} if config.mamba is not None else {ABSENT}
    assert set(forms_of_mixers(config, weights).flat) - unquantised <= {OWN + KINDS[kind], EIGHT}


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe_text"])
def test_so_they_do_with_experts(family: str, tmp_path: Path) -> None:
    """Where what is rounded calls other experts, rows are far off; those of the first layer seldom are."""
    config, weights = load_decoder(hybrid(family, tmp_path, "Q5_0"), torch.float32)
    assert set(forms_of_mixers(config, weights).flat) - {ABSENT} == {OWN + KINDS["Q5_0"]}
    batch = make_pass([Rows([3 + (7 * i * i + i) % 250 for i in range(50)], 0, range(2))], taps=(1,))

    def rows(backend: Backend) -> torch.Tensor:
        return torch.from_numpy(backend.forward(batch, backend.allocate_cache(2, KEYS)).hidden.states[0])

    expected = rows(TorchBackend(config, weights, torch.float32))
    off, bf16_off = (
        usual_distance(rows(NativeBackend(config, weights, each, 2)), expected) for each in ("nearest", "bf16")
    )
    assert 0 < off < bf16_off < 0.02 * expected.norm(dim=1).median()


def test_parts_of_a_matrix_keep_their_own_types(tmp_path: Path) -> None:
    """What the delta rule reads, and its gate; queries and gates of attention, which one tensor holds."""
    kinds = {"attn_gate": "Q4_0", "attn_q.": "Q4_0", "attn_v": "Q5_1", "ffn_gate": "Q4_0"}
    config, weights = load_decoder(hybrid("qwen3_5_text", tmp_path, "Q5_0", kinds), torch.float32)
    small, large, other = (OWN + KINDS[kind] for kind in ("Q4_0", "Q5_0", "Q5_1"))
    delta, attention, _ = forms_of_mixers(config, weights).tolist()
    rest = PARTS - 3
    assert delta == [[large, small, small, *[small] * rest], [large] * PARTS, [ABSENT] * PARTS]
    assert attention == [[small, large, other, *[other] * rest], [large] * PARTS, [small] * PARTS]
    up = nearest_forms(weights, multiplies_bytes=True)[LINEARS.index("up")]
    assert up.tolist() == [small, *[large] * (PARTS - 1)]
    batch = make_pass([Rows([3 + (7 * i * i + i) % 250 for i in range(50)], 0, range(2))])
    exact, kept, in_bf16 = (
        each.forward(batch, each.allocate_cache(2, KEYS)).logits
        for each in (
            TorchBackend(config, weights, torch.float32),
            *(NativeBackend(config, weights, precision, 2) for precision in ("nearest", "bf16")),
        )
    )
    assert usual_distance(kept, exact) < usual_distance(in_bf16, exact)


@pytest.mark.parametrize("family", ["kimi_linear", "bailing_hybrid"])
def test_all_that_decays_and_gates_are_made_of_keeps_its_blocks(family: str, tmp_path: Path) -> None:
    """Queries, keys, values, gates and steps in one matrix; behind it, where they are made of few numbers, two more."""
    sizes = widened(MORE_FAMILIES[family][1]) | {"mlp_layer_types": ["dense"] * 3}
    sizes |= {"intermediate_size": 64, "linear_head_dim": 32}
    path = write_latent(make_model(family, **sizes), tmp_path / "tiny.gguf", quantised="Q5_0")
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    batch = make_pass([Rows([3 + (7 * i * i + i) % 250 for i in range(50)], 0, range(2))])
    exact, kept, in_bf16 = (
        each.forward(batch, each.allocate_cache(2, KEYS)).logits
        for each in (
            TorchBackend(config, weights, torch.float32),
            *(NativeBackend(config, weights, precision, 2) for precision in ("nearest", "bf16")),
        )
    )
    assert usual_distance(kept, exact) < usual_distance(in_bf16, exact) < 0.1 * exact.norm(dim=1).median()
    forms = nearest_forms(weights, load_library().multiplies_bytes)[:MATRICES]  # type: ignore[union-attr]
    ups = [2, 3] if config.delta is not None and config.delta.rank else []
    held = [forms[0], *(forms[len(LINEARS) - 1 + each] for each in ups)]
    assert {*np.concatenate(held).tolist()} == {OWN + KINDS["Q5_0"]}


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("kind", ["Q5_0", "Q8_0"])
def test_gguf_files_of_latent_attention_keep_their_blocks(kind: str, joint: bool, tmp_path: Path) -> None:
    """Heads' matrices, too; older files hold those of keys and values in one, of which the values' rows are kept."""
    sizes = widened(MORE_FAMILIES["deepseek_v2"][1]) | {"first_k_dense_replace": 3, "topk_method": "greedy"}
    path = write_latent(make_model("deepseek_v2", **sizes), tmp_path / "tiny.gguf", joint, kind)
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    batch = make_pass([Rows([3 + (7 * i * i + i) % 250 for i in range(50)], 0, range(2))])

    def logits(backend: Backend) -> torch.Tensor:
        return backend.forward(batch, backend.allocate_cache(2, KEYS)).logits

    expected = logits(TorchBackend(config, weights, torch.float32))
    kept, in_bf16 = (NativeBackend(config, weights, each, 2) for each in ("nearest", "bf16"))
    off, bf16_off = (usual_distance(logits(each), expected) for each in (kept, in_bf16))
    assert off < bf16_off < 0.05 * expected.norm(dim=1).median()
    matrices = linears_of(weights.layers[0])
    forms = nearest_forms(weights, load_library().multiplies_bytes)[: len(matrices)]  # type: ignore[union-attr]
    key_up, value_up, *_ = forms[len(LINEARS) :, 0].tolist()
    held = {OWN + KINDS[kind], EIGHT}
    assert value_up in held
    assert key_up == BF16 if joint else key_up in held
