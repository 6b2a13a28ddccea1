"""Where a draft model comes from: loaded by name and compared with the target, or made of the target's own layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from headstart.common.memory import require_room
from headstart.drafting.context import DraftContext, LoadedModel, TextEncoder
from headstart.drafting.head_files.loading import head_place, kind_in
from headstart.drafting.options import require
from headstart.drafting.second_models.draft_law import DraftLawOptions
from headstart.drafting.second_models.second_model import SecondModel
from headstart.drafting.second_models.translated_model import StringDrafts, TranslatedModel
from headstart.drafting.second_models.translation import SpellingTokenizer, Translation
from headstart.errors import ConfigError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.layer_selection import spread_layers
from headstart.passes.backend import Backend
from headstart.passes.runner import NUM_STATES, ModelRunner, cache_bytes_per_token, state_bytes

_ENOUGH = 0.5
"""Share of the target's tokens that a draft's law may be cut to."""


@runtime_checkable
class ComparableTokenizer(TextEncoder, Protocol):
    """A tokenizer that can tell whether another one gives its ids the same meaning."""

    def compatible_with(self, other: Any) -> str | None:
        """None, or the first difference."""
        ...


@dataclass(frozen=True)
class DraftModelOptions(DraftLawOptions):
    model: str | None = None
    """Alias, directory, hub id or file of the draft model; None: one is made of some of the target's layers."""
    layers: int | None = None
    """Without ``model``: how many of the target's layers, evenly spread, the first and the last among them;
    None: a third."""
    cache_tokens: int | None = None
    """Room of the draft model's cache; None: as many tokens as the target's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.layers is None or self.layers >= 1, f"layers is {self.layers}; it must be 1 or more.")
        require(
            self.layers is None or self.model is None,
            f"layers is {self.layers}, but the draft model is {self.model!r}; give one of the two.",
        )
        require(
            self.cache_tokens is None or self.cache_tokens >= 1,
            f"cache_tokens is {self.cache_tokens}; it must be 1 or more.",
        )

    @property
    def names_model(self) -> bool:
        """Whether it is said what to guess with."""
        return self.model is not None or self.layers is not None

    def check_files(self) -> None:
        """As ``options.check_files`` has it."""
        require(
            self.names_model,
            "the drafter has no draft model, and layers of the target guess next to nothing untrained; name a model "
            "with --draft-model (draft_model in Python), make one with headstart derive and headstart train, or give "
            "the option layers all the same.",
        )
        if self.model is not None:
            kind = kind_in(head_place(self.model))
            require(
                kind is None,
                f"draft model {self.model!r:.200} is a draft head; use the drafter that runs it (--drafter {kind}), or "
                "name a whole model.",
            )
            open_checkpoint(self.model)


@dataclass(frozen=True)
class TranslatedModelOptions(DraftModelOptions):
    """Of a drafter whose draft model may have another tokenizer than the target."""

    matching: Literal["auto", "tokens", "strings"] = "auto"
    """How guesses of a model with another tokenizer become the target's tokens. tokens: its law is cut to the tokens
    that both have; strings: its text is cut by the target's tokenizer. auto: tokens where both have at least half of
    the target's, else strings."""


def open_translated_model(
    context: DraftContext, options: TranslatedModelOptions
) -> tuple[SecondModel | TranslatedModel, StringDrafts | None]:
    """The draft model that the options name, whatever its tokenizer; and what drafts with it by strings, where tokens
    are not what it is matched by.

    Raises:
        ConfigError, CheckpointError: as ``open_second_model``; tokenizers that cannot be compared by what they spell.
    """
    if options.model is None:
        return open_second_model(context, options), None
    loaded = _load(context, options.model)
    difference = _difference(context, loaded)
    if difference is None:
        return second_model(context, loaded.backend, options.cache_tokens), None
    target, draft = context.tokenizer, loaded.tokenizer
    if not (isinstance(target, SpellingTokenizer) and isinstance(draft, SpellingTokenizer)):
        raise _another_vocabulary(options.model, difference)
    encoder = loaded.backend.config.encoder
    require(
        encoder is None or encoder.mel_bins is not None,
        f"draft model {options.model!r} has an encoder that would read the target's tokens as its own ({difference}); "
        "choose a draft model of the target's own family.",
    )
    draft_size = loaded.backend.config.vocab_size
    translation = Translation(target, draft, context.vocab_size, draft_size)
    by_tokens = translation.share >= _ENOUGH if options.matching == "auto" else options.matching == "tokens"
    require(
        not by_tokens or len(translation.draft_ids) > 0,
        f"draft model {options.model!r} has no token in common with the target; use matching=strings.",
    )
    how = (
        "guesses are drawn from these alone (token-level intersection)"
        if by_tokens
        else "what it writes is cut by the target's tokenizer (string-level matching), as point masses"
    )
    context.tell(
        f"Draft model {options.model} has another tokenizer than the target: {translation.share:.0%} of the target's "
        f"tokens are in both vocabularies; {how}."
    )
    model = second_model(context, loaded.backend, options.cache_tokens, draft_size)
    translated = TranslatedModel(model, translation)
    if by_tokens:
        return translated, None
    return translated, StringDrafts(translated, options.draft_tokens, options.min_confidence)


def open_second_model(context: DraftContext, options: DraftModelOptions) -> SecondModel:
    """The draft model that the options name, with a cache of its own.

    Raises:
        ConfigError: its vocabulary is another one than the target's, or it cannot be made of the target's layers.
        CheckpointError: its files are missing or damaged.
    """
    if options.model is None:
        backend = _lent_layers(context, options.layers)
    else:
        backend = load_draft_model(context, options.model)
    return second_model(context, backend, options.cache_tokens)


def second_model(
    context: DraftContext, backend: Backend, cache_tokens: int | None, vocab_size: int | None = None
) -> SecondModel:
    """A draft model beside the context's target.

    Args:
        cache_tokens: room of its cache; None: as many as the target's holds.
        vocab_size: that its logits are cut or padded to; None: the target's.
    """
    if cache_tokens is None:
        cache = context.require_runner().cache
        cache_tokens = cache.allocator.num_blocks * cache.block_size
    target = None if context.runner is None else context.runner.cache.states.num_states
    num_states = target or NUM_STATES
    require_room(
        cache_tokens * cache_bytes_per_token(backend, context.cache_type) + num_states * state_bytes(backend),
        f"a draft model's cache of {cache_tokens} tokens",
        "give a smaller cache_tokens, or fewer to the target's cache",
    )
    runner = ModelRunner(backend, cache_tokens, num_states=num_states, cache_type=context.cache_type)
    return SecondModel(runner, vocab_size or context.vocab_size)


def load_draft_model(context: DraftContext, name: str) -> Backend:
    """Load a model whose token ids mean what the target's do.

    Its head may be wider or narrower than the target's, as padding rows differ within model families.

    Raises:
        ConfigError, CheckpointError: as ``open_second_model``.
    """
    loaded = _load(context, name)
    difference = _difference(context, loaded)
    if difference is not None:
        raise _another_vocabulary(name, difference)
    return loaded.backend


def _load(context: DraftContext, name: str) -> LoadedModel:
    loaded = context.require_loader()(name)
    target = context.runner
    require(
        loaded.backend.config.encoder is None or target is None or target.backend.config.encoder is not None,
        f"draft model {name!r} has an encoder, which has nothing to read beside a target without one; choose a draft "
        "model without an encoder.",
    )
    return loaded


def _difference(context: DraftContext, loaded: LoadedModel) -> str | None:
    """The first difference between the target's token ids and those of another model; None: there is none."""
    tokenizer = context.tokenizer
    return tokenizer.compatible_with(loaded.tokenizer) if isinstance(tokenizer, ComparableTokenizer) else None


def _another_vocabulary(name: str, difference: str) -> ConfigError:
    return ConfigError(
        f"draft model {name!r} has another vocabulary than the target ({difference}); "
        "choose a draft model of the target's own family."
    )


def _lent_layers(context: DraftContext, count: int | None) -> Backend:
    available = context.require_runner().backend.config.num_layers
    if count is None:
        count = max(1, round(available / 3))
    require(count <= available, f"layers is {count}; the target has {available}.")
    return context.require_layers()(spread_layers(count, available))
