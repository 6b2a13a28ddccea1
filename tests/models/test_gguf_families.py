"""Every family read from GGUF computes what transformers' model, from which the file was made, computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bailing_models import as_bailing
from gguf_alibi import write_alibi
from gguf_dbrx import write_dbrx
from gguf_deepseek_v4 import write_deepseek_v4
from gguf_gemma import write_gemma
from gguf_hybrids import write_hybrid
from gguf_latent import write_latent
from gguf_mamba import write_mamba
from gguf_models import tensors_for, write_gguf
from more_families import YARN
from multi_token_models import NATIVE_SIZES
from tiny_models import make_model, reference_logits
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.loader import load_library
from headstart.backends.torch.backend import TorchBackend
from headstart.errors import CheckpointError
from headstart.models.aliases import ALIASES, DEFAULT_MODEL
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import RopeConfig
from headstart.models.families import config_from_gguf, config_from_hf
from headstart.models.gguf_file import GgufFile
from headstart.models.rope_frequencies import inverse_frequencies
from headstart.models.weight_loading import load_decoder
from passes import BLOCK_SIZE, Rows, make_pass

SMALL_HEADS = {"query_pre_attn_scalar": 8}
"""GGUF files do not say Gemma's attention scale; but for the largest models it is that of the head's size."""
DENSE = ("gemma", "arcee", "seed_oss", "ernie4_5", "hunyuan_v1_dense", "olmo2", "glm4", "stablelm", "gpt_bigcode")
MIXED = ("qwen3_moe", "granitemoe", "granitemoeshared")
FOUR = ["sliding_attention"] * 3 + ["full_attention", "sliding_attention"]
GPT_OSS_YARN = {"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 4.0, "beta_fast": 32.0} | {
    "truncate": False,
    "original_max_position_embeddings": 64,
}
GROWING = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-linear": ("llama-linear", {}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-attention-biased": ("llama", {"attention_bias": True}),
    "llama-mlp-biased": ("llama", {"mlp_bias": True}),
    "mistral": ("mistral-full", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3-biased": ("qwen3", {"attention_bias": True}),
    "qwen3-yarn": ("qwen3-yarn", {}),
    "phi3": ("phi3", {}),
    "phi3-longrope": ("phi3-longrope", {}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 1, 1, 0]}),
    "smollm3-biased": (
        "smollm3",
        {"no_rope_layers": [1, 1, 1, 0], "attention_bias": True, "mlp_bias": True},
    ),
    "granite": ("granite", {}),
    "granite-biased": ("granite", {"attention_bias": True, "mlp_bias": True}),
    "granite-tied": ("granite", {"tie_word_embeddings": True}),
    "granite-own-scale": ("granite", {"attention_multiplier": 6**-0.5}),
    "granite4": ("granite4", {}),
    "granite4-unrotated": ("granite4-unrotated", {}),
    "gemma2": ("gemma2", SMALL_HEADS),
    "gemma3": ("gemma3", SMALL_HEADS | {"layer_types": None, "num_hidden_layers": 7}),
    "gemma3-linear": (
        "gemma3",
        SMALL_HEADS
        | {"layer_types": None, "num_hidden_layers": 6}
        | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "gpt2": ("gpt2", {}),
    "gpt-neox": ("gpt-neox", {}),
    "gpt-neox-sequential": ("gpt-neox-sequential", {}),
    **{name: (name, {}) for name in (*DENSE, *MIXED)},
    "starcoder2": ("starcoder2", {"sliding_window": None}),
    "mixtral": ("mixtral", {"sliding_window": None}),
    "nemotron": ("nemotron", {"attention_bias": False, "mlp_bias": False}),
    "cohere": ("cohere", {"use_qk_norm": False}),
    "phi": ("phi", {"qk_layernorm": False}),
    "olmo3": ("olmo3", {"num_hidden_layers": 4, "layer_types": None}),
    "exaone4": ("exaone4", {"num_hidden_layers": 5, "layer_types": FOUR}),
    "cohere2": ("cohere2", {"num_hidden_layers": 4, "layer_types": None}),
    "qwen2_moe": ("qwen2_moe", {"mlp_only_layers": []}),
    "olmoe": ("olmoe", {"clip_qkv": None}),
    "glm4_moe": ("glm4_moe", {"n_group": 1, "topk_group": 1}),
    "glm4_moe-unnormed": ("glm4_moe", {"n_group": 1, "topk_group": 1, "use_qk_norm": False}),
    "dots1": ("dots1", {"n_group": 1, "topk_group": 1}),
    "olmo": ("olmo", {}),
    "olmo-unclipped": ("olmo-unclipped", {}),
    "ministral3": ("ministral3", {"rope_parameters": GROWING}),
    "apertus": ("apertus", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "jais2": ("jais2", {}),
    "minimax_m2": ("minimax_m2", {}),
    "exaone_moe": ("exaone_moe", {"n_group": 1, "topk_group": 1}),
    "afmoe": ("afmoe", {"num_hidden_layers": 5, "layer_types": FOUR}),
    "ernie4_5_moe": ("ernie4_5_moe", {}),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {}),
    "phimoe": ("phimoe", {"sliding_window": None}),
    "mellum": ("mellum", {}),
    "hy_v3": ("hy_v3", {}),
    "cohere2_moe": ("cohere2_moe", {}),
    "bailing_moe": ("bailing_moe", {}),
    "mimo_v2_flash": ("mimo_v2_flash", {}),
    "step3p7": ("step3p7", {}),
    "llama4": (
        "llama4",
        {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "attention_chunk_size": 8192, "num_local_experts": 8}
        | {"floor_scale": 8192, "attn_scale": 0.1},
    ),
    "gpt_oss": (
        "gpt_oss",
        {"layer_types": None, "num_hidden_layers": 3, "swiglu_limit": 7.0, "rope_parameters": GPT_OSS_YARN},
    ),
}


def logits_of(path: Path, tokens: list[int]) -> torch.Tensor:
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    backend = TorchBackend(config, weights)
    blocks = -(-len(tokens) // BLOCK_SIZE)
    storage = backend.allocate_cache(blocks, BLOCK_SIZE)
    return backend.forward(make_pass([Rows(tokens, 0, range(blocks))]), storage).logits


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_the_model_the_file_was_made_from(name: str, tmp_path: Path) -> None:
    family, changes = MODELS[name]
    model = as_bailing(make_model("glm4_moe")) if family == "bailing_moe" else make_model(family, **changes)
    tokens = [3 + (7 * i) % 90 for i in range(33)]
    logits = logits_of(write_gguf(model, tmp_path / "tiny.gguf"), tokens)
    assert (logits - reference_logits(model, tokens)).abs().max().item() <= 1e-4


def test_towers_beside_the_text_model_are_left_out(tmp_path: Path) -> None:
    """As Ollama packs them; what is no tower is still surplus."""
    model, tokens = make_model("llama"), [3, 5, 7, 11]
    parts = ("v.blk.0.attn_q.weight", "v.patch_embd.bias", "a.blk.0.ffn_up.weight", "mm.0.weight", "mm.a.fc.weight")
    towers = dict.fromkeys((*parts, "resampler.kv.weight", "model.image_newline"), torch.ones(2, 3))
    found = logits_of(write_gguf(model, tmp_path / "tiny.gguf", towers=towers), tokens)
    assert (found - reference_logits(model, tokens)).abs().max().item() <= 1e-4
    odd = write_gguf(model, tmp_path / "odd.gguf", towers={"vo.0.weight": torch.ones(2, 3)})
    with pytest.raises(CheckpointError, match=r"has surplus vo\.0\.weight"):
        load_decoder(open_checkpoint(odd), torch.float32)


def test_a_tower_alone_is_told_to_be_one() -> None:
    with pytest.raises(CheckpointError, match=r"mmproj.*name the file of the model itself"):
        config_from_gguf({"general.architecture": "clip"})


@pytest.mark.parametrize("said", [1, 200, 100_000])
def test_the_embedding_counts_the_tokens_whatever_the_file_says(said: int, tmp_path: Path) -> None:
    """As in llama.cpp, which counts the list of tokens."""
    model, tokens = make_model("llama"), [3, 5, 7, 11]
    file = open_checkpoint(write_gguf(model, tmp_path / "tiny.gguf"))
    changed = replace(file, metadata={**file.metadata, "llama.vocab_size": said})
    config, weights = load_decoder(changed, torch.float32)
    assert config.vocab_size == model.config.vocab_size
    backend = TorchBackend(config, weights)
    found = backend.forward(make_pass([Rows(tokens, 0, range(1))]), backend.allocate_cache(1, BLOCK_SIZE)).logits
    assert (found - reference_logits(model, tokens)).abs().max().item() <= 1e-4


NEMOTRON = {"n_group": 1, "topk_group": 1, "time_step_min": 1e-9}
HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("lfm2", {"conv_bias": False}),
    "lfm2_moe": ("lfm2_moe", {}),
    "granitehybrid": ("granitemoehybrid-h", {}),
    "granitehybrid-experts": ("granitemoehybrid-h-experts", {"mamba_proj_bias": False}),
    "nemotron_h": (
        "nemotron_h",
        NEMOTRON | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]},
    ),
    "nemotron_h_moe": ("nemotron_h", NEMOTRON | {"layers_block_type": ["moe", "linear_attention", "full_attention"]}),
    "falcon-h1": ("falcon_h1", {}),
    "qwen3next": ("qwen3_next", {"mlp_only_layers": []}),
    "qwen35": ("qwen3_5_text", {}),
    "qwen35moe": ("qwen3_5_moe_text", {}),
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_so_do_files_of_models_with_states(name: str, tmp_path: Path) -> None:
    family, changes = HYBRIDS[name]
    model = make_model(family, **changes)
    tokens = [3 + (7 * i) % 90 for i in range(33)]
    logits = logits_of(write_hybrid(model, tmp_path / "tiny.gguf"), tokens)
    assert (logits - reference_logits(model, tokens)).abs().max().item() <= 1e-4


GEMMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3n": ("gemma3n_text", {"laurel_rank": 64}),
    "gemma4": ("gemma4_text", {}),
    "gemma4-experts": ("gemma4_text-experts", {}),
    "gemma4-experts-own-values": (
        "gemma4_text-experts",
        {"attention_k_eq_v": False, "num_global_key_value_heads": None},
    ),
}


@pytest.mark.parametrize("name", GEMMAS)
def test_so_do_files_of_models_with_inputs_of_layers(name: str, tmp_path: Path) -> None:
    """Norms are stored as they are, unlike those of Gemma 1 to 3."""
    family, changes = GEMMAS[name]
    model = make_model(family, **changes)
    tokens = [3 + (7 * i) % 90 for i in range(33)]
    logits = logits_of(write_gemma(model, tmp_path / "tiny.gguf"), tokens)
    assert (logits - reference_logits(model, tokens)).abs().max().item() <= 1e-4


@pytest.mark.parametrize("name", ["mamba", "falcon_mamba", "jamba", "jamba-dense", "mamba2"])
def test_so_do_files_of_mamba(name: str, tmp_path: Path) -> None:
    """Falcon-Mamba with the epsilon that files do not hold."""
    model = make_model(name, **({"mixer_rms_eps": 1e-6} if name == "falcon_mamba" else {}))
    tokens = [3 + (7 * i) % 90 for i in range(33)]
    logits = logits_of(write_mamba(model, tmp_path / "tiny.gguf"), tokens)
    assert (logits - reference_logits(model, tokens)).abs().max().item() <= 1e-4


def test_so_do_files_whose_experts_stood_below_each_other(tmp_path: Path) -> None:
    model = make_model("dbrx")
    tokens = [3 + (7 * i) % 90 for i in range(33)]
    logits = logits_of(write_dbrx(model, tmp_path / "tiny.gguf"), tokens)
    assert (logits - reference_logits(model, tokens)).abs().max().item() <= 1e-4


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon", "falcon-new"])
def test_so_do_files_whose_parts_are_put_in_order(name: str, tmp_path: Path) -> None:
    model = make_model(name)
    tokens = [3 + (7 * i) % 90 for i in range(33)]
    logits = logits_of(write_alibi(model, tmp_path / "tiny.gguf"), tokens)
    assert (logits - reference_logits(model, tokens)).abs().max().item() <= 1e-4


SAME_STRETCH = {**YARN, "mscale": 0.9, "mscale_all_dim": 0.9}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("deepseek_v2", {}),
        ("deepseek_v2-lite", {}),
        ("deepseek_v3", {"rope_parameters": SAME_STRETCH}),
        ("deepseek_v32", {}),
        ("glm_moe_dsa", {}),
        ("glm4_moe_lite", {}),
        ("mistral4", {"n_group": 1, "topk_group": 1}),
        ("youtu", {}),
        ("kimi_linear", {}),
        ("bailing_hybrid", {}),
        ("glm5_next", {}),
        ("hy_v4", {}),
    ],
)
@pytest.mark.parametrize("joint", [False, True])
def test_so_do_files_with_latent_attention(name: str, changes: dict[str, Any], joint: bool, tmp_path: Path) -> None:
    """Those from before April 2025 hold one matrix for keys and values."""
    model = make_model(name, **changes)
    tokens = [3 + (7 * i) % 90 for i in range(33)]
    later = ("index_topk", "linear_head_dim")
    joint = joint and not any(hasattr(model.config.get_text_config(), each) for each in later)
    logits = logits_of(write_latent(model, tmp_path / "tiny.gguf", joint), tokens)
    assert (logits - reference_logits(model, tokens)).abs().max().item() <= 1e-4


def test_so_do_files_of_deepseek_v4(tmp_path: Path) -> None:
    """Beyond a window of 128 tokens."""
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    kinds = ["hash_moe", "hash_moe", "moe", "moe"]
    model = make_model("deepseek_v4", compress_rates=rates, mlp_layer_types=kinds, **NATIVE_SIZES["deepseek_v4"])
    tokens = [3 + (7 * i) % 90 for i in range(150)]
    path, expected = write_deepseek_v4(model, tmp_path / "tiny.gguf"), reference_logits(model, tokens)
    assert (logits_of(path, tokens) - expected).abs().max().item() <= 1e-4
    if load_library():
        backend = NativeBackend(*load_decoder(open_checkpoint(path), torch.float32), "fp32", 2)
        batch = make_pass([Rows(tokens, 0, range(5))])
        logits = backend.forward(batch, backend.allocate_cache(5, 32)).logits
        assert (logits - expected).abs().max().item() <= 1e-4


def test_so_do_files_of_minicpm3(tmp_path: Path) -> None:
    """With what the architecture says and the file does not: the size of values, and three factors."""
    model = make_model("minicpm3", v_head_dim=16, dim_model_base=256)
    tokens = [3 + (7 * i) % 90 for i in range(33)]
    logits = logits_of(write_latent(model, tmp_path / "tiny.gguf"), tokens)
    assert (logits - reference_logits(model, tokens)).abs().max().item() <= 1e-4


def test_a_table_of_rope_factors_is_llama3_scaling(tmp_path: Path) -> None:
    """The converter writes the ratio of plain to scaled frequencies, and nothing else of the scaling."""
    model = make_model("llama3")
    tokens = [3 + (5 * i) % 90 for i in range(200)]
    path = tmp_path / "tiny.gguf"
    checkpoint_config = config_from_hf(model.config.to_dict())
    scaled = checkpoint_config.ropes[0]
    factors = inverse_frequencies(RopeConfig(scaled.theta, scaled.dim)) / inverse_frequencies(scaled)
    logits = logits_of(write_gguf(model, path, factors), tokens)
    assert (logits - reference_logits(model, tokens)).abs().max().item() <= 1e-4


DESCRIPTION = {
    "general.architecture": "gemma2",
    "gemma2.context_length": 64,
    "gemma2.embedding_length": 96,
    "gemma2.block_count": 4,
    "gemma2.feed_forward_length": 128,
    "gemma2.attention.head_count": 4,
    "gemma2.attention.key_length": 16,
    "gemma2.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma2.attention.sliding_window": 8,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.eot_token_id": 2,
}


def test_what_only_the_tokenizer_and_the_tensors_tell() -> None:
    config = config_from_gguf(DESCRIPTION)
    assert config.vocab_size == 3
    assert (config.bos_token_id, config.eos_token_ids) == (0, (1, 2))
    assert config.head.tied
    assert not config_from_gguf(DESCRIPTION, ["output.weight"]).head.tied


def test_the_largest_gemma_scales_by_the_hidden_size() -> None:
    assert config_from_gguf(DESCRIPTION).score_scale == 16**-0.5
    assert config_from_gguf(DESCRIPTION | {"gemma2.block_count": 46}).score_scale == 24**-0.5


def test_layers_with_windows_are_listed_or_follow_from_the_family() -> None:
    key = "gemma2.attention.sliding_window"

    def windows(**changes: object) -> list[int | None]:
        entries = {f"{key}{name.removeprefix('size')}": value for name, value in changes.items()}
        return [layer.window for layer in config_from_gguf(DESCRIPTION | entries).layers]

    assert windows() == [8, None, 8, None]
    assert windows(size=None) == [4096, None, 4096, None]  # as llama.cpp takes it
    assert windows(_pattern=4) == [8, 8, 8, None]
    assert windows(_pattern=[True, False, False, True]) == [8, None, None, 8]


def test_older_files_say_linear_scaling_otherwise() -> None:
    linear = {"rope_type": "linear", "factor": 4.0}
    new = {"gemma2.rope.scaling.type": "linear", "gemma2.rope.scaling.factor": 4.0}
    assert config_from_gguf(DESCRIPTION | new).ropes[0].scaling == linear
    assert config_from_gguf(DESCRIPTION | {"gemma2.rope.scale_linear": 4.0}).ropes[0].scaling == linear


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gemma2.rope.scaling.type": "longrope"}, "gemma2.rope.scaling.type is 'longrope'"),
        ({"gemma2.attention.causal": False}, "gemma2.attention.causal is False"),
        ({"gemma2.expert_count": 8}, "mixture of experts"),
        ({"gemma2.rope.dimension_count": 8}, "rope.dimension_count is 8"),
        ({"gemma2.attention.value_length": 8}, "value_length is 8"),
        ({"gemma2.embedding_length": None}, "no entry 'gemma2.embedding_length'"),
        ({"gemma2.attention.layer_norm_rms_epsilon": None}, "no entry 'gemma2.attention.layer_norm_rms_epsilon'"),
        ({"gemma2.attention.sliding_window_pattern": [True]}, "sliding_window_pattern is \\[True\\], but must be 4"),
        ({"gemma2.nextn_predict_layers": 4}, "nextn_predict_layers is 4, but must be less than block_count"),
        ({"gemma2.block_count": [2, 2]}, "block_count is \\[2, 2\\]"),
        ({"tokenizer.ggml.tokens": None}, "no entry 'gemma2.vocab_size'"),
        ({"general.architecture": 3}, "general.architecture is 3"),
    ],
)
def test_what_is_impossible_or_not_supported_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        config_from_gguf(DESCRIPTION | changes)


DEFAULT_FILE = ALIASES[DEFAULT_MODEL].installed_file()


@pytest.mark.model
@pytest.mark.thorough
@pytest.mark.skipif(DEFAULT_FILE is None, reason="the default model's package is not installed")
def test_the_default_model_computes_what_transformers_does() -> None:
    assert DEFAULT_FILE is not None
    file = GgufFile(DEFAULT_FILE)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
    model.load_state_dict(tensors_for(model, file), strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    tokens = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    expected = reference_logits(model, tokens)
    logits = logits_of(DEFAULT_FILE, tokens)
    # Large logits have fewer digits.
    assert (logits - expected).abs().max().item() <= 1e-5 * expected.abs().max().item()
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
