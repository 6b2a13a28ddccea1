"""Every family read from GGUF computes what llama.cpp computes of the same file.

The files are those of ``test_gguf_families.py``, of the forms that llama.cpp has code for. So what the writers there
take for the converter's rules is held against the program that reads what the converter writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from engine_environments import LLAMA_CPP, needs, run_in
from gguf_alibi import write_alibi
from gguf_gemma import write_gemma
from gguf_hybrids import write_hybrid
from gguf_latent import write_latent
from gguf_mamba import write_mamba
from gguf_models import write_gguf
from more_families import YARN
from test_gguf_families import HYBRIDS, MODELS, SAME_STRETCH, logits_of
from tiny_models import make_model
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from headstart.models.layers.layer import ACTIVATIONS

pytestmark = [pytest.mark.engines, needs(LLAMA_CPP)]

PROGRAM = Path(__file__).with_name("llama_cpp_logits.py")
Write = Callable[[PreTrainedModel, Path], Path]
UNREAD = {"qwen3-biased", "smollm3-biased", "gpt_oss", "phimoe", "phi3", "exaone4", "qwen35", "qwen35moe", "qwen3next"}
"""What llama.cpp has no code for, or computes otherwise: it knows no biases there; it cuts the ends of YaRN's ramp to
whole pairs in gpt-oss; it scores Phi-3.5-MoE's experts by a plain softmax; it leaves out Phi-3's windows, and those of
an EXAONE 4 that has other than 64 layers. Qwen's keys and values have one size there, and get it below."""
ONE_SIZE = {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
ALL_HEADS = {"num_key_value_heads": 4}
SECTIONS = {"rope.dimension_sections": [1, 1, 0, 0]}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
FIXED = {"laurel_rank": 64, "altup_num_inputs": 4, "hidden_size_per_layer_input": 256} | {
    "num_kv_shared_layers": 0,
    "final_logit_softcapping": 30.0,
    "intermediate_size": [72] * 6,
    "activation_sparsity_pattern": [0.95] * 6,
    "layer_types": ["sliding_attention"] * 4 + ["full_attention", "sliding_attention"],
}
"""What llama.cpp takes for granted of Gemma 3n."""
UNGROUPED = {"n_group": 1, "topk_group": 1}

CASES: dict[str, tuple[str, dict[str, Any], Write, dict[str, Any]]] = {
    **{name: (*case, write_gguf, {}) for name, case in MODELS.items() if name not in UNREAD},
    **{name: (*case, write_hybrid, {}) for name, case in HYBRIDS.items() if name not in UNREAD},
    **{name: (name, {}, write_mamba, {}) for name in ("mamba", "jamba", "mamba2")},
    **{name: (name, {}, write_alibi, {}) for name in ("bloom", "mpt", "falcon", "falcon-new")},
    "gemma3n": ("gemma3n_text", FIXED, write_gemma, {}),
    "gemma4": ("gemma4_text", {}, write_gemma, {}),
    "gemma4-experts": ("gemma4_text-experts", {}, write_gemma, {}),
    "arcee": ("arcee", {"attention_bias": False, "mlp_bias": False}, write_gguf, {}),
    "seed_oss": ("seed_oss", {"attention_bias": False, "attention_out_bias": False}, write_gguf, {}),
    "ernie4_5": ("ernie4_5", {"use_bias": False}, write_gguf, {}),
    "gpt_bigcode": ("gpt_bigcode", {}, write_gguf, {"attention.head_count_kv": 1}),
    "olmoe": ("olmoe", {"clip_qkv": None, **ALL_HEADS}, write_gguf, {}),
    "dots1": ("dots1", {**UNGROUPED, **ALL_HEADS}, write_gguf, {}),
    "exaone4-full": ("exaone4-full", {}, write_gguf, {}),
    "phi3-unwindowed": ("phi3", {"sliding_window": None}, write_gguf, {}),
    "gpt_oss": ("gpt_oss", {**MODELS["gpt_oss"][1], **ROPE}, write_gguf, {"expert_feed_forward_length": 72}),
    "mellum": (
        "mellum",
        {"rope_parameters": {"full_attention": YARN, "sliding_attention": ROPE["rope_parameters"]}},
        write_gguf,
        {},
    ),
    "qwen3next": ("qwen3_next", {"mlp_only_layers": [], **ONE_SIZE}, write_hybrid, {}),
    "qwen35": ("qwen3_5_text", ONE_SIZE, write_hybrid, SECTIONS),
    "qwen35moe": ("qwen3_5_moe_text", ONE_SIZE, write_hybrid, SECTIONS),
    "nemotron_h": (*HYBRIDS["nemotron_h"], write_hybrid, {"attention.layer_norm_epsilon": 1e-5}),
    "nemotron_h_moe": (*HYBRIDS["nemotron_h_moe"], write_hybrid, {"attention.layer_norm_epsilon": 1e-5}),
    "deepseek_v2": ("deepseek_v2", {"topk_method": "greedy"}, write_latent, {}),
    "deepseek_v3": ("deepseek_v3", {"rope_parameters": SAME_STRETCH}, write_latent, {}),
    "glm4_moe_lite": ("glm4_moe_lite", {}, write_latent, {}),
    "mistral4": ("mistral4", UNGROUPED, write_latent, {"attention.temperature_length": 64}),
    "youtu": ("youtu", {}, write_latent, {}),
    "minicpm3": ("minicpm3", {"v_head_dim": 16, "dim_model_base": 256}, write_latent, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_llama_cpps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, changes, write, more = CASES[name]
    _without_vocabulary(monkeypatch, more)
    for kind, approximate in (("gelu", "none"), ("gelu_tanh", "tanh")):
        monkeypatch.setitem(ACTIVATIONS, kind, partial(_looked_up, approximate=approximate))
    if name == "gemma3n":  # whose spread of gates llama.cpp counts as that of a sample
        monkeypatch.setattr(
            Tensor, "std", lambda x, *axes, correction=1, _std=Tensor.std, **more: _std(x, *axes, **more)
        )
    path = write(make_model(family, **changes), tmp_path / "tiny.gguf")
    tokens = [3 + (7 * i) % 90 for i in range(33)]
    theirs = np.load(run_in(LLAMA_CPP, PROGRAM, [path, json.dumps(tokens), tmp_path / "logits.npy"], tmp_path))
    ours = logits_of(path, tokens).numpy()
    assert np.abs(ours - theirs).max() <= 3.5e-3
    assert (ours.argmax(-1) == theirs.argmax(-1)).all()


def _looked_up(x: Tensor, approximate: str) -> Tensor:
    """GELU as llama.cpp has it: of numbers from -10 to 10 by a table of half precision. Routers do choose otherwise for
    such differences."""
    found = functional.gelu(x.half().float(), approximate=approximate).half().float()
    return torch.where(x.abs() < 10, found, x.relu())


def _without_vocabulary(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]) -> None:
    """Files of models alone, which llama.cpp reads without a tokenizer; with ``more`` metadata of the architecture."""

    def add_size(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
        writer.add_tokenizer_model("none")
        writer.kv_data[0][f"{writer.arch}.vocab_size"] = gguf.gguf_writer.GGUFValue(
            len(tokens), gguf.GGUFValueType.UINT32
        )
        for key, value in more.items():
            kinds = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
            kinds[type(value)](f"{writer.arch}.{key}", value)

    monkeypatch.setattr(gguf.GGUFWriter, "add_token_list", add_size)
