"""An engine of a loaded target, with the cache and the drafters that its options ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from headstart import __version__
from headstart.common.enumerations import CacheType, Precision, named
from headstart.common.phases import phase
from headstart.drafting.options import asked_rows
from headstart.drafting.registry import create_drafter, drafter_name, free_drafters, guesses_for_each
from headstart.drafting.text_store import TextStore
from headstart.engine.engine import Engine
from headstart.engine.pool import DrafterPool
from headstart.engine.schedule import Limits
from headstart.engine.sizing import cache_room, engine_limits, state_room
from headstart.entrypoints.engine_options import EngineOptions
from headstart.entrypoints.outline import context_length, source_length
from headstart.errors import ConfigError, printable
from headstart.loading.lending import cache_salt_of, draft_context, heads_for
from headstart.loading.model import Model
from headstart.passes.batch import PortableStorage
from headstart.passes.cache.paged import PagedCache
from headstart.passes.cache.prefix import PrefixIndex
from headstart.passes.cache.prefix_files import PART, PrefixFiles
from headstart.passes.runner import ModelRunner


class MadeEngine(NamedTuple):
    """An engine, and what was made on the way."""

    engine: Engine
    texts: TextStore
    """That its drafters copy from beyond a request's own; to be closed with it."""
    notices: tuple[str, ...]
    """What a user may want to know of how it was set up, a sentence each."""


def make_engine(
    target: Model, options: EngineOptions, drafter: str | type[Any], drafter_options: Mapping[str, object]
) -> MadeEngine:
    """An engine with its drafters.

    Args:
        drafter, drafter_options: as ``EngineOptions.check`` gives them.

    Raises:
        ConfigError, CheckpointError: an option does not fit the target, or a drafter cannot be made.
    """
    limits = _limits(target, options, drafter, drafter_options)
    keeps = options.prefix_caching or options.prefix_cache_dir is not None
    cache_type = CacheType(options.cache_type)
    kept_as = f"{target.backend.name}/{cache_type.value}"
    runner = ModelRunner(
        target.backend,
        cache_room(target.backend, limits, options.cache_tokens, cache_type),
        prefixes=PrefixIndex(kept_as) if keeps else None,
        num_states=state_room(target.backend, limits),
        cache_type=cache_type,
    )
    if options.prefix_cache_dir is not None:
        _keep_in_files(target, kept_as, runner.cache, Path(options.prefix_cache_dir), options.prefix_cache_bytes)
    notices = [sentence for sentence in (target.notice, target.elsewhere, target.kept, target.recorded) if sentence]
    if cache_type is not CacheType.AUTO:
        notices.append(
            f"Keys and values are kept in 8 bits (cache_type {cache_type.value}), which is LOSSY: answers are those of "
            "the target with such a cache, with guesses as without."
        )
    store = None if options.drafter_store is None else Path(options.drafter_store)
    texts = TextStore(
        store,
        options.drafter_store_bytes,
        "" if store is None else target.tokenizer.fingerprint(),
        target.config.vocab_size,
    )
    precision = None if options.draft_precision is None else named(Precision, "precision", options.draft_precision)

    def tell(sentence: str) -> None:
        notices.append(printable(sentence))

    surroundings = draft_context(target, runner, precision, cache_salt_of, tell, texts)
    surroundings = replace(surroundings, cache_type=CacheType(options.draft_cache_type))
    default, more = drafter_name(drafter), options.more_drafters
    with phase(f"Preparing the drafter {default}"):
        drafters = {default: create_drafter(drafter, surroundings, **drafter_options)}
        for name in map(drafter_name, (*free_drafters(), *heads_for(target).by_kind) if more is None else more):
            if name not in drafters:
                drafters[name] = create_drafter(name, surroundings)
    engine = Engine(runner, DrafterPool(drafters, default, options.tolerant), limits)
    return MadeEngine(engine, texts, tuple(notices))


def _keep_in_files(target: Model, kept_as: str, cache: PagedCache, directory: Path, most_bytes: int) -> None:
    storage = cache.storage
    if not isinstance(storage, PortableStorage):
        raise ConfigError(f"{target.name} is run by transformers' code, which has no prefix_cache_dir; leave it out.")
    if (needed := 2 * PART * (storage.block_nbytes + storage.state_nbytes)) > most_bytes:
        raise ConfigError(f"prefix_cache_bytes is {most_bytes}; blocks of {target.name} need {needed} or more.")
    cache.pool.files = PrefixFiles(directory, most_bytes, blocks_identity(target, kept_as), storage, cache.states)


def blocks_identity(target: Model, kept_as: str) -> str:
    """What blocks of a cache depend on beside layout, salt and tokens; ``kept_as``: ``PrefixIndex.model``."""
    return f"{__version__} {target.checkpoint.identity()} {target.config} {kept_as}"


def _limits(
    target: Model, options: EngineOptions, drafter: str | type[Any], drafter_options: Mapping[str, object]
) -> Limits:
    context = context_length(target.config, options.max_context)
    size, speculation = options.max_batch_size, options.requests_speculation()
    shared = max(speculation.draft_tokens or 0, speculation.tree_nodes or 0, asked_rows(drafter_options))
    guesses = max(shared, size * guesses_for_each(drafter, drafter_options))
    return engine_limits(context, size, options.max_rows, guesses, source_length(target.config, context))
