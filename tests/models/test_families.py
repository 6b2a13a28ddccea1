"""Reading descriptions: every spelling of a setting means the same, and what is not supported is refused."""

from __future__ import annotations

import contextlib
import math
from copy import deepcopy
from typing import Any

import pytest
import transformers
from more_families import MORE_FAMILIES
from tiny_models import FAMILIES, LLAMA3, LONGROPE, SIZES, YARN, make_model

from headstart.errors import CheckpointError
from headstart.models.config import LayerConfig, ModelConfig, RopeConfig
from headstart.models.families import config_from_gguf, config_from_hf
from headstart.models.rope_frequencies import amplitude

GGUF_SIZES = {
    "context_length": 64,
    "embedding_length": 96,
    "block_count": 2,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "vocab_size": 30,
}


def described(family: str, **changes: Any) -> dict[str, Any]:
    description: dict[str, Any] = make_model(family).config.to_dict()
    return description | changes


def read(family: str, **changes: Any) -> ModelConfig:
    return config_from_hf(described(family, **changes))


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("gpt2", "gemma3-seeing")])
def test_both_spellings_of_rotary_settings_mean_the_same(family: str) -> None:
    new = described(family)
    parameters = new["rope_parameters"]
    old = {key: value for key, value in new.items() if key != "rope_parameters"}
    if family == "gemma3":
        old["rope_theta"] = parameters["full_attention"]["rope_theta"]
        old["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
    elif family.startswith("gpt-neox"):
        old["rotary_emb_base"] = parameters["rope_theta"]
        old["rotary_pct"] = parameters["partial_rotary_factor"]
    else:
        old["rope_theta"] = parameters["rope_theta"]
        old["partial_rotary_factor"] = parameters.get("partial_rotary_factor")
        if parameters["rope_type"] != "default":
            old["rope_scaling"] = {
                "type" if key == "rope_type" else key: value for key, value in parameters.items() if key != "rope_theta"
            }
    assert config_from_hf(old) == config_from_hf(new)


def test_llama3_scaling() -> None:
    rope = read("llama3").ropes[0]
    assert rope.theta == 1000.0
    assert rope.dim == 8
    assert rope.scaling == {key: value for key, value in LLAMA3.items() if key != "rope_theta"}


def test_longrope_reaches_the_trained_context() -> None:
    config = read("phi3-longrope")
    (rope,) = config.ropes
    assert (rope.theta, rope.dim, rope.factors) == (1000.0, 6, (1.0, 1.25, 2.5))
    assert amplitude(rope) == pytest.approx(math.sqrt(1 + math.log(2) / math.log(256)))
    assert config.max_positions == 256
    # Phi-3's own files: an older name, and the trained context beside the scaling.
    scaling = {"type": "su", "short_factor": [1.0, 1.25, 2.5], "long_factor": [1.0, 4.0, 9.0]}
    entries = {key: value for key, value in described("phi3-longrope").items() if key != "rope_parameters"}
    older = {"rope_theta": 1000.0, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 256}
    assert config_from_hf(entries | older | {"rope_scaling": scaling}) == config
    given = config_from_hf(entries | older | {"rope_scaling": scaling | {"attention_factor": 1.5}})
    assert amplitude(given.ropes[0]) == 1.5


def test_phi3_with_plain_rotation_reaches_all_of_its_positions() -> None:
    config = read("phi3")
    assert config.max_positions == SIZES["max_position_embeddings"]
    assert {layer.window for layer in config.layers} == {7}
    assert amplitude(config.ropes[0]) == 1.0


def test_the_text_of_a_model_that_sees_is_read_by_what_its_file_says_and_the_rest_by_default() -> None:
    sizes = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    linear: dict[str, float | int | str] = {"factor": 8.0, "rope_type": "linear"}
    text = {**sizes, "model_type": "gemma3_text", "rope_scaling": linear}
    config = config_from_hf({"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": text})
    assert (config.vocab_size, config.num_heads, config.num_kv_heads, config.head_dim) == (262_208, 8, 4, 256)
    assert (config.hidden_size, config.num_layers, config.max_positions) == (2560, 34, 131_072)
    assert config.eos_token_ids == (1, 106)
    assert config.head.tied
    assert config.ropes == (RopeConfig(1e6, 256, linear), RopeConfig(1e4, 256))
    assert [layer.window for layer in config.layers[:6]] == [1024] * 5 + [None]
    with pytest.raises(CheckpointError, match="no entry 'text_config'"):
        config_from_hf({"model_type": "gemma3"})


def test_gemmas_embedding_is_scaled_by_a_number_of_its_own_format() -> None:
    """As transformers does in bf16, in which the models were trained: sqrt(640) is 25.298."""
    assert read("gemma3", hidden_size=640).embedding.scale == 25.25


def test_granite4_files_name_their_layers_as_they_were_released() -> None:
    assert read("granite4", layer_types=["attention"] * 4) == read("granite4")
    assert read("granite4").mlp_size == 44
    assert {layer.rope for layer in read("granite4").layers} == {0}
    assert {layer.rope for layer in read("granite4", position_embedding_type="nope").layers} == {None}


def test_yarn_reaches_as_far_as_it_stretches() -> None:
    config = read("qwen3-yarn")
    (rope,) = config.ropes
    assert rope.scaling == {key: value for key, value in YARN.items() if key != "rope_theta"} | {
        "attention_factor": pytest.approx(0.1 * math.log(8) + 1),
        "beta_slow": 1.0,
        "truncate": True,
    }
    assert config.max_positions == 512
    assert read("qwen3-yarn", max_position_embeddings=64).max_positions == 512
    assert read("qwen3-yarn", max_position_embeddings=1024).max_positions == 1024
    gguf = {
        "general.architecture": "qwen3",
        **{f"qwen3.{key}": value for key, value in GGUF_SIZES.items()},
        "qwen3.rope.scaling.type": "yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 64,
    }
    found = config_from_gguf(gguf)
    assert found.max_positions == 256
    assert amplitude(found.ropes[0]) == pytest.approx(0.1 * math.log(4) + 1)
    odd = [
        ("rope.scaling.yarn_ext_factor", 0.1, "1, or left out"),
        ("rope.scaling.yarn_beta_fast", 1.0, "more than beta_slow"),
        ("rope.freq_base", 1.0, "base of more than 1"),
    ]
    # llama.cpp reads it for DeepSeek and Mistral alone.
    assert config_from_gguf(gguf | {"qwen3.rope.scaling.yarn_log_multiplier": 0.1}).ropes == found.ropes
    for key, value, words in odd:
        with pytest.raises(CheckpointError, match=words):
            config_from_gguf(gguf | {f"qwen3.{key}": value})
    assert config_from_gguf(gguf | {"qwen3.rope.scaling.factor": 1e20}).max_positions == 1 << 31


@pytest.mark.parametrize("family", ["gemma3", "gpt-neox"])
def test_yarn_reaches_as_far_in_every_family(family: str) -> None:
    yarn = {key: value for key, value in YARN.items() if key != "rope_theta"} | {"factor": 32.0}
    config = read(family, rope_scaling=yarn)
    assert config.ropes[0].scaling is not None
    assert config.max_positions == 64 * 32


def test_scaling_of_gemma3_is_for_full_attention_alone() -> None:
    old = described("gemma3", rope_scaling={"rope_type": "linear", "factor": 8.0}, rope_theta=1e6)
    del old["rope_parameters"]
    full, local = config_from_hf(old).ropes
    assert full == RopeConfig(1e6, 8, {"rope_type": "linear", "factor": 8.0})
    assert local == RopeConfig(1e4, 8)


def test_gemma3_layers_know_their_window_and_rotation() -> None:
    changes = {"layer_types": None, "sliding_window_pattern": 3, "num_hidden_layers": 6}
    layers = read("gemma3", **changes).layers
    local, full = LayerConfig(7, 1), LayerConfig(None, 0)
    assert layers == (local, local, full, local, local, full)


def test_gemma2_slides_in_every_other_layer() -> None:
    assert [layer.window for layer in read("gemma2", layer_types=None).layers] == [7, None, 7, None]


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"layer_types": None}, [None] * 4),
        (
            {"layer_types": None, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3},
            [None] * 3 + [9],
        ),
    ],
)
def test_qwen_slides_only_where_both_flags_say_so(changes: dict[str, Any], windows: list[int | None]) -> None:
    for family in ("qwen2", "qwen3"):
        assert [layer.window for layer in read(family, **changes).layers] == windows


def test_mistral_without_an_entry_slides_and_with_null_does_not() -> None:
    absent = described("mistral")
    del absent["sliding_window"]
    assert config_from_hf(absent).layers[0].window == 4096
    assert read("mistral", sliding_window=None).layers[0].window is None


def test_smollm3_leaves_every_fourth_layer_without_positions() -> None:
    config = read("smollm3", no_rope_layers=None, num_hidden_layers=8, layer_types=None)
    assert [layer.rope for layer in config.layers] == [0, 0, 0, None, 0, 0, 0, None]


def test_softcaps_are_on_by_default_in_gemma2_and_null_turns_them_off() -> None:
    absent = described("gemma2")
    del absent["attn_logit_softcapping"], absent["final_logit_softcapping"]
    assert (config_from_hf(absent).attention.softcap, config_from_hf(absent).head.softcap) == (50.0, 30.0)
    off = read("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (off.attention.softcap, off.head.softcap) == (None, None)


def test_end_tokens_may_be_one_or_several() -> None:
    assert read("llama", eos_token_id=[2, 7]).eos_token_ids == (2, 7)
    assert read("llama", eos_token_id=None).eos_token_ids == ()


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(
        CheckpointError, match=r"model_type 'rwkv'.*dense.*gemma, .*gpt, .*llama, .*smollm, .*experts.*mixtral"
    ):
        config_from_hf({"model_type": "rwkv"})
    with pytest.raises(
        CheckpointError, match=r"general.architecture 'rwkv'.*gemma, .*gptneox, .*llama, .*smollm, .*experts.*qwen"
    ):
        config_from_gguf({"general.architecture": "rwkv"})


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope_type is 'longrope'"),
        ("qwen3-yarn", {"rope_parameters": YARN | {"beta_fast": 0.5}}, "more than beta_slow"),
        ("qwen3-yarn", {"rope_parameters": YARN | {"truncate": 1}}, "truncate is 1"),
        ("qwen2", {"rope_scaling": {"type": "ntk", "factor": 4.0}}, "rope_type is 'ntk'"),
        ("phi3-longrope", {"rope_parameters": LONGROPE | {"short_factor": None}}, "no entry 'short_factor'"),
        ("phi3-longrope", {"rope_parameters": LONGROPE | {"short_factor": [1.0]}}, "a list of 3 numbers"),
        ("phi3-longrope", {"rope_parameters": LONGROPE | {"short_factor": [1, 2, 0]}}, "a list of positive numbers"),
        ("phi3", {"rope_parameters": {"rope_type": "llama2"}}, "rope_type is 'llama2'"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "no entry 'factor'"),
        ("llama3", {"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}}, "more than low_freq_factor"),
        ("qwen3-yarn", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, but must be 1"),
        ("llama3", {"rope_parameters": LLAMA3 | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ("llama", {"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ("llama", {"num_key_value_heads": 4}, "6 heads, which 4 key-value heads do not divide"),
        ("gpt2", {"n_head": 40}, "40 heads for 36 hidden dimensions"),
        ("llama", {"head_dim": 7}, "rotates 7 dimensions"),
        ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ("llama", {"hidden_size": "36"}, "hidden_size is '36'"),
        ("llama", {"vocab_size": None}, "no entry 'vocab_size'"),
        ("llama", {"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ("llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
        ("llama", {"rope_parameters": [1]}, "rope_parameters is \\[1\\]"),
        ("llama", {"eos_token_id": "end"}, "eos_token_id is 'end'"),
        ("qwen2", {"layer_types": ["full_attention"]}, "4 entries"),
        ("gemma2", {"layer_types": ["linear_attention"] * 4}, "full_attention or sliding_attention"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("granite", {"residual_multiplier": 0}, "residual_multiplier is 0"),
        (
            "granite4",
            {"layer_types": ["attention", "rwkv"] * 2},
            "4 entries, each attention or full_attention or mamba",
        ),
        ("granite4", {"layer_types": ["attention"]}, "but must be 4 entries"),
        ("granite4", {"layer_types": [["attention"]] * 4}, "4 entries, each attention or full_attention or mamba"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is True"),
        ("gpt-neox", {"rope_parameters": {"partial_rotary_factor": 0.01}}, "rotates 0 dimensions"),
    ],
)
def test_what_is_impossible_or_not_supported_is_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(family, **changes)


@pytest.mark.parametrize("family", ["llama3", "qwen2", "smollm3", "granite4", "gemma2", "gemma3", "gpt2", "gpt-neox"])
def test_whatever_an_entry_holds_is_read_or_refused(family: str) -> None:
    odd = [None, True, -1, 0, 10**30, 1.5, float("nan"), float("inf"), "x", "", [], [None], {}, {"rope_type": 3}, [[1]]]
    original = described(family)
    for key in original:
        for value in odd:
            with contextlib.suppress(CheckpointError):
                config = config_from_hf(original | {key: value})
                assert 0 < config.num_layers <= 4096
                assert 0 < config.hidden_size <= 1 << 24


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before is False, but must be True"),
        ("opt", {"word_embed_proj_dim": 32}, "word_embed_proj_dim is 32"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "normed in each layer"),
        ("gpt_neo", {"attention_types": [[["global"], 3]]}, "kinds, global or local, of 4 layers"),
        ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln is True"),
        ("granite_swa", {"layer_rope_theta": [1e4]}, "3 numbers, 0 for a layer without positions"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
        ("qwen2_moe", {"mlp_only_layers": ["a"]}, "a list of layers"),
        ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok is 3, but must be 2"),
        ("deepseek_v2", {"topk_method": "noaux"}, "topk_method is 'noaux'"),
        ("llama4", {"layer_types": ["sliding_attention"] * 3}, "full_attention or chunked_attention"),
        ("deepseek_v4", {"layer_types": ["full_attention"] * 4}, "4 entries, each sliding_attention or compressed"),
        ("deepseek_v4", {"layer_types": None, "compress_ratios": [0, 4, 8, 4]}, "4 entries, each 0, 4 or 128"),
        ("deepseek_v4", {"scoring_func": "tanh"}, "scoring_func is 'tanh'"),
        ("deepseek_v4", {"o_groups": 3}, "a divisor of 4 heads"),
        ("gpt_oss", {"swiglu_alpha": 2.0}, "swiglu_alpha is 2.0"),
        ("llava", {"text_config": {"model_type": "bloom"}}, "model_type is 'bloom', but must be one of llama"),
        ("apertus", {"hidden_act": "silu"}, "hidden_act is 'silu', but must be 'xielu'"),
    ],
)
def test_kinds_that_are_not_described_are_refused(family: str, changes: dict[str, Any], message: str) -> None:
    name, settings = MORE_FAMILIES[family]
    described = getattr(transformers, f"{name}Config")(**deepcopy(settings)).to_dict()
    with pytest.raises(CheckpointError, match=message):
        config_from_hf(described | changes)


@pytest.mark.parametrize(
    "family",
    [
        *("falcon", "cohere2", "exaone4", "gpt_neo", "mpt", "glm4_moe", "deepseek_v3", "llama4"),
        *("lfm2", "lfm2_moe", "bamba", "granitemoehybrid-h", "nemotron_h", "mamba2", "falcon_h1", "qwen3_next"),
        *("kimi_linear", "bailing_hybrid", "glm5_next", "hy_v4", "longcat_flash", "deepseek_v4"),
    ],
)
def test_whatever_an_entry_of_these_holds_is_read_or_refused(family: str) -> None:
    odd = [None, True, -1, 0, 10**30, 1.5, float("nan"), float("inf"), "x", "", [], [None], {}, {"rope_type": 3}, [[1]]]
    name, settings = MORE_FAMILIES[family]
    original = getattr(transformers, f"{name}Config")(**deepcopy(settings)).to_dict()
    for key in original:
        for value in odd:
            with contextlib.suppress(CheckpointError):
                assert 0 < config_from_hf(original | {key: value}).num_layers <= 4096


@pytest.mark.parametrize("family", ["glm5_next"])
def test_whatever_an_entry_of_its_text_holds_is_read_or_refused(family: str) -> None:
    original = described(family)
    for key in original["text_config"]:
        for value in (None, True, -1, 0, 10**30, 1.5, float("nan"), "x", [], [None], {}, [[1]]):
            with contextlib.suppress(CheckpointError):
                text = original["text_config"] | {key: value}
                assert 0 < config_from_hf(original | {"text_config": text}).num_layers <= 4096


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa", "hy_v4"])
def test_an_indexers_choice_does_not_bound_the_context(family: str) -> None:
    config = read(family)
    assert config.max_positions == 256
    assert config.latent is not None
    assert config.latent.indexer is not None
    assert config.latent.indexer.chosen == 24
    with pytest.raises(CheckpointError, match="index_head_dim is 6"):
        read(family, index_head_dim=6)


def test_layers_share_a_choice_as_entries_say() -> None:
    def shared(family: str, **entries: object) -> list[bool]:
        return [layer.shares_choice for layer in read(family, indexer_types=None, **entries).layers]

    assert shared("deepseek_v32") == shared("glm_moe_dsa") == [False] * 3
    assert shared("glm_moe_dsa", index_topk_freq=2) == [False, False, True]
    assert shared("glm_moe_dsa", index_topk_pattern="FSS") == [False, True, True]
    assert shared("hy_v4") == [False, False, True]
    with pytest.raises(CheckpointError, match="begins with full"):
        read("hy_v4", indexer_types=["shared", "full", "full"])
