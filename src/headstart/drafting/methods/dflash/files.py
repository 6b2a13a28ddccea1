"""Block heads in the files of z-lab's DFlash, of DeepSpec's DSpark, and of vLLM's speculators (both).

Key for key: the DFlash checkpoints of z-lab (``dflash/model.py`` of its repository, 2026), speculators'
``DFlashSpeculatorConfig`` (models/dflash, 2026), and how vLLM 0.33 reads both. z-lab numbers a layer of the target by
its output, speculators by the layer that reads it, as we do. Neither repeats the target's embedding; speculators
writes the output rows of a reduced vocabulary. DeepSpec (deepseek-ai/DeepSpec, 2026: modeling/dspark/qwen3) numbers as
z-lab, lets the last token's row guess, too, and repeats both of the target's tables. What a Markov factor knows of
tokens goes by target ids there, as vLLM 0.33 reads it for reduced vocabularies. Headstart's own folders are z-lab's
form, with a reduced vocabulary allowed (``draft_vocab_size``, ``d2t``) and without output rows where they are the
target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from headstart.drafting.heads.files import load_strictly, require_draft_ids
from headstart.drafting.heads.formats import OWN, SPECULATORS_KEY, FoundHead, HeadFolder, TrainedHead, WrittenHead
from headstart.drafting.heads.layer_format import describe_layers, require_embedding
from headstart.drafting.heads.speculators import SPECULATORS_VERSION, speculators_config
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import KIND, MOST_SLOTS, BlockConfig, BlockHead
from headstart.errors import CheckpointError, ConfigError
from headstart.models.config import ModelConfig
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.rope import rope_of

BlockFormat = Literal["dflash", "speculators", "deepspec"]
DEEPSPEC_ARCHITECTURE = "Qwen3DSparkModel"
SPECULATORS_DSPARK = "dspark"
"""What speculators calls a block head with a Markov factor or a confidence."""
SPECULATORS = {KIND: KIND, SPECULATORS_DSPARK: KIND}
"""What speculators calls a type of heads -> its kind."""
_BEFORE = "markov_head.markov_w1.weight"
NESTED = "dflash_config"
"""Entry of z-lab's ``config.json`` by which it is told from others."""
LAYER_IDS = "aux_hidden_state_layer_ids"
_MOST_LAYERS = 64


def find(files: HeadFolder) -> FoundHead | None:
    """Whether a folder holds a block head."""
    description = files.description
    if SPECULATORS_KEY in description:
        return FoundHead("speculators", KIND) if description[SPECULATORS_KEY] in SPECULATORS else None
    if NESTED in description:
        return FoundHead("dflash", KIND)
    is_deepspec = description.get("architectures") == [DEEPSPEC_ARCHITECTURE]
    return FoundHead("deepspec", KIND) if is_deepspec else None


def read(found: FoundHead, files: HeadFolder, tensors: Mapping[str, Tensor], target: ModelConfig) -> BlockHead:
    """See ``read_block``."""
    kind: BlockFormat = found.form  # type: ignore[assignment]
    return read_block(kind, files.description, tensors, target, files.source)


def write(head: TrainedHead, form: str, tables: TargetTables | None, verifier: str) -> WrittenHead:
    """A head in one of the formats; Headstart's own folders are as z-lab's, as SpecForge has them, too.

    Raises:
        CheckpointError: the format has no place for something that this head does.
    """
    assert isinstance(head, BlockHead)
    config = head.config
    kind: BlockFormat = "dflash" if form in (OWN, "specforge") else form  # type: ignore[assignment]
    extended = config.root_speaks or config.markov_rank > 0 or config.confidence
    if form == "specforge" and (config.reduced or extended):
        raise CheckpointError(
            f"{form} has DFlash heads that say every token, from the first mask on, and no Markov factor or "
            "confidence; train one with --draft-vocab 0, or choose speculators."
        )
    return WrittenHead(describe_block(head, kind, verifier), block_tensors(head, kind, tables))


def read_block(
    kind: BlockFormat, description: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelConfig, source: str
) -> BlockHead:
    """A head from its description and tensors.

    Raises:
        CheckpointError: an entry is missing, senseless, or asks for something that is not supported; the head is of
            another target's size; or tensors are missing, surplus or of another shape (all named).
    """
    named = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    embedding, said = named.pop("embed_tokens.weight", None), named.pop("t2d", None)
    config = _config(kind, description, "lm_head.weight" in named, target, source)
    if not config.reduced:
        # Equal vocabularies need no table; a file may hold one of zeros all the same.
        if "d2t" in named and named["d2t"].any():
            raise CheckpointError(f"{source} has a d2t that leads elsewhere, but a whole vocabulary; fetch it again.")
        named.pop("d2t", None)
    head = BlockHead(config)
    before = named.get(_BEFORE)
    if config.reduced and before is not None and len(before) == config.vocab_size and "d2t" in named:
        ids = torch.arange(config.draft_vocab_size) + named["d2t"].long()
        named[_BEFORE] = before[ids.clamp(0, config.vocab_size - 1)]
    load_strictly(head, named, source)
    if embedding is not None:
        require_embedding(embedding, config, source)
    head.embedding = embedding
    require_draft_ids(head.target_ids, config.vocab_size, said, source)
    return head


def describe_block(head: BlockHead, kind: BlockFormat, verifier: str = "") -> dict[str, Any]:
    """``config.json`` of a head; ``verifier``: the target's name, for speculators.

    Raises:
        CheckpointError: the format has no place for something that this head does.
    """
    config = head.config
    layer = describe_layers(config, "qwen3")
    if kind == "deepspec":
        return _describe_for_deepspec(config, layer)
    if kind == "dflash":
        nested: dict[str, Any] = {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": [tap - 1 for tap in config.taps],
        }
        nested |= {"sample_from_anchor": True} if config.root_speaks else {}
        nested |= {"causal": True} if config.causal else {}
        nested |= {"markov_rank": config.markov_rank} if config.markov_rank else {}
        nested |= _describe_confidence(config)
        return {
            "architectures": ["DFlashDraftModel"],
            **layer,
            "draft_vocab_size": config.draft_vocab_size,
            "target_hidden_size": config.target_hidden_size,
            "block_size": config.block_size,
            NESTED: nested,
        }
    if config.causal:
        raise CheckpointError("speculators has no block heads with causal blocks, as this one has; use it as it is.")
    extended = config.markov_rank > 0 or config.confidence
    algorithm = SPECULATORS_DSPARK if extended else "dflash"
    more = {"markov_rank": config.markov_rank, "markov_head_type": "vanilla"} | _describe_confidence(config)
    return {
        "speculators_model_type": algorithm,
        "speculators_version": SPECULATORS_VERSION,
        "architectures": ["DSparkSpeculator" if extended else "DFlashSpeculator"],
        **(more if extended else {}),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "block_size": config.block_size,
        LAYER_IDS: list(config.taps),
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": config.root_speaks,
        # vLLM 0.33 takes false for causal blocks in all layers, sliding or not.
        "sliding_window_non_causal": True,
        "speculators_config": speculators_config(algorithm, config.slots, verifier),
        "transformer_layer_config": layer,
    }


def _describe_confidence(config: BlockConfig) -> dict[str, Any]:
    if not config.confidence:
        return {}
    return {"enable_confidence_head": True, "confidence_head_with_markov": config.confidence_reads_token}


def _describe_for_deepspec(config: BlockConfig, layer: Mapping[str, Any]) -> dict[str, Any]:
    if config.reduced or config.causal or not config.root_speaks:
        what = (
            "a reduced vocabulary" if config.reduced else "causal blocks" if config.causal else "a root that is silent"
        )
        raise CheckpointError(
            f"DeepSpec has no heads with {what}, as this one has; train one with dspark --draft-vocab 0."
        )
    return {
        "architectures": [DEEPSPEC_ARCHITECTURE],
        **layer,
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": [tap - 1 for tap in config.taps],
        "layer_types": ["full_attention"] * config.num_layers,
        "num_anchors": 512,
        "markov_rank": config.markov_rank,
        **({"markov_head_type": "vanilla"} if config.markov_rank else {}),
        "enable_confidence_head": config.confidence,
        **_describe_confidence(config),
    }


def block_tensors(head: BlockHead, kind: BlockFormat, tables: TargetTables | None = None) -> dict[str, Tensor]:
    """A head's tensors by the names of a format.

    Args:
        tables: the target's, for speculators, whose files hold the output rows of a reduced vocabulary, and DeepSpec,
            whose hold both.
    """
    tensors = dict(head.state_dict())
    if head.embedding is not None:
        tensors["embed_tokens.weight"] = head.embedding
    if kind == "deepspec":
        assert tables is not None
        tensors.setdefault("embed_tokens.weight", tables.embedding.float())
        tensors.setdefault("lm_head.weight", tables.head.detach().float())
    if kind == "speculators" and head.config.reduced and head.config.markov_rank:
        known = tensors[_BEFORE]
        tensors[_BEFORE] = known.new_zeros(head.config.vocab_size, known.shape[1])
        tensors[_BEFORE][head.target_ids.to(known.device)] = known
    if kind == "speculators" and head.config.reduced:
        assert tables is not None
        tensors["lm_head.weight"] = head.mapped_rows(tables.head).detach().float()
        said = torch.zeros(head.config.vocab_size, dtype=torch.bool)
        said[head.target_ids.cpu()] = True
        tensors["t2d"] = said
    return tensors


def _config(
    kind: BlockFormat, description: Mapping[str, Any], own_output: bool, target: ModelConfig, source: str
) -> BlockConfig:
    outer = Fields(description, source)
    layer = own = outer
    if kind == "speculators":
        layer = _within(outer, "transformer_layer_config")
    elif kind == "dflash":
        own = _within(outer, NESTED)
    _refuse_variants(kind, outer, layer, own)
    hidden, heads = layer.integer("hidden_size"), layer.integer("num_attention_heads")
    head_dim = layer.integer("head_dim", hidden // heads)
    vocab_size = layer.integer("vocab_size")
    if hidden != target.hidden_size:
        raise CheckpointError(
            f"{source} is made for a target of {hidden} elements a state; this one has {target.hidden_size}; "
            "name the model that it was trained for."
        )
    if not target.vocab_size <= vocab_size:
        raise CheckpointError(
            f"{source} is made for a vocabulary of {vocab_size}; this target's has {target.vocab_size} tokens."
        )
    draft_vocab_size = outer.integer("draft_vocab_size", vocab_size)
    if draft_vocab_size > vocab_size:
        raise outer.bad("draft_vocab_size", draft_vocab_size, f"at most the vocabulary's {vocab_size}")
    mask = own.integer("mask_token_id", minimum=0)
    if mask >= vocab_size:
        raise own.bad("mask_token_id", mask, f"a token of the vocabulary, below {vocab_size}")
    try:
        return BlockConfig(
            hidden_size=hidden,
            target_hidden_size=target.hidden_size,
            vocab_size=vocab_size,
            draft_vocab_size=draft_vocab_size,
            num_heads=heads,
            num_kv_heads=layer.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            mlp_size=layer.integer("intermediate_size"),
            rope=rope_of(layer, head_dim),
            num_layers=layer.integer("num_hidden_layers", maximum=_MOST_LAYERS),
            taps=_taps(kind, own, target),
            block_size=outer.integer("block_size", maximum=MOST_SLOTS + 1),
            mask_token_id=mask,
            norm_eps=layer.number("rms_norm_eps", 1e-6),
            attention_bias=layer.flag("attention_bias", False),
            own_output=own_output,
            root_speaks=own.flag("sample_from_anchor", kind == "deepspec"),
            markov_rank=own.integer("markov_rank", 0, minimum=0),
            confidence=own.flag("enable_confidence_head", False),
            confidence_reads_token=own.flag("enable_confidence_head", False)
            and own.flag("confidence_head_with_markov", False),
            causal=kind == "dflash" and (own.flag("causal", False) or layer.flag("is_causal", False)),
            max_positions=layer.integer("max_position_embeddings", 2048, maximum=MAX_POSITIONS),
        )
    except ConfigError as error:
        raise CheckpointError(f"{source}: {error}") from error


def _within(fields: Fields, name: str) -> Fields:
    inner = fields.within(name)
    if inner is None:
        raise CheckpointError(f"{fields.source} has no entry {name!r}; fetch the head again.")
    return inner


def _taps(kind: BlockFormat, own: Fields, target: ModelConfig) -> tuple[int, ...]:
    """Layers whose inputs are read; the last may be the last layer's output. By outputs, -1 is the embedding."""
    name = LAYER_IDS if kind == "speculators" else "target_layer_ids"
    by_output = kind != "speculators"
    numbers = own.get(name)
    if not isinstance(numbers, list) or any(type(number) is not int for number in numbers):
        raise own.bad(name, numbers, f"a list of layers of this target, which has {target.num_layers}")
    taps = tuple(number + by_output for number in numbers)
    if not taps or not 0 <= min(taps) <= max(taps) <= target.num_layers:
        raise own.bad(name, numbers, f"layers of this target, which has {target.num_layers}")
    return taps


def _refuse_variants(kind: BlockFormat, outer: Fields, layer: Fields, own: Fields) -> None:
    """Heads of this family that compute something else."""
    usual = {
        "speculators": (["DFlashSpeculator"], ["DSparkSpeculator"], [DEEPSPEC_ARCHITECTURE]),
        "dflash": (["DFlashDraftModel"],),
        "deepspec": ([DEEPSPEC_ARCHITECTURE],),
    }[kind]
    architectures = outer.get("architectures")
    if architectures not in (None, *usual):
        raise outer.bad("architectures", architectures, f"{usual[0]}: variants of DFlash are not supported")
    if own.integer("markov_rank", 0, minimum=0) and own.text("markov_head_type", "vanilla") != "vanilla":
        raise own.bad("markov_head_type", own.get("markov_head_type"), "vanilla: others are not supported")
    if outer.text("projector_type", "dflash") != "dflash":
        raise outer.bad("projector_type", outer.get("projector_type"), "dflash: Domino is not supported")
    types = layer.get("layer_types") or []
    if not isinstance(types, list) or any(each != "full_attention" for each in types) or own.flag("use_swa", False):
        raise layer.bad("layer_types", types, "full_attention alone: sliding windows are not supported")
