"""What Headstart knows of a model that transformers runs: its sizes, by the names that configurations have for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.errors import CheckpointError
from headstart.models.config import LayerConfig, ModelConfig

EXTRA = "install headstart with its extra: headstart[transformers]"
_YOUNGEST = "LinearAttentionAndSlidingWindowAttentionLayer"
"""What came last of what is taken from transformers, with 5.14."""
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "context_length")
_MORE_POSITIONS = ("model_max_length", "max_sequence_length", "max_target_positions")
_UNBOUNDED = 1 << 17
"""Positions of a model that names no end."""
_GROWING = ("dynamic", "longrope")
"""Rotations that change with the length of a text beyond what the model was first trained on."""


def missing() -> str | None:
    """Why transformers cannot be used here; None: it can."""
    try:
        import transformers.cache_utils as cache_utils
        import transformers.masking_utils as masking_utils
    except ImportError:
        return f"the package transformers is missing or too old; {EXTRA}"
    needed = hasattr(masking_utils, "sdpa_mask") and hasattr(cache_utils, _YOUNGEST)
    return None if needed else f"the package transformers is too old; {EXTRA}"


def read_config(metadata: Mapping[str, Any], path: Path, name: str, trust_remote_code: bool) -> Any:
    """transformers' configuration of the model in a directory, without the form that its weights are stored in.

    Raises:
        CheckpointError: transformers does not know such a model either, it runs code of its own that nobody has
            trusted, or it is no decoder.
    """
    from transformers import AutoConfig, PreTrainedConfig

    remote = "AutoConfig" in metadata.get("auto_map", {})
    kind = metadata.get("model_type")
    if metadata.get("is_encoder_decoder"):
        raise _no_decoder(name, kind)
    known = isinstance(kind, str) and _is_known(kind)
    if known and metadata.get("is_encoder_decoder", getattr(_usual(kind), "is_encoder_decoder", False)):
        raise _no_decoder(name, kind)
    try:
        if not known and remote and not trust_remote_code:
            raise CheckpointError(
                f"model {name!r} brings code of its own, which is not run unless you say so; read it, then give "
                "--trust-remote-code (trust_remote_code=True)."
            )
        if not known and not remote:
            raise CheckpointError(
                f"model {name!r} has model_type {kind!r:.60}, which neither Headstart nor the installed transformers "
                "knows; install a newer transformers, or use another model."
            )
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
    except CheckpointError:
        raise
    # Configurations check themselves with whatever exception their authors chose.
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(
            f"model {name!r}: its configuration is refused by transformers ({reason:.300})."
        ) from error
    assert isinstance(config, PreTrainedConfig)
    if getattr(config, "is_encoder_decoder", False):
        raise _no_decoder(name, kind)
    for each in (config, config.get_text_config(decoder=True)):
        if getattr(each, "quantization_config", None) is not None:
            del each.quantization_config
    if model_class(config, trust_remote_code) is None:
        raise CheckpointError(
            f"model {name!r} has model_type {kind!r:.60}, no language model that decodes; use one that does."
        )
    return config


def _is_known(kind: str) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return kind in CONFIG_MAPPING


def _usual(kind: Any) -> Any:
    """The class of such configurations."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[kind]


def _no_decoder(name: str, kind: object) -> CheckpointError:
    return CheckpointError(
        f"model {name!r} has model_type {kind!r:.60}, an encoder with a decoder, which transformers' code does not run "
        "here; use a decoder alone, or an encoder with a decoder of a kind that Headstart has a description of."
    )


def model_class(config: Any, trust_remote_code: bool) -> Any:
    """transformers' class that loads such a model; None: it has none that decodes text."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    )

    remote = getattr(config, "auto_map", None) or {}
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or (trust_remote_code and "AutoModelForCausalLM" in remote):
        return AutoModelForCausalLM
    # Of what sees and speaks, the speaking part is a decoder.
    return AutoModelForImageTextToText if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING else None


def described(config: Any, metadata: Mapping[str, Any], name: str) -> ModelConfig:
    """The sizes of a model. Those that it has no word for are 1: nothing is computed from them.

    Raises:
        CheckpointError: it does not say how many tokens or layers it has.
    """
    text = config.get_text_config(decoder=True)
    layers = _first(text, ("num_hidden_layers", "n_layer", "n_layers", "num_layers"))
    vocab, hidden = _first(text, ("vocab_size",)), _first(text, ("hidden_size", "n_embd", "d_model", "dim"))
    if not layers or not vocab or not hidden:
        raise CheckpointError(f"model {name!r} does not say how many layers, tokens or dimensions it has; use another.")
    heads = _first(text, ("num_attention_heads", "n_head", "n_heads", "num_heads")) or 1
    eos = metadata.get("eos_token_id", getattr(text, "eos_token_id", None))
    return ModelConfig(
        family=str(text.model_type),
        vocab_size=vocab,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_first(text, ("num_key_value_heads", "num_kv_heads", "n_head_kv")) or heads,
        head_dim=_first(text, ("head_dim",)) or max(hidden // heads, 1),
        mlp_size=_first(text, ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim")) or 1,
        max_positions=_positions(text),
        layers=(LayerConfig(rope=None),) * layers,
        bos_token_id=_first(text, ("bos_token_id",)),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        name=name,
    )


def _positions(text: Any) -> int:
    positions = _first(text, (*_POSITIONS, *_MORE_POSITIONS)) or _UNBOUNDED
    for rope in _ropes(getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)):
        if rope.get("rope_type", rope.get("type")) in _GROWING:
            # A text's rotations must not change with whatever else is in a pass: it ends where they would.
            first = rope.get("original_max_position_embeddings")
            first = first or getattr(text, "original_max_position_embeddings", None) or positions
            positions = min(positions, int(first))
    return positions


def _ropes(entry: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(entry, dict):
        return []
    nested = [each for each in entry.values() if isinstance(each, dict)]
    return nested or [entry]


def _first(config: Any, names: Sequence[str]) -> int | None:
    for name in names:
        try:
            value = getattr(config, name, None)
        # Some attributes differ from layer to layer and are not to be had as one.
        except Exception:
            continue
        if isinstance(value, list | tuple) and value:
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
