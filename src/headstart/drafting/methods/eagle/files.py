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
from typing import Any, Literal

import torch
from torch import Tensor

from headstart.drafting.heads.files import load_strictly, require_draft_ids
from headstart.drafting.heads.formats import (
    KIND_KEY,
    OWN,
    SPECULATORS_KEY,
    FoundHead,
    HeadFolder,
    TrainedHead,
    WrittenHead,
)
from headstart.drafting.heads.gguf_heads import ARCHITECTURE as GGUF_KEY
from headstart.drafting.heads.gguf_heads import frequency_factors
from headstart.drafting.heads.layer_format import describe_layers, require_embedding
from headstart.drafting.heads.speculators import SPECULATORS_VERSION, speculators_config
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import MOST_SLOTS
from headstart.drafting.methods.eagle import gguf_formats
from headstart.drafting.methods.eagle.head import (
    FIRST,
    MOST_LAYERS,
    PARALLEL_KIND,
    THIRD,
    EagleConfig,
    EagleHead,
    eagle3_taps,
)
from headstart.errors import CheckpointError
from headstart.models.config import ModelConfig
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.rope import rope_of

EagleFormat = Literal["eagle", "eagle3", "speculators"]

_LAYER, _MIDLAYER = "layers.0.", "midlayer."
_SPECULATORS_EAGLE1 = {"fc.": "fusion_fc.", _LAYER: "transformer."}
"""How our tensors' names begin -> how its do."""
_LIKE_FC_NORM = {f"aux_norm_{name}.weight": f"fc_norm.{i}.weight" for i, name in enumerate(("low", "mid", "high"))}
"""Older names of EAGLE-3.1's norms."""
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_LLAMA_LAYER = "LlamaDecoderLayer"
SPECULATORS_PARALLEL = "peagle"
SPECULATORS = {THIRD: THIRD, SPECULATORS_PARALLEL: PARALLEL_KIND, FIRST: FIRST}
"""What speculators calls a type of heads -> its kind."""
_MASK = "ptd_token_id"
"""Of a P-EAGLE head in SafeAILab's form, as vLLM reads it; speculators has "mask_token_id"."""
_DEPTHS = "para_depths"
"""Tokens that one pass guesses; speculators' own heads say so by the guesses of a round."""
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
    if is_third or any(name.startswith(_MIDLAYER) for name in names):
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


def write(head: TrainedHead, form: str, tables: TargetTables | None, verifier: str) -> WrittenHead:
    """A head in one of the formats; Headstart's own folders are as SafeAILab's, without the target's embedding.

    Raises:
        CheckpointError: the format has no place for something that this head does.
    """
    # Imported here: these forms are turns of the ones here.
    from headstart.drafting.methods.eagle.serving_formats import SERVING_FORMATS, describe_for, tensors_for

    assert isinstance(head, EagleHead)
    config = head.config
    if form == OWN:
        return WrittenHead(describe_eagle(head, config.variant), eagle_tensors(head, config.variant))
    assert tables is not None
    if form in SERVING_FORMATS:
        return WrittenHead(describe_for(form, head), tensors_for(form, head, tables))
    if form == "speculators" and config.variant == FIRST and config.num_layers > 1:
        raise CheckpointError(
            f"speculators has EAGLE-1 heads of one layer, this one has {config.num_layers}; choose eagle."
        )
    kind: EagleFormat = form  # type: ignore[assignment]
    embedding = tables.embedding.to(torch.float32) if kind != "eagle3" else None
    tensors = eagle_tensors(head, kind, embedding)
    if config.borrows_output:
        tensors["lm_head.weight"] = head.output_rows(tables.head).float()
    return WrittenHead(describe_eagle(head, kind, verifier), tensors)


def read_eagle(
    kind: EagleFormat, description: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelConfig, source: str
) -> EagleHead:
    """A head from its description and tensors.

    Raises:
        CheckpointError: an entry is missing or senseless, the head is of another target's size, or tensors are
            missing, surplus or of another shape (all named).
    """
    config = _config(kind, description, target, source)
    theirs = _SPECULATORS_EAGLE1 if _is_speculators_eagle1(kind, config) else {_LAYER: _MIDLAYER}
    ours = {other: own for own, other in theirs.items()}
    named = {
        _renamed(name.removeprefix("model."), ours): tensor
        for name, tensor in tensors.items()
        if not name.startswith("verifier_")  # what older files of speculators have of the target besides
    }
    for layer in range(1, config.num_layers):
        # SGLang's name for it, see serving_formats.
        if (norm := named.pop(f"layers.{layer}.hidden_norm.weight", None)) is not None:
            named.setdefault(f"layers.{layer}.input_layernorm.weight", norm)
    embedding = named.pop("embed_tokens.weight", None)
    if config.variant == "eagle3":
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


def describe_eagle(head: EagleHead, kind: EagleFormat, verifier: str = "") -> dict[str, Any]:
    """``config.json`` of a head; ``verifier``: the target's name, for speculators.

    Raises:
        CheckpointError: speculators has no place for something that this head does.
    """
    config = head.config
    layer = describe_layers(config, "llama")
    flags = {name: getattr(config, name) for name in _FLAGS}
    if kind == "eagle":
        return {"architectures": ["LlamaForCausalLM"], **layer, "bias": config.fc_bias}
    if kind == "eagle3":
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            **layer,
            "draft_vocab_size": config.draft_vocab_size,
            "target_hidden_size": config.target_hidden_size,
            "eagle_config": {LAYER_IDS: list(config.taps), "use_aux_hidden_state": True},
            **flags,
            **({_MASK: config.mask_token_id, _DEPTHS: config.slots} if config.slots else {}),
        }
    return _describe_for_speculators(config, layer, flags, verifier)


def _describe_for_speculators(
    config: EagleConfig, layer: Mapping[str, Any], flags: Mapping[str, bool], verifier: str
) -> dict[str, Any]:
    """``layer``: the head's layers as a Llama configuration; ``flags``: of EAGLE-3."""
    if config.variant == "eagle":
        own = {
            "architectures": ["EagleSpeculator", _LLAMA_LAYER],
            "transformer_layer_architecture": _LLAMA_LAYER,
            "layernorms": False,
            "fusion_bias": config.fc_bias,
        }
    else:
        own = {
            "architectures": ["PEagleSpeculator" if config.slots else "Eagle3Speculator"],
            "draft_vocab_size": config.draft_vocab_size,
            "target_hidden_size": config.target_hidden_size,
            LAYER_IDS: list(config.taps),
            **flags,
        }
    algorithm: str = config.variant
    if config.slots:
        if config.fc_norm:
            raise CheckpointError(
                "speculators has no P-EAGLE heads with a norm for each layer that is read, as this one has; use it as "
                "it is."
            )
        algorithm = SPECULATORS_PARALLEL
        own = {name: value for name, value in own.items() if name not in ("fc_norm", "norm_output")}
        own["mask_token_id"] = config.mask_token_id
    return {
        "speculators_model_type": algorithm,
        "speculators_version": SPECULATORS_VERSION,
        **own,
        "speculators_config": speculators_config(algorithm, config.slots or 5, verifier),
        "transformer_layer_config": layer,
    }


def named_layers(description: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers that an EAGLE-3 head's ``config.json`` gives the layers that it reads, as they stand there; none
    where it leaves the choice to the reader."""
    return _named_layers(Fields(description, "config.json"))


def eagle_tensors(head: EagleHead, kind: EagleFormat, embedding: Tensor | None = None) -> dict[str, Tensor]:
    """A head's tensors by the names of a format.

    ``embedding``: the target's, for formats whose readers expect one in the file (SafeAILab's EAGLE-1 always has it,
    speculators' never).
    """
    if _is_speculators_eagle1(kind, head.config):
        return {_renamed(name, _SPECULATORS_EAGLE1): tensor for name, tensor in head.state_dict().items()}
    names = {_LAYER: _MIDLAYER} if kind == "eagle3" else {}
    tensors = {_renamed(name, names): tensor for name, tensor in head.state_dict().items()}
    own = head.embedding if head.embedding is not None else embedding
    if own is not None:
        tensors["embed_tokens.weight"] = own
    if head.config.reduced:
        said = torch.zeros(head.config.vocab_size, dtype=torch.bool)
        said[head.target_ids.cpu()] = True
        tensors["t2d"] = said
    return tensors


def _config(kind: EagleFormat, description: Mapping[str, Any], target: ModelConfig, source: str) -> EagleConfig:
    outer = Fields(description, source)
    fields = outer.within("transformer_layer_config") if kind == "speculators" else outer
    if fields is None:
        raise CheckpointError(f"{source} has no entry 'transformer_layer_config'; fetch the head again.")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", hidden // heads)
    target_hidden = outer.integer("target_hidden_size", hidden)
    vocab_size = fields.integer("vocab_size")
    if target_hidden != target.hidden_size:
        raise CheckpointError(
            f"{source} is made for a target of {target_hidden} elements a state; this one has {target.hidden_size}; "
            "name the model that it was trained for."
        )
    if not target.vocab_size <= vocab_size:
        raise CheckpointError(
            f"{source} is made for a vocabulary of {vocab_size}; this target's has {target.vocab_size} tokens."
        )
    shape: dict[str, Any] = dict(
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        vocab_size=vocab_size,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        mlp_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers", 1, maximum=MOST_LAYERS),
        rope=rope_of(fields, head_dim),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        attention_bias=fields.flag("attention_bias", False),
        max_positions=fields.integer("max_position_embeddings", 2048, maximum=MAX_POSITIONS),
    )
    speculators_eagle1 = kind == "speculators" and description["speculators_model_type"] == "eagle"
    if speculators_eagle1 and shape["num_layers"] > 1:
        raise fields.bad("num_hidden_layers", shape["num_layers"], "1")
    if kind == "eagle" or speculators_eagle1:
        bias = _fusion_bias(outer) if speculators_eagle1 else fields.flag("bias", True)
        return EagleConfig(variant="eagle", draft_vocab_size=vocab_size, fc_bias=bias, **shape)
    nested = outer.within("eagle_config") or Fields({}, source)
    if not nested.flag("use_aux_hidden_state", True):
        raise nested.bad("use_aux_hidden_state", False, "true: heads that read the last state alone are not supported")
    shape |= {name: outer.flag(name, nested.flag(name, False)) for name in _FLAGS}
    shape["fc_norm"] |= outer.flag("use_aux_norm", False)
    shape |= _masks(description, outer, vocab_size)
    draft_vocab_size = outer.integer("draft_vocab_size", vocab_size)
    return EagleConfig(variant="eagle3", draft_vocab_size=draft_vocab_size, taps=_taps(outer, target), **shape)


def guesses_in_parallel(description: Mapping[str, Any]) -> bool:
    """Whether a description is of a P-EAGLE head."""
    return description.get("speculators_model_type") == SPECULATORS_PARALLEL or _MASK in description


def _without_output(
    config: EagleConfig,
    description: Mapping[str, Any],
    embedding: Tensor | None,
    named: dict[str, Tensor],
    source: str,
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
    name = _MASK if _MASK in description else "mask_token_id"
    mask = fields.integer(name, minimum=0)
    if mask >= vocab_size:
        raise fields.bad(name, mask, f"a token of the vocabulary, below {vocab_size}")
    told = fields.within("speculators_config")
    methods = None if told is None else told.get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
    slots = Fields(first, fields.source).integer("speculative_tokens", fields.integer(_DEPTHS, _SLOTS))
    if slots > MOST_SLOTS:
        raise fields.bad(_DEPTHS, slots, f"at most {MOST_SLOTS}")
    return {"slots": slots, "mask_token_id": mask}


def _fusion_bias(fields: Fields) -> bool:
    """Whether speculators' EAGLE-1 has one; HASS with its further norms, and other families' layers, are refused."""
    if fields.flag("layernorms", False):
        raise fields.bad("layernorms", True, "false: heads with further norms are not supported")
    layer = fields.text("transformer_layer_architecture", "auto")
    if layer not in ("auto", _LLAMA_LAYER):
        raise fields.bad("transformer_layer_architecture", layer, _LLAMA_LAYER)
    return fields.flag("fusion_bias", False)


def _named_layers(fields: Fields) -> tuple[int, ...]:
    nested = fields.within("eagle_config")
    return fields.token_ids(LAYER_IDS) or (nested.token_ids(LAYER_IDS) if nested is not None else ())


def _taps(fields: Fields, target: ModelConfig) -> tuple[int, ...]:
    """The layers whose inputs are read; the last id may name the output of the last layer."""
    taps = _named_layers(fields)
    usual = eagle3_taps(target.num_layers)
    if taps == tuple(tap - 1 for tap in usual):
        # SGLang, SpecForge and ModelOpt number a layer by its output, vLLM by its input, under one name: the usual
        # layers tell who wrote them.
        return usual
    taps = taps or usual
    if max(taps) > target.num_layers:
        raise fields.bad(LAYER_IDS, list(taps), f"layers of this target, 0 to {target.num_layers}")
    return taps


def _is_speculators_eagle1(kind: EagleFormat, config: EagleConfig) -> bool:
    return kind == "speculators" and config.variant == "eagle"


def _renamed(name: str, beginnings: Mapping[str, str]) -> str:
    for one, other in beginnings.items():
        if name.startswith(one):
            return other + name.removeprefix(one)
    return name


def _drop_idle_table(config: EagleConfig, named: dict[str, Tensor], source: str) -> None:
    """Equal vocabularies need no table; a file may hold one of zeros all the same."""
    if config.draft_vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{source}: draft_vocab_size is {config.draft_vocab_size}, more than the target's {config.vocab_size}."
        )
    if not config.reduced and "d2t" in named and not named["d2t"].any():
        del named["d2t"]
