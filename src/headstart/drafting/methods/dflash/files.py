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
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headstart.drafting.heads.files import load_strictly, require_draft_ids
from headstart.drafting.heads.formats import MOST_SLOTS, SPECULATORS_KEY, UNBUILT, FoundHead, HeadFolder
from headstart.drafting.heads.gguf_heads import ARCHITECTURE as GGUF_KEY
from headstart.drafting.heads.gguf_heads import frequency_factors
from headstart.drafting.heads.layer_format import read_layers, require_embedding, windows_of
from headstart.drafting.methods.dflash import gguf_formats
from headstart.drafting.methods.dflash.head import KIND, BlockConfig, BlockHead
from headstart.drafting.methods.dflash.written_formats import (
    BEFORE,
    DEEPSPEC_ARCHITECTURE,
    LAYER_IDS,
    NESTED,
    SECOND_ARCHITECTURE,
    SPECULATORS_DSPARK,
    SPECULATORS_SECOND,
    BlockFormat,
    write,
)
from headstart.errors import CheckpointError, ConfigError
from headstart.models.config import ModelConfig
from headstart.models.families.fields import Fields

__all__ = ["find", "read", "write"]
SPECULATORS = {KIND: KIND, SPECULATORS_DSPARK: KIND, SPECULATORS_SECOND: KIND}
"""What speculators calls a type of heads -> its kind."""
_ARCHITECTURES = {
    "speculators": (
        "DFlashSpeculator",
        "DFlashDraftModel",
        "DSparkSpeculator",
        "DSparkDraftModel",
        "DFlash2Speculator",
        SECOND_ARCHITECTURE,
        DEEPSPEC_ARCHITECTURE,
    ),
    "dflash": ("DFlashDraftModel", "DSparkDraftModel", SECOND_ARCHITECTURE, "DFlash2BeamDraftModel"),
    "deepspec": (DEEPSPEC_ARCHITECTURE,),
}
"""What may be named; speculators' ``save_pretrained`` names the class, its converters the file's kind."""


def find(files: HeadFolder) -> FoundHead | None:
    """Whether a folder holds a block head."""
    description = files.description
    if description.get(GGUF_KEY) in gguf_formats.ARCHITECTURES:
        return FoundHead(GGUF_KEY, KIND)
    if SPECULATORS_KEY in description:
        return FoundHead("speculators", KIND) if str(description[SPECULATORS_KEY]) in SPECULATORS else None
    named = str(description.get("architectures"))
    if NESTED in description or "DFlash" in named:
        return FoundHead("dflash", KIND)
    return FoundHead("deepspec", KIND) if "DSpark" in named else None


def read(found: FoundHead, files: HeadFolder, tensors: Mapping[str, Tensor], target: ModelConfig) -> BlockHead:
    """See ``read_block``."""
    if found.form == GGUF_KEY:
        description = gguf_formats.describe_gguf(files, tensors)
        factors = frequency_factors(tensors, description["head_dim"], files.source)
        named = gguf_formats.gguf_tensors(tensors, files.source)
        head = read_block("dflash", description, named, target, files.source)
        head.config = replace(head.config, rope=replace(head.config.rope, factors=factors))
        return head
    kind: BlockFormat = found.form  # type: ignore[assignment]
    return read_block(kind, files.description, tensors, target, files.source)


def read_block(
    kind: BlockFormat, description: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelConfig, source: str
) -> BlockHead:
    """A head from its description and tensors.

    Raises:
        CheckpointError: an entry is missing, senseless, or asks for something that is not supported; the head is of
            another target's size; or tensors are missing, surplus or of another shape (all named).
    """
    named = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    # What older files of speculators have of the target besides.
    named = {name: tensor for name, tensor in named.items() if not name.startswith("verifier_")}
    embedding, said = named.pop("embed_tokens.weight", None), named.pop("t2d", None)
    config = _config(kind, description, "lm_head.weight" in named, target, source)
    if not config.reduced:
        # Equal vocabularies need no table; a file may hold one of zeros all the same.
        if "d2t" in named and named["d2t"].any():
            raise CheckpointError(f"{source} has a d2t that leads elsewhere, but a whole vocabulary; fetch it again.")
        named.pop("d2t", None)
    head = BlockHead(config)
    before = named.get(BEFORE)
    if config.reduced and before is not None and len(before) == config.vocab_size and "d2t" in named:
        ids = torch.arange(config.draft_vocab_size) + named["d2t"].long()
        named[BEFORE] = before[ids.clamp(0, config.vocab_size - 1)]
    load_strictly(head, named, source)
    if embedding is not None:
        require_embedding(embedding, config, source)
    head.embedding = embedding
    require_draft_ids(head.target_ids, config.vocab_size, said, source)
    return head


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
    shape = read_layers(layer, target, source)
    vocab_size, num_layers = shape["vocab_size"], shape["num_layers"]
    draft_vocab_size = outer.integer("draft_vocab_size", vocab_size)
    if draft_vocab_size > vocab_size:
        raise outer.bad("draft_vocab_size", draft_vocab_size, f"at most the vocabulary's {vocab_size}")
    where = own if own.get("mask_token_id") is not None else outer
    mask = where.integer("mask_token_id", minimum=0)
    if mask >= vocab_size:
        raise where.bad("mask_token_id", mask, f"a token of the vocabulary, below {vocab_size}")
    windows = windows_of(layer, num_layers, own)
    try:
        return BlockConfig(
            **shape,
            draft_vocab_size=draft_vocab_size,
            taps=_taps(kind, own, target, num_layers),
            # z-lab has it beside the mask since June 2026.
            block_size=(own if own.has("block_size") else outer).integer("block_size", maximum=MOST_SLOTS + 1),
            mask_token_id=mask,
            own_output=own_output,
            root_speaks=own.flag("sample_from_anchor", _usually_speaks(kind, outer)),
            markov_rank=own.integer("markov_rank", 0, minimum=0),
            selector_rank=own.integer("selector_rank", 0, minimum=0),
            selector_top=own.integer("selector_top_k", 0, minimum=0),
            conv_taps=own.integer("conv_kernel_size", 0, minimum=0, maximum=MOST_SLOTS),
            conv_group=own.integer("conv_group_size", 0, minimum=0),
            sinks=own.flag("attention_sink_bias", False),
            confidence=own.flag("enable_confidence_head", False),
            confidence_reads_token=own.flag("enable_confidence_head", False)
            and own.flag("confidence_head_with_markov", False),
            causal=kind == "dflash" and (own.flag("causal", False) or layer.flag("is_causal", False)),
            windows=windows,
            causal_windows=any(windows) and _has_causal_windows(kind, outer, own),
        )
    except ConfigError as error:
        raise CheckpointError(f"{source}: {error}") from error


def _within(fields: Fields, name: str) -> Fields:
    inner = fields.within(name)
    if inner is None:
        raise CheckpointError(f"{fields.source} has no entry {name!r}; fetch the head again.")
    return inner


def _taps(kind: BlockFormat, own: Fields, target: ModelConfig, num_layers: int) -> tuple[int, ...]:
    """Layers whose inputs are read; the last may be the last layer's output. By outputs, -1 is the embedding."""
    name = LAYER_IDS if kind == "speculators" else "target_layer_ids"
    by_output = kind != "speculators"
    numbers = own.get(name)
    if numbers is None and kind == "dflash":
        numbers = _usual_layers(target.num_layers, num_layers)
    if not isinstance(numbers, list) or any(type(number) is not int for number in numbers):
        raise own.bad(name, numbers, f"a list of layers of this target, which has {target.num_layers}")
    taps = tuple(number + by_output for number in numbers)
    if not taps or not 0 <= min(taps) <= max(taps) <= target.num_layers:
        raise own.bad(name, numbers, f"layers of this target, which has {target.num_layers}")
    return taps


def _usual_layers(target_layers: int, num_layers: int) -> list[int]:
    """What z-lab reads where a file does not say: from the second layer to the last but two, evenly spread."""
    if num_layers == 1:
        return [target_layers // 2]
    return [round(1 + place * (target_layers - 4) / (num_layers - 1)) for place in range(num_layers)]


def _usually_speaks(kind: BlockFormat, outer: Fields) -> bool:
    """Whether the root's row guesses where a file does not say."""
    return kind == "deepspec" or (kind == "speculators" and outer.get("architectures") == ["DSparkDraftModel"])


def _has_causal_windows(kind: BlockFormat, outer: Fields, own: Fields) -> bool:
    """Whether rows of a block see none behind them where there is a window: speculators trains so unless told."""
    if kind == "speculators":
        second = outer.get(SPECULATORS_KEY) == SPECULATORS_SECOND
        return not outer.flag("sliding_window_non_causal", second)
    return own.flag("causal_windows", False)


def _refuse_variants(kind: BlockFormat, outer: Fields, layer: Fields, own: Fields) -> None:
    """Heads of this family that compute something else, by what they lack here."""
    architectures = outer.get("architectures")
    names = architectures if isinstance(architectures, list) else [architectures]
    named = " ".join(map(str, names)).lower()
    projector = own.text("projector_type", outer.text("projector_type", ""))
    for word, lacking in UNBUILT.items():
        if word in named or word == projector or any(entry.startswith(f"{word}_") for entry in own.entries):
            raise CheckpointError(f"{outer.source} is a head of {lacking}, which is not built; use another head.")
    if architectures is not None and names not in [[each] for each in _ARCHITECTURES[kind]]:
        raise outer.bad("architectures", architectures, f"{_ARCHITECTURES[kind][0]}: variants of it are not supported")
    if own.integer("markov_rank", 0, minimum=0) and own.text("markov_head_type", "vanilla") != "vanilla":
        raise own.bad("markov_head_type", own.get("markov_head_type"), "vanilla: others are not supported")
    for fields, entry, neutral in (
        (own, "attention_value_scale", 1.0),
        (own, "output_multiplier", 1.0),
        (own, "input_embedding_scale", 1.0),
        (layer, "use_gemma_norm", False),
        (layer, "hidden_act", "silu"),
    ):
        if fields.get(entry) not in (None, neutral):
            raise fields.bad(entry, fields.get(entry), f"{neutral}: others are not supported")
