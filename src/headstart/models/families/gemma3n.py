"""Gemma 3n: several residual streams, inputs of layers, a second path beside attention, cut-off gates, and last layers
that read the keys and values of earlier ones. The text form, and the text of the form that sees and hears.

Sources: the configuration and modelling files of transformers (models/gemma3n); for GGUF llama.cpp's converter
(conversion/gemma.py) and its src/models/gemma3n.cpp, which has what no file says: the rank of the second path, and
which layers read others' keys or cut off gates where no entry tells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from headstart.models.config import (
    EmbeddingConfig,
    HeadNorms,
    LayerConfig,
    LayerInputsConfig,
    ModelConfig,
    OutputHeadConfig,
    ResidualConfig,
)
from headstart.models.families.base import WHOLE, Family, Gguf
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_LAYOUT
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT, base_of, biased, windows_of
from headstart.models.families.rope import rope_of
from headstart.models.streams_config import StreamsConfig

_LOCAL_THETA = 10_000.0
_GLOBAL_THETA = 1_000_000.0
_PATTERN = 5
"""Every so many-th layer has full attention, where no entry says which."""
_SPARSE = (10, 0.95)
"""So many first layers of larger models cut off that share of their gates, where no entry says which."""
_OWN_KEYS = 20
"""So many layers have keys of their own, where a GGUF file does not say how many have none."""
_CAP = 30.0
_DEFAULTS = {
    "vocab_size": 262_400,
    "hidden_size": 2048,
    "intermediate_size": 16_384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
"""transformers' own: released files leave out what equals them."""


def _gemma3n(fields: Fields) -> ModelConfig:
    fields.refuse("use_bidirectional_attention", True, "all", because="which no decoder can have")
    fields = fields.with_defaults(_DEFAULTS)
    fields.require("altup_active_idx", 0, 0)
    sizes = sizes_of_mlps(fields)
    config = base_of(
        fields.with_entries(intermediate_size=max(sizes)),
        tied=True,
        default_head_dim=256,
        rope=rope_of(fields, fields.integer("head_dim", 256), _GLOBAL_THETA, "full_attention"),
        activation_key="hidden_activation",
        default_activation="gelu_pytorch_tanh",
        attention=biased(fields),
        head=OutputHeadConfig(
            softcap=fields.optional_number("final_logit_softcapping") if fields.has("final_logit_softcapping") else _CAP
        ),
        residual=ResidualConfig(
            side_rank=fields.integer("laurel_rank", 64),
            streams=StreamsConfig(fields.integer("altup_num_inputs", 4), fields.flag("altup_correct_scale", True)),
        ),
        layer_inputs=layer_inputs(fields, fields.integer("num_hidden_layers")),
    )
    count = config.num_layers
    sliding = [(i + 1) % _PATTERN != 0 for i in range(count)]
    windows = windows_of(fields, count, fields.integer("sliding_window", 512), sliding)
    shared = fields.integer("num_kv_shared_layers", 15, minimum=0)
    return replace(
        _with_parts(
            config,
            windows,
            shared_keys(fields, "num_kv_shared_layers", windows, shared),
            sizes,
            _sparsities(fields, count),
        ),
        ropes=(
            *config.ropes,
            rope_of(fields, config.head_dim, _LOCAL_THETA, "sliding_attention", "rope_local_base_freq"),
        ),
    )


def _with_parts(
    config: ModelConfig,
    windows: Sequence[int | None],
    reads: Sequence[int | None],
    sizes: Sequence[int],
    sparsities: Sequence[float],
) -> ModelConfig:
    """The model with what all descriptions mean alike; lists are by layer."""
    return replace(
        config,
        layers=tuple(
            LayerConfig(
                window,
                rope=0 if window is None else 1,
                reads=reads[index],
                mlp_size=sizes[index],
                sparsity=sparsities[index],
                input=index,
            )
            for index, window in enumerate(windows)
        ),
        attention=replace(config.attention, qk_norm=HeadNorms(), value_norm=True, scale=1.0),
        norms=replace(config.norms, post=True),
        embedding=EmbeddingConfig(config.hidden_size**0.5),
    )


def layer_inputs(fields: Fields, layers: int) -> LayerInputsConfig | None:
    """What layers read beside their stream; None: the entry says that there is none."""
    size = fields.integer("hidden_size_per_layer_input", 256, minimum=0)
    if not size:
        return None
    return LayerInputsConfig(layers, size, fields.integer("vocab_size_per_layer_input", 262_144))


def shared_keys(fields: Fields, key: str, windows: Sequence[int | None], count: int) -> list[int | None]:
    """[layer] the layer whose keys and values each of the last ``count`` reads: the last of its kind before them.

    ``key``: of the entry that says how many.
    """
    first = len(windows) - count
    made = {window: index for index, window in enumerate(windows[: max(first, 0)])}
    if any(window not in made for window in windows):
        wanted = "fewer than there are layers, with each kind of layer before them"
        raise fields.bad(key, count, wanted)
    return [None if index < first else made[window] for index, window in enumerate(windows)]


def sizes_of_mlps(fields: Fields) -> list[int]:
    """[layer] of MLPs, which an entry has for each layer or for all."""
    count, sizes = fields.integer("num_hidden_layers", maximum=4096), fields.get("intermediate_size")
    if not isinstance(sizes, list):
        return [fields.integer("intermediate_size")] * count
    if len(sizes) != count:
        raise fields.bad("intermediate_size", sizes, f"a number or a list of {count}")
    return [fields.with_entries(intermediate_size=size).integer("intermediate_size") for size in sizes]


def _sparsities(fields: Fields, count: int) -> list[float]:
    """[layer] of gates."""
    given = fields.get("activation_sparsity_pattern")
    if given is None:
        sparse, share = _SPARSE
        return [share if index < sparse < count else 0.0 for index in range(count)]
    given = given if isinstance(given, list) else [given] * count
    numbers = [each for each in given if isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each < 1]
    if len(given) != count or len(numbers) != count:
        raise fields.bad("activation_sparsity_pattern", given, f"{count} numbers from 0 to below 1")
    return [float(each) for each in numbers]


def _seeing(fields: Fields) -> ModelConfig:
    return _gemma3n(fields.text_config())


INPUT_ROLES = {
    "attention_post_norm": "layers.{i}.post_attention_layernorm",
    "mlp_norm": "layers.{i}.pre_feedforward_layernorm",
    "mlp_post_norm": "layers.{i}.post_feedforward_layernorm",
    "input_gate": "layers.{i}.per_layer_input_gate",
    "input_output": "layers.{i}.per_layer_projection",
    "input_norm": "layers.{i}.post_per_layer_input_norm",
}
"""Names that Gemma 4 has, too."""
INPUTS_LAYOUT = replace(
    HF_LAYOUT,
    layer=HF_LAYER | INPUT_ROLES,
    inputs_table="embed_tokens_per_layer",
    inputs_projection="per_layer_model_projection",
    inputs_norm="per_layer_projection_norm",
)
TOWERS = (r"(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio|vision_embedder)\..*",)
"""Encoders of images and sounds, which are left out."""
_LAYOUT = replace(
    INPUTS_LAYOUT,
    layer={
        **INPUTS_LAYOUT.layer,
        "side_down": "layers.{i}.laurel.linear_left",
        "side_up": "layers.{i}.laurel.linear_right",
        "side_norm": "layers.{i}.laurel.post_laurel_norm",
        "stream_router": "layers.{i}.altup.modality_router",
        "stream_norm": "layers.{i}.altup.router_norm",
        "stream_predict": "layers.{i}.altup.prediction_coefs",
        "stream_correct": "layers.{i}.altup.correction_coefs",
        "stream_scale": "layers.{i}.altup.correct_output_scale",
    },
    whole=WHOLE | {"stream_scale"},
    stream_spread="altup_projections.{i}",
    stream_merge="altup_unembed_projections.{i}",
    # Without the scale that its switch turns off, transformers keeps it all the same.
    ignored=(*INPUTS_LAYOUT.ignored, r"layers\.\d+\.altup\.correct_output_scale"),
)
_SEEING_LAYOUT = replace(_LAYOUT, prefix="model.language_model.", ignored=(*_LAYOUT.ignored, *TOWERS))

GGUF_NAMES = {
    "altup_active_idx": "altup.active_idx",
    "altup_num_inputs": "altup.num_inputs",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
}
GGUF_DEFAULTS = {"rope.freq_base_swa": _LOCAL_THETA}


def _computed(fields: Fields) -> dict[str, Any]:
    """Files have how many standard deviations above their mean gates begin."""
    key, count = "activation_sparsity_scale", fields.integer("num_hidden_layers")
    entries = {
        "num_kv_shared_layers": fields.integer("num_kv_shared_layers", max(count - _OWN_KEYS, 0), minimum=0),
        "vocab_size_per_layer_input": fields.integer("vocab_size"),
    }
    given = fields.get(key)
    if given is None:
        return entries
    if not isinstance(given, list) or len(given) != count or any(not isinstance(each, float) for each in given):
        raise fields.bad(key, given, f"{count} numbers")
    if any(math.isnan(each) or each == math.inf for each in given):
        raise fields.bad(key, given, f"{count} numbers below infinity")
    # Shares are of few digits; the file has their deviations in single precision.
    return {**entries, "activation_sparsity_pattern": [round(NormalDist().cdf(each), 6) for each in given]}


_GGUF = Gguf("gemma3n", GGUF_LAYOUT, GGUF_NAMES, GGUF_DEFAULTS, _computed, _gemma3n)

FAMILIES = (
    Family("gemma3n", _gemma3n, _LAYOUT, _GGUF, described_as="gemma3n_text"),
    Family("gemma3n_seeing", _seeing, _SEEING_LAYOUT, _GGUF, described_as="gemma3n"),
)
