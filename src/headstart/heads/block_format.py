"""Block heads in the files of z-lab's DFlash and of vLLM's speculators.

Key for key: the DFlash checkpoints of z-lab (``dflash/model.py`` of its repository, 2026), speculators'
``DFlashSpeculatorConfig`` (models/dflash, 2026), and how vLLM 0.33 reads both. z-lab numbers a layer of the target by
its output, speculators by the layer that reads it, as we do. Neither repeats the target's embedding; speculators
writes the output rows of a reduced vocabulary. Headstart's own folders are z-lab's form, with a reduced vocabulary
allowed (``draft_vocab_size``, ``d2t``) and without output rows where they are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from headstart.errors import CheckpointError, ConfigError
from headstart.heads.block import MOST_SLOTS, BlockConfig, BlockHead
from headstart.heads.files import load_strictly, require_draft_ids
from headstart.heads.layer_format import describe_layers, require_embedding
from headstart.heads.speculators import SPECULATORS_VERSION, speculators_config
from headstart.heads.tables import TargetTables
from headstart.models.config import ModelConfig
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.rope import rope_from_hf

BlockFormat = Literal["dflash", "speculators"]
NESTED = "dflash_config"
"""Entry of z-lab's ``config.json`` by which it is told from others."""
LAYER_IDS = "aux_hidden_state_layer_ids"
_MOST_LAYERS = 64


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
    load_strictly(head, named, source)
    if embedding is not None:
        require_embedding(embedding, config, source)
    head.embedding = embedding
    require_draft_ids(head.target_ids, config.vocab_size, said, source)
    return head


def describe_block(head: BlockHead, kind: BlockFormat, verifier: str = "") -> dict[str, Any]:
    """``config.json`` of a head; ``verifier``: the target's name, for speculators.

    Raises:
        CheckpointError: speculators has no place for something that this head does.
    """
    config = head.config
    layer = describe_layers(config, "qwen3")
    if kind == "dflash":
        nested: dict[str, Any] = {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": [tap - 1 for tap in config.taps],
        }
        nested |= {"sample_from_anchor": True} if config.root_speaks else {}
        nested |= {"causal": True} if config.causal else {}
        nested |= {"markov_rank": config.markov_rank} if config.markov_rank else {}
        return {
            "architectures": ["DFlashDraftModel"],
            **layer,
            "draft_vocab_size": config.draft_vocab_size,
            "target_hidden_size": config.target_hidden_size,
            "block_size": config.block_size,
            NESTED: nested,
        }
    if config.causal or config.markov_rank:
        what = "causal blocks" if config.causal else "a Markov factor"
        raise CheckpointError(f"speculators has no DFlash heads with {what}, as this one has; use it as it is.")
    return {
        "speculators_model_type": "dflash",
        "speculators_version": SPECULATORS_VERSION,
        "architectures": ["DFlashSpeculator"],
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "block_size": config.block_size,
        LAYER_IDS: list(config.taps),
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": config.root_speaks,
        # vLLM 0.33 takes false for causal blocks in all layers, sliding or not.
        "sliding_window_non_causal": True,
        "speculators_config": speculators_config("dflash", config.slots, verifier),
        "transformer_layer_config": layer,
    }


def block_tensors(head: BlockHead, kind: BlockFormat, tables: TargetTables | None = None) -> dict[str, Tensor]:
    """A head's tensors by the names of a format.

    Args:
        tables: the target's, for speculators, whose files hold the output rows of a reduced vocabulary.
    """
    tensors = dict(head.state_dict())
    if head.embedding is not None:
        tensors["embed_tokens.weight"] = head.embedding
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
    inner = outer.within("transformer_layer_config" if kind == "speculators" else NESTED)
    if inner is None:
        raise CheckpointError(f"{source} has no entry 'transformer_layer_config'; fetch the head again.")
    layer, own = (inner, outer) if kind == "speculators" else (outer, inner)
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
            rope=rope_from_hf(layer, head_dim),
            num_layers=layer.integer("num_hidden_layers", maximum=_MOST_LAYERS),
            taps=_taps(kind, own, target),
            block_size=outer.integer("block_size", maximum=MOST_SLOTS + 1),
            mask_token_id=mask,
            norm_eps=layer.number("rms_norm_eps", 1e-6),
            attention_bias=layer.flag("attention_bias", False),
            own_output=own_output,
            root_speaks=own.flag("sample_from_anchor", False),
            markov_rank=own.integer("markov_rank", 0, minimum=0) if kind == "dflash" else 0,
            causal=kind == "dflash" and (own.flag("causal", False) or layer.flag("is_causal", False)),
            max_positions=layer.integer("max_position_embeddings", 2048, maximum=MAX_POSITIONS),
        )
    except ConfigError as error:
        raise CheckpointError(f"{source}: {error}") from error


def _taps(kind: BlockFormat, own: Fields, target: ModelConfig) -> tuple[int, ...]:
    """The layers whose inputs are read; the last may be the output of the last layer."""
    name = LAYER_IDS if kind == "speculators" else "target_layer_ids"
    numbers = own.token_ids(name)
    taps = numbers if kind == "speculators" else tuple(number + 1 for number in numbers)
    if not taps or max(taps) > target.num_layers:
        raise own.bad(name, list(numbers), f"layers of this target, which has {target.num_layers}")
    return taps


def _refuse_variants(kind: BlockFormat, outer: Fields, layer: Fields, own: Fields) -> None:
    """Heads of this family that compute something else."""
    usual = ["DFlashSpeculator" if kind == "speculators" else "DFlashDraftModel"]
    architectures = outer.get("architectures")
    if architectures not in (None, usual):
        raise outer.bad("architectures", architectures, f"{usual}: variants of DFlash are not supported")
    if outer.text("projector_type", "dflash") != "dflash":
        raise outer.bad("projector_type", outer.get("projector_type"), "dflash: Domino is not supported")
    types = layer.get("layer_types") or []
    if any(each != "full_attention" for each in types) or own.flag("use_swa", False):
        raise layer.bad("layer_types", types, "full_attention alone: sliding windows are not supported")
