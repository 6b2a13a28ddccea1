"""EAGLE heads in the files of SafeAILab and of vLLM's speculators (EAGLE-1, 2 and 3).

Key for key: the SafeAILab checkpoints on the hub, vllm-project/speculators (``Eagle3SpeculatorConfig``) and its
serving code, which call EAGLE-3's first layer ``layers.0`` where SafeAILab calls it ``midlayer``, and may have further
ones, ``layers.1`` and so on. Its EAGLE-1
(``EagleSpeculatorConfig`` of models/eagle.py and convert/eagle/eagle_converter.py, in version 0.4, gone from 0.9) has
names of its own, and neither the embedding nor the output head, which are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from headstart.drafting.heads.files import load_strictly, require_draft_ids
from headstart.drafting.heads.formats import KIND_KEY, MOST_SLOTS, SPECULATORS_KEY, FoundHead, HeadFolder
from headstart.drafting.heads.gguf_heads import ARCHITECTURE as GGUF_KEY
from headstart.drafting.heads.gguf_heads import frequency_factors
from headstart.drafting.heads.layer_format import read_layers, require_embedding, windows_of
from headstart.drafting.methods.eagle import gguf_formats
from headstart.drafting.methods.eagle.head import (
    FIRST,
    PARALLEL_KIND,
    THIRD,
    EagleConfig,
    EagleHead,
    eagle3_taps,
)
from headstart.drafting.methods.eagle.written_formats import (
    DEPTHS,
    FIRST_LAYER,
    FLAGS,
    LAYER_IDS,
    LLAMA_LAYER,
    MASK,
    MIDLAYER,
    SPECULATORS_EAGLE1,
    SPECULATORS_PARALLEL,
    EagleFormat,
    is_speculators_eagle1,
    renamed,
    write,
)
from headstart.errors import CheckpointError, ConfigError
from headstart.models.config import ModelConfig
from headstart.models.families.fields import Fields

__all__ = ["find", "read", "write"]
_LIKE_FC_NORM = {f"aux_norm_{name}.weight": f"fc_norm.{i}.weight" for i, name in enumerate(("low", "mid", "high"))}
"""Older names of EAGLE-3.1's norms."""
_HEAD_NORM = "self_attn.q_norm.weight"
"""Of a layer as Qwen 3's, which speculators' heads have where their targets do."""
SPECULATORS = {THIRD: THIRD, SPECULATORS_PARALLEL: PARALLEL_KIND, FIRST: FIRST}
"""What speculators calls a type of heads -> its kind."""
_SLOTS = 8
"""Where no file says."""


def find(files: HeadFolder) -> FoundHead | None:
    """Whether a folder holds an EAGLE head."""
    description = files.description
    if description.get(GGUF_KEY) == gguf_formats.ARCHITECTURE:
        return FoundHead(GGUF_KEY, THIRD)
    if KIND_KEY in description:
        return None
    if SPECULATORS_KEY in description:
        kind = SPECULATORS.get(str(description[SPECULATORS_KEY]))
        return None if kind is None else FoundHead("speculators", kind)
    names = {name.removeprefix("model.") for name in files.names}
    is_third = "draft_vocab_size" in description or "Eagle3" in str(description.get("architectures"))
    if is_third or any(name.startswith(MIDLAYER) for name in names):
        return FoundHead("eagle3", PARALLEL_KIND if guesses_in_parallel(description) else THIRD, by_tensors=True)
    return FoundHead("eagle", FIRST, by_tensors=True) if "fc.weight" in names else None


def read(found: FoundHead, files: HeadFolder, tensors: Mapping[str, Tensor], target: ModelConfig) -> EagleHead:
    """See ``read_eagle``."""
    if found.form == GGUF_KEY:
        description = gguf_formats.describe_gguf(files, tensors)
        factors = frequency_factors(tensors, description["head_dim"], files.source)
        own = gguf_formats.gguf_tensors(tensors, description["head_dim"], files.source)
        head = read_eagle("eagle3", description, own, target, files.source)
        head.config = replace(head.config, rope=replace(head.config.rope, factors=factors))
        return head
    kind: EagleFormat = found.form  # type: ignore[assignment]
    return read_eagle(kind, files.description, tensors, target, files.source)


def read_eagle(
    kind: EagleFormat, description: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelConfig, source: str
) -> EagleHead:
    """A head from its description and tensors.

    Raises:
        CheckpointError: an entry is missing or senseless, the head is of another target's size, or tensors are
            missing, surplus or of another shape (all named).
    """
    head_norms = any(name.endswith(_HEAD_NORM) for name in tensors)
    try:
        config = _config(kind, description, target, source, head_norms)
    except ConfigError as error:
        raise CheckpointError(f"{source}: {error}") from error
    theirs = SPECULATORS_EAGLE1 if is_speculators_eagle1(kind, config) else {FIRST_LAYER: MIDLAYER}
    ours = {other: own for own, other in theirs.items()}
    named = {
        renamed(name.removeprefix("model."), ours): tensor
        for name, tensor in tensors.items()
        if not name.startswith("verifier_")  # what older files of speculators have of the target besides
    }
    for layer in range(1, config.num_layers):
        # SGLang's name for it, see serving_formats.
        if (norm := named.pop(f"layers.{layer}.hidden_norm.weight", None)) is not None:
            named.setdefault(f"layers.{layer}.input_layernorm.weight", norm)
    embedding = named.pop("embed_tokens.weight", None)
    if config.variant == "eagle3":
        shape = named["fc.weight"].shape if "fc.weight" in named else ()
        count = sum(shape[1:]) // config.target_hidden_size
        if count > len(config.taps):
            raise CheckpointError(
                f"{source} reads states of {count} layers, and this target of {target.num_layers} layers has "
                f"{len(config.taps)} usual ones or named ones; name them in {LAYER_IDS}, twice what is read twice."
            )
        _drop_idle_table(config, named, source)
        named = {_LIKE_FC_NORM.get(name, name): tensor for name, tensor in named.items()}
        if "lm_head.weight" not in named:
            config = _without_output(config, description, embedding, named, source)
    reach = named.pop("t2d", None)
    head = EagleHead(config)
    if config.slots and "mask_hidden" in named:
        # Some files hold it as a vector.
        named["mask_hidden"] = named["mask_hidden"].reshape(1, 1, -1)
    load_strictly(head, named, source)
    if embedding is not None:
        require_embedding(embedding, config, source)
        head.embedding = embedding
    elif config.hidden_size != config.target_hidden_size:
        raise CheckpointError(
            f"{source} lacks embed_tokens.weight, which a head of {config.hidden_size} elements beside a target of "
            f"{config.target_hidden_size} needs; fetch it again."
        )
    require_draft_ids(head.target_ids, config.vocab_size, reach, source)
    return head


def _config(
    kind: EagleFormat, description: Mapping[str, Any], target: ModelConfig, source: str, head_norms: bool
) -> EagleConfig:
    outer = Fields(description, source)
    fields = outer.within("transformer_layer_config") if kind == "speculators" else outer
    if fields is None:
        raise CheckpointError(f"{source} has no entry 'transformer_layer_config'; fetch the head again.")
    shape = read_layers(fields, target, source, outer.optional_integer("target_hidden_size"), layers=1)
    vocab_size = shape["vocab_size"]
    speculators_eagle1 = kind == "speculators" and description["speculators_model_type"] == "eagle"
    if speculators_eagle1 and shape["num_layers"] > 1:
        raise fields.bad("num_hidden_layers", shape["num_layers"], "1")
    if kind == "eagle" or speculators_eagle1:
        bias = _fusion_bias(outer) if speculators_eagle1 else fields.flag("bias", True)
        return EagleConfig(variant="eagle", draft_vocab_size=vocab_size, fc_bias=bias, **shape)
    nested = outer.within("eagle_config") or Fields({}, source)
    if not nested.flag("use_aux_hidden_state", True):
        raise nested.bad("use_aux_hidden_state", False, "true: heads that read the last state alone are not supported")
    shape |= {name: outer.flag(name, nested.flag(name, False)) for name in FLAGS}
    shape["fc_norm"] |= outer.flag("use_aux_norm", False)
    shape |= _masks(description, outer, vocab_size)
    shape |= {"head_norms": head_norms, "windows": _windows(fields, shape["num_layers"])}
    draft_vocab_size = outer.integer("draft_vocab_size", vocab_size)
    return EagleConfig(variant="eagle3", draft_vocab_size=draft_vocab_size, taps=_taps(outer, target), **shape)


def guesses_in_parallel(description: Mapping[str, Any]) -> bool:
    """Whether a description is of a P-EAGLE head."""
    return description.get("speculators_model_type") == SPECULATORS_PARALLEL or MASK in description


def _without_output(
    config: EagleConfig, description: Mapping[str, Any], embedding: Tensor | None, named: dict[str, Tensor], source: str
) -> EagleConfig:
    """A head whose file has no output rows: its own embedding's where it says so, else the target's (ModelOpt)."""
    if description.get("tie_word_embeddings") is True and embedding is not None and not config.reduced:
        named["lm_head.weight"] = embedding
        return config
    if config.hidden_size != config.target_hidden_size:
        raise CheckpointError(
            f"{source} lacks lm_head.weight, which a head of {config.hidden_size} elements beside a target of "
            f"{config.target_hidden_size} needs; fetch it again."
        )
    return replace(config, borrows_output=True)


def _masks(description: Mapping[str, Any], fields: Fields, vocab_size: int) -> dict[str, int]:
    """How many tokens a P-EAGLE head guesses in one pass, and what its masks read; none of another head."""
    if not guesses_in_parallel(description):
        return {}
    name = MASK if MASK in description else "mask_token_id"
    mask = fields.integer(name, minimum=0)
    if mask >= vocab_size:
        raise fields.bad(name, mask, f"a token of the vocabulary, below {vocab_size}")
    told = fields.within("speculators_config")
    methods = None if told is None else told.get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
    slots = Fields(first, fields.source).integer("speculative_tokens", fields.integer(DEPTHS, _SLOTS))
    if slots > MOST_SLOTS:
        raise fields.bad(DEPTHS, slots, f"at most {MOST_SLOTS}")
    return {"slots": slots, "mask_token_id": mask}


def _fusion_bias(fields: Fields) -> bool:
    """Whether speculators' EAGLE-1 has one; HASS with its further norms, and other families' layers, are refused."""
    if fields.flag("layernorms", False):
        raise fields.bad("layernorms", True, "false: heads with further norms are not supported")
    layer = fields.text("transformer_layer_architecture", "auto")
    if layer not in ("auto", LLAMA_LAYER):
        raise fields.bad("transformer_layer_architecture", layer, LLAMA_LAYER)
    return fields.flag("fusion_bias", False)


def _windows(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Of each layer. Some files repeat the target's layers, which are more: those are none of the head's."""
    types = fields.get("layer_types")
    repeats = isinstance(types, list) and len(types) != num_layers
    return () if repeats else windows_of(fields, num_layers)


def named_layers(fields: Fields) -> tuple[int, ...]:
    """The numbers that a description gives the layers that a head reads; none where the reader chooses."""
    nested = fields.within("eagle_config")
    return fields.token_ids(LAYER_IDS) or (nested.token_ids(LAYER_IDS) if nested is not None else ())


def _taps(fields: Fields, target: ModelConfig) -> tuple[int, ...]:
    """The layers whose inputs are read; the last id may name the output of the last layer."""
    taps = named_layers(fields)
    usual = eagle3_taps(target.num_layers)
    if taps == tuple(tap - 1 for tap in usual):
        # SGLang, SpecForge and ModelOpt number a layer by its output, vLLM by its input, under one name: the usual
        # layers tell who wrote them.
        return usual
    taps = taps or usual
    if max(taps) > target.num_layers:
        raise fields.bad(LAYER_IDS, list(taps), f"layers of this target, 0 to {target.num_layers}")
    return taps


def _drop_idle_table(config: EagleConfig, named: dict[str, Tensor], source: str) -> None:
    """Equal vocabularies need no table; a file may hold one of zeros all the same."""
    if config.draft_vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{source}: draft_vocab_size is {config.draft_vocab_size}, more than the target's {config.vocab_size}."
        )
    if not config.reduced and "d2t" in named and not named["d2t"].any():
        del named["d2t"]
