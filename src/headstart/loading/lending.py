"""What a loaded target lends its drafters: other models, some of its own layers, its tables, heads made for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from headstart.backends.native.packing import read_matrix
from headstart.common.enumerations import Precision
from headstart.drafting.base import SequenceView
from headstart.drafting.context import DraftContext, LoadedModel, SmallModel, one_scope
from headstart.drafting.head_files.shipped import (
    ShippedHeads,
    TargetIdentity,
    head_folders,
    shipped_heads,
    target_shape,
)
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.inner_sequence import request_of
from headstart.drafting.text_store import TextStore
from headstart.errors import ConfigError
from headstart.loading.beside import config_for, modules_beside, sound_modules
from headstart.loading.candidates import HeadAtHand, cached, heads_at_hand, place_of
from headstart.loading.model import Model, create_backend, create_encoder_decoder, load_model, weights_dtype
from headstart.loading.own_bits import lend_itself
from headstart.loading.reading import Reading
from headstart.loading.roles import MODULES, require_language_model, role_of
from headstart.loading.siblings import find_sibling
from headstart.models.aliases import ALIASES
from headstart.models.checkpoint import open_modules
from headstart.models.encoder_decoder_loading import load_encoder_decoder
from headstart.models.encoder_decoder_weights import select_decoder_layers
from headstart.models.layer_selection import select_layers
from headstart.models.locating import locate
from headstart.models.multi_token_modules import MultiTokenModules
from headstart.models.weight_loading import load_decoder, load_tables
from headstart.passes.backend import Backend
from headstart.passes.runner import ModelRunner


def draft_context(
    model: Model,
    runner: ModelRunner,
    draft_precision: Precision | None = None,
    scope_of: Callable[[SequenceView], Hashable] = one_scope,
    tell: Callable[[str], None] = lambda sentence: None,
    texts: TextStore | None = None,
) -> DraftContext:
    """The surroundings of drafters for ``model``; what they do not ask for is not loaded.

    Args:
        runner: of the model's backend.
        draft_precision: of models and layers that drafters run; None: the target's.
        scope_of: which requests learn from each other.
        tell: hears which head is used and why, and why one that is at hand is not; and what else users should know of
            a drafter.
        texts: that drafters may copy from beyond a request's own.
    """
    precision = model.precision if draft_precision is None else draft_precision

    def load(name: str) -> LoadedModel:
        require_language_model(name)
        draft = load_model(name, precision, device=model.device, reading=Reading(cuda_graphs=model.cuda_graphs))
        return LoadedModel(draft.backend, draft.tokenizer)

    def layers(chosen: Sequence[int]) -> Backend:
        _require_open(model)
        dtype = weights_dtype(precision)
        if model.config.encoder is not None:
            selected = select_decoder_layers(*load_encoder_decoder(model.checkpoint, dtype), chosen)
            return create_encoder_decoder(*selected, precision, model.device)
        selected_layers = select_layers(*load_decoder(model.checkpoint, dtype), chosen)
        return create_backend(*selected_layers, precision, model.device, model.cuda_graphs)

    # Several heads may ask.
    @cache
    def tables() -> TargetTables:
        _require_open(model)
        dtype = weights_dtype(model.precision)
        embedding, head = load_tables(model.checkpoint, dtype)
        return TargetTables(embedding, head, lambda matrix: read_matrix(matrix, dtype))

    # As may a drafter of drafters first.
    @cache
    def modules(name: str | None) -> MultiTokenModules | None:
        if not model.backend.opens_layers or model.config.encoder is not None:
            return None
        if name is not None and (role := role_of(locate(name))) not in (None, MODULES):
            raise ConfigError(f"{name} is {role}, which has no multi-token modules; name a checkpoint that has them.")
        checkpoint = model.checkpoint if name is None else open_modules(name)
        config = model.config if name is None else config_for(checkpoint, model.config)
        found = sound_modules(checkpoint, config, weights_dtype(model.precision))
        if found is None and name is None:
            refused = "The multi-token modules of {}, which lies beside the model, are not used: {}"
            path = checkpoint.path
            other = modules_beside(path, config, lambda file, why: tell(refused.format(file.name, why)), cached())
            if other is not None:
                tell(f"Multi-token modules of {other.name}, which lies {place_of(other, path)}, guess.")
                return modules(str(other))
        return found

    tell_once = cache(tell)

    @cache
    def at_hand() -> tuple[HeadAtHand, ...]:
        return tuple(heads_at_hand(model.checkpoint.path)) if model.backend.opens_layers else ()

    # A drafter of drafters asks first, then the drafter that runs the head.
    @cache
    def head(kind: str) -> tuple[Path, str] | None:
        heads = heads_for(model)
        found = heads.by_kind.get(kind)
        if found is not None:
            return found.directory, f"Drafting with the {kind} head that comes with Headstart, {found.why}"
        for each in at_hand():
            if each.kind in (kind, ""):
                if misfit := each.misfit(model.config):
                    named = f"The {kind} head in {each.where}" if each.kind else each.where
                    tell_once(f"{named} is not used: {misfit}")
                    continue
                return each.path, f"Drafting with the {kind} head in {each.where}, which fits it"
        if kind in heads.near:
            tell(heads.near[kind])
        elif missing := missing_heads(model.name):
            tell_once(missing)
        return None

    def sibling() -> SmallModel | None:
        if model.config.encoder is not None:
            return None
        return find_sibling(cached(), model.checkpoint, model.config, model.tokenizer)

    return DraftContext(
        vocab_size=model.config.vocab_size,
        runner=runner,
        tokenizer=model.tokenizer,
        load_model=load,
        lend_layers=layers,
        lend_itself=partial(lend_itself, model),
        lend_tables=tables,
        lend_modules=modules,
        find_head=head,
        find_sibling=sibling,
        digest=model.checkpoint.digest,
        tell=tell,
        scope_of=scope_of,
        texts=texts,
        target=model,
    )


def _require_open(model: Model) -> None:
    if not model.backend.opens_layers:
        raise ConfigError(
            f"{model.name} is run by transformers' own code, which lends no layers or tables; use a drafter that needs "
            "none, as suffix, ngram, or draft-model with another model."
        )


def identity_of(model: Model) -> TargetIdentity:
    """What heads are found by, and record of their target."""
    return TargetIdentity(target_shape(model.config), model.checkpoint.digest, model.tokenizer.fingerprint)


def heads_for(model: Model) -> ShippedHeads:
    """The heads that come with Headstart for a model; none where its tables cannot be lent."""
    if not model.backend.opens_layers:
        return ShippedHeads({}, {})
    return shipped_heads(identity_of(model))


def missing_heads(name: str) -> str | None:
    """What to install so that the model of this name is drafted for by a trained head; None if there is nothing."""
    package = ALIASES[name].heads if name in ALIASES else None
    if package is None or head_folders():
        return None
    return f"The trained heads for {name} are not installed; `pip install ./heads` in a checkout adds them ({package})."


@runtime_checkable
class Salted(Protocol):
    """A sequence of a request that shares prefixes with others of its salt only."""

    cache_salt: str


def cache_salt_of(sequence: SequenceView) -> str:
    """Keeps tenants apart: what a drafter learnt from one would show in the timing of another."""
    request = request_of(sequence)
    return request.cache_salt if isinstance(request, Salted) else ""
