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

from headstart.models.config import (
    EmbeddingConfig,
    HeadNorms,
    LayerConfig,
    LayerInputsConfig,
    MlpConfig,
    ModelConfig,
    OutputHeadConfig,
    ResidualConfig,
    RopeConfig,
    StreamsConfig,
)
from headstart.models.families.base import Family
from headstart.models.families.fields import Fields
from headstart.models.families.kin import with_defaults
from headstart.models.families.llama import (
    GGUF_LAYER,
    GGUF_LAYOUT,
    HF_LAYER,
    HF_LAYOUT,
    base_from_gguf,
    base_from_hf,
    biased,
    windows_from_hf,
)
from headstart.models.families.rope import rope_from_hf

_LOCAL_THETA = 10_000.0
_GLOBAL_THETA = 1_000_000.0
_PATTERN = 5
"""Every so many-th layer has full attention, where no entry says which."""
_SPARSE = (10, 0.95)
"""So many first layers of larger models cut off that share of their gates, where no entry says which."""
_OWN_KEYS = 20
"""So many layers have keys of their own, where a GGUF file does not say how many have none."""
_RANK = 64
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
    fields = with_defaults(fields, _DEFAULTS)
    fields.require("altup_active_idx", 0, 0)
    sizes = _sizes(fields)
    config = base_from_hf(
        fields.with_entries(intermediate_size=max(sizes)),
        "gemma3n",
        tied=True,
        default_head_dim=256,
        rope=rope_from_hf(fields, fields.integer("head_dim", 256), _GLOBAL_THETA, "full_attention"),
        activation_key="hidden_activation",
        default_activation="gelu_pytorch_tanh",
        attention=biased(fields),
        head=OutputHeadConfig(
            softcap=fields.optional_number("final_logit_softcapping") if fields.has("final_logit_softcapping") else _CAP
        ),
        residual=_residual(
            fields.integer("altup_num_inputs", 4),
            fields.integer("laurel_rank", _RANK),
            fields.flag("altup_correct_scale", True),
        ),
        layer_inputs=layer_inputs(fields, fields.integer("num_hidden_layers")),
    )
    count = config.num_layers
    sliding = [(i + 1) % _PATTERN != 0 for i in range(count)]
    windows = windows_from_hf(fields, count, fields.integer("sliding_window", 512), sliding)
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
            rope_from_hf(fields, config.head_dim, _LOCAL_THETA, "sliding_attention", "rope_local_base_freq"),
        ),
    )


def _residual(streams: int, side_rank: int, scaled: bool = True) -> ResidualConfig:
    return ResidualConfig(side_rank=side_rank, streams=StreamsConfig(streams, scaled))


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


def _gemma3n_gguf(fields: Fields) -> ModelConfig:
    fields.require("altup.active_idx", 0, 0)
    count = fields.integer("block_count", maximum=4096)
    sizes = by_layer(fields, "feed_forward_length", count)
    config = base_from_gguf(
        fields.with_entries(feed_forward_length=max(sizes)),
        "gemma3n",
        default_theta=_GLOBAL_THETA,
        mlp=MlpConfig("gelu_tanh"),
        head=OutputHeadConfig(softcap=fields.number("final_logit_softcapping", _CAP)),
        residual=_residual(fields.integer("altup.num_inputs", 4), _RANK),
    )
    windows = windows_from_gguf(fields, count, _PATTERN)
    key = "attention.shared_kv_layers"
    shared = fields.integer(key, max(count - _OWN_KEYS, 0), minimum=0)
    local = RopeConfig(fields.number("rope.freq_base_swa", _LOCAL_THETA), config.head_dim)
    return replace(
        _with_parts(config, windows, shared_keys(fields, key, windows, shared), sizes, _cut_off(fields, count)),
        ropes=(*config.ropes, local),
        layer_inputs=LayerInputsConfig(
            count, fields.integer("embedding_length_per_layer_input", 256), config.vocab_size
        ),
    )


def by_layer(fields: Fields, key: str, count: int) -> list[int]:
    """[layer] of a GGUF entry that has a number for each layer or for all."""
    values = fields.get(key)
    if not isinstance(values, list):
        return [fields.integer(key)] * count
    if len(values) != count:
        raise fields.bad(key, values, f"a number or a list of {count}")
    return [fields.with_entries(**{key: value}).integer(key) for value in values]


def windows_from_gguf(fields: Fields, count: int, period: int) -> list[int | None]:
    """[layer] of a GGUF file, which says where there are windows; ``period``: every so many-th layer sees everything,
    where no entry says which."""
    key = "attention.sliding_window_pattern"
    given, window = fields.get(key), fields.integer("attention.sliding_window")
    if not isinstance(given, list):
        every = fields.integer(key, period)
        return [window if (i + 1) % every else None for i in range(count)]
    if len(given) != count or not all(isinstance(slides, bool) for slides in given):
        raise fields.bad(key, given, f"a list of {count} times true or false")
    return [window if slides else None for slides in given]


def _cut_off(fields: Fields, count: int) -> list[float]:
    """[layer] of gates: the file has how many standard deviations above their mean they begin."""
    key = "activation_sparsity_scale"
    given = fields.get(key)
    if given is None:
        return _sparsities(fields, count)
    if not isinstance(given, list) or len(given) != count or any(not isinstance(each, float) for each in given):
        raise fields.bad(key, given, f"{count} numbers")
    if any(math.isnan(each) or each == math.inf for each in given):
        raise fields.bad(key, given, f"{count} numbers below infinity")
    # Shares are of few digits; the file has their deviations in single precision.
    return [round(NormalDist().cdf(each), 6) for each in given]


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


def _sizes(fields: Fields) -> list[int]:
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


def text_of(fields: Fields) -> Fields:
    """The description of the text inside one of a model that sees or hears.

    Raises:
        CheckpointError: there is none.
    """
    text = fields.within("text_config")
    if text is None:
        raise fields.missing("text_config")
    # Released files say the ends outside, and both say whether the head is tied.
    outside = {key: fields.get(key) for key in ("eos_token_id", "tie_word_embeddings") if fields.get(key) is not None}
    return text.with_entries(**outside)


def _seeing(fields: Fields) -> ModelConfig:
    return replace(_gemma3n(text_of(fields)), family="gemma3n_seeing")


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
    whole=frozenset({"stream_scale"}),
    stream_spread="altup_projections.{i}",
    stream_merge="altup_unembed_projections.{i}",
    # Without the scale that its switch turns off, transformers keeps it all the same.
    ignored=(*INPUTS_LAYOUT.ignored, r"layers\.\d+\.altup\.correct_output_scale"),
)
_SEEING_LAYOUT = replace(_LAYOUT, prefix="model.language_model.", ignored=(*_LAYOUT.ignored, *TOWERS))

GGUF_INPUTS_LAYOUT = replace(
    GGUF_LAYOUT,
    layer={
        **GGUF_LAYER,
        "attention_post_norm": "blk.{i}.post_attention_norm",
        "mlp_post_norm": "blk.{i}.post_ffw_norm",
        "input_gate": "blk.{i}.inp_gate",
        "input_output": "blk.{i}.proj",
        "input_norm": "blk.{i}.post_norm",
    },
    inputs_table="per_layer_token_embd",
    inputs_projection="per_layer_model_proj",
    inputs_norm="per_layer_proj_norm",
)
"""Gemma 4 has these names, too. Norms are stored as they are, unlike those of Gemma 1 to 3."""
_GGUF_LAYOUT = replace(
    GGUF_INPUTS_LAYOUT,
    layer={
        **GGUF_INPUTS_LAYOUT.layer,
        "side_down": "blk.{i}.laurel_l",
        "side_up": "blk.{i}.laurel_r",
        "side_norm": "blk.{i}.laurel_post_norm",
        "stream_router": "blk.{i}.altup_router",
        "stream_norm": "blk.{i}.altup_router_norm",
        "stream_predict": "blk.{i}.altup_predict_coef",
        "stream_correct": "blk.{i}.altup_correct_coef",
        "stream_scale": "blk.{i}.altup_correct_scale",
    },
    stream_spread="altup_proj",
    stream_merge="altup_unembd_proj",
)

FAMILIES = (
    Family("gemma3n", "gemma3n_text", "gemma3n", _gemma3n, _gemma3n_gguf, _LAYOUT, _GGUF_LAYOUT),
    Family("gemma3n_seeing", "gemma3n", "gemma3n", _seeing, _gemma3n_gguf, _SEEING_LAYOUT, _GGUF_LAYOUT),
)
