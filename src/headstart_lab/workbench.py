"""One target, and an engine for each drafter over it: what every measurement runs on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from torch import Tensor

from headstart.common.enumerations import CacheType
from headstart.drafting.base import Drafter, SpeculationParams
from headstart.drafting.common_prefix import common_prefix
from headstart.drafting.context import DraftContext
from headstart.drafting.options import asked_rows, parse_drafter, pieces
from headstart.drafting.registry import available_drafters, checked_options, create_drafter
from headstart.engine.engine import Engine
from headstart.engine.outputs import FinishReason
from headstart.engine.schedule import Limits
from headstart.engine.sequence import Sequence as Decoded
from headstart.engine.sizing import state_room
from headstart.engine.stretch import UNSEEN_SECONDS
from headstart.entrypoints.outline import source_length
from headstart.errors import ConfigError, RequestError
from headstart.loading.lending import draft_context, heads_for
from headstart.loading.model import Model
from headstart.passes.backend import Backend
from headstart.passes.batch import EncoderInput
from headstart.passes.runner import ModelRunner, Span, SpanOutput, Wanted
from headstart.sampling.params import SamplingParams

PLAIN = "none"
"""The drafter of plain decoding, which everything is compared with."""
ALL = "all"
_READ_ROWS = 128


@dataclass(frozen=True)
class Contender:
    """A drafter to be measured, with its options."""

    name: str
    """As the user wrote it, options included."""
    create: Callable[[DraftContext], Drafter]
    optional: bool = False
    """Left out where it cannot be built, since it was not asked for by name."""

    @classmethod
    def parse(cls, text: str, optional: bool = False) -> Contender:
        """``name`` or ``name:option=value:option=value``; values are JSON, commas and colons included, or texts.

        Raises:
            ConfigError, CheckpointError: as ``checked_options``, where the drafter is asked for by name.
        """
        name, options = parse_drafter(text)
        if not optional:
            checked_options(name, more=options)
        return cls(text, lambda context: create_drafter(name, context, **options), optional)


def contenders(names: str) -> list[Contender]:
    """What a comma-separated list names, "all" being every registered drafter; plain decoding always comes first.

    Raises:
        ConfigError: the list names nothing, or an option is not written as one.
    """
    wanted = [name.strip() for name in pieces(names, ",") if name.strip()]
    if not wanted:
        raise ConfigError(f"drafters is {names!r}; give names with commas between them, or {ALL}.")
    named = dict.fromkeys(name for name in (PLAIN, *wanted) if name != ALL)
    others = [name for name in available_drafters() if name not in named] if ALL in wanted else []
    return [*map(Contender.parse, named), *(Contender.parse(name, optional=True) for name in others)]


def usual_contenders(model: Model, alone: bool = False) -> list[Contender]:
    """Plain decoding, the drafters that pay often enough to be measured unasked, and the heads that came with Headstart
    for this model.

    Args:
        alone: leave out those that run others.
    """
    usual = [info.name for info in available_drafters().values() if info.usual and not (alone and info.runs_others)]
    return [Contender.parse(name) for name in dict.fromkeys((PLAIN, *usual, *heads_for(model).by_kind))]


def most_rows(listed: Sequence[Contender]) -> int:
    """Guesses per sequence that a workbench needs room for, by the options of these."""
    return max((Limits.draft_rows, *(asked_rows(parse_drafter(each.name)[1]) for each in listed)))


Watch = Callable[[Span, int, Tensor], None]
"""Sees a span, the tokens cached before it, and its logits [wanted, vocab]."""


class WatchedRunner(ModelRunner):
    """A runner whose full passes can be watched."""

    _watch: Watch | None = None

    @contextmanager
    def watched(self, watch: Watch) -> Iterator[None]:
        """Inside this context ``watch`` is called with each span of each pass."""
        self._watch = watch
        try:
            yield
        finally:
            self._watch = None

    @property
    def runs_stretches(self) -> bool:
        return self._watch is None and super().runs_stretches

    def forward(
        self, spans: Sequence[Span], taps: tuple[int, ...] = (), num_layers: int | None = None
    ) -> list[SpanOutput]:
        outputs = super().forward(spans, taps, num_layers)
        if self._watch is not None and num_layers is None:
            shown = outputs
            if any(span.logits == "best" for span in spans):
                # The same pass again, with logits to show; decoding gets what it would get unwatched.
                visible = [replace(span, logits="all" if span.logits == "best" else span.logits) for span in spans]
                shown = super().forward(visible)
            for span, output in zip(spans, shown, strict=True):
                self._watch(span, self.cache.length(span.sequence_id), output.logits)
        return outputs


class Workbench:
    """A target with one cache, shared by the engines that are opened on it, which run one at a time.

    Where the target has an encoder, a prompt's tokens are what that reads, and its outputs begin with the start token.

    Args:
        backend: the target.
        surroundings: of the drafters, from this workbench's runner; None: they get the runner alone.
        eos_token_ids: what ends a sequence.
        max_context: prompt and output tokens of a sequence.
        max_sequences: sequences that decode together.
        draft_rows: guesses of each sequence at most.
        cache_type: how the target's keys and values are kept.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        surroundings: Callable[[ModelRunner], DraftContext] | None = None,
        eos_token_ids: tuple[int, ...] = (),
        max_context: int = 2048,
        max_sequences: int = 1,
        draft_rows: int = Limits.draft_rows,
        cache_type: CacheType = CacheType.AUTO,
    ) -> None:
        self.backend = backend
        self.eos_token_ids = eos_token_ids
        # For each sequence as many guesses, and as much of its prompt in a pass, as it would have alone.
        self.limits = Limits(
            max_sequences,
            max_rows=Limits.max_rows * max_sequences,
            draft_rows=draft_rows * max_sequences,
            max_context=max_context,
            max_source=source_length(backend.config, max_context),
        )
        source = min(self.limits.max_source, max_context)
        room = max_sequences * (max_context + source) + self.limits.draft_rows
        self.runner = WatchedRunner(backend, room, num_states=state_room(backend, self.limits), cache_type=cache_type)
        bare = DraftContext(backend.config.vocab_size, self.runner)
        self._context = bare if surroundings is None else surroundings(self.runner)
        self._ids = count()
        self.on_tokens: Callable[[int], None] = lambda tokens: None
        """Called while sequences decode, with the tokens that they have said since."""

    @classmethod
    def of_model(
        cls,
        model: Model,
        max_sequences: int = 1,
        max_context: int = 4096,
        draft_rows: int = Limits.draft_rows,
        cache_type: CacheType = CacheType.AUTO,
    ) -> Workbench:
        """A workbench for a loaded model. Draft models are computed in the target's precision."""
        return cls(
            model.backend,
            surroundings=lambda runner: draft_context(model, runner),
            eos_token_ids=model.eos_token_ids,
            max_context=min(model.config.max_positions, max_context),
            max_sequences=max_sequences,
            draft_rows=draft_rows,
            cache_type=cache_type,
        )

    def open(self, contender: Contender, wrap: Callable[[Drafter], Drafter] | None = None) -> Engine:
        """An engine with a fresh drafter, in ``wrap`` if given.

        Raises:
            ConfigError, CheckpointError: the drafter cannot be built (as ``create_drafter``).
        """
        drafter = contender.create(self._context)
        return Engine(self.runner, wrap(drafter) if wrap else drafter, self.limits)

    def sequence(
        self,
        tokens: Sequence[int],
        params: SamplingParams,
        speculation: SpeculationParams | None = None,
        sample: int = 0,
        source: EncoderInput | None = None,
    ) -> Decoded:
        """A request of token ids. ``params`` names a seed if it samples. ``source``: as for ``steps_after``."""
        begun, read = self._begun(tokens, source)
        return Decoded.of(
            next(self._ids),
            begun,
            params,
            vocab_size=self.backend.config.vocab_size,
            end_tokens=self.eos_token_ids,
            seed=params.seed or 0,
            sample=sample,
            kernels=self.backend.kit.rows,
            max_tokens=self.limits.max_context,
            speculation=speculation or SpeculationParams(),
            source=read,
        )

    def full_rounds(
        self, engine: Engine, sequences: Sequence[Decoded], together: int
    ) -> Generator[tuple[int, int, float], None, None]:
        """Decode sequences, ``together`` at a time: where one ends, the next begins. Ends with the last that can
        begin; what then still decodes is given up, as it is where the caller stops.

        Yields:
            Rounds that were run at once, in all of which all sequences decoded and none read its prompt; mostly one.
            Their number, tokens and seconds.

        Raises:
            RequestError: one of them cannot be served.
        """
        waiting, running = deque(sequences), list[Decoded]()
        try:
            while len(running) + len(waiting) >= together:
                while len(running) < together:
                    running.append(waiting.popleft())
                    engine.add(running[-1])
                full, before = all(each.num_output for each in running), sum(each.num_output for each in running)
                rounds, start = running[0].stats.rounds, time.perf_counter()
                engine.step(UNSEEN_SECONDS)
                if full:
                    seconds, said = time.perf_counter() - start, sum(each.num_output for each in running) - before
                    yield running[0].stats.rounds - rounds, said, seconds
                self.on_tokens(sum(each.num_output for each in running) - before)
                running = [each for each in running if not each.finished]
        finally:
            for each in running:
                engine.abort(each)

    def decode(self, engine: Engine, *sequences: Decoded) -> None:
        """Decode sequences together, to their end.

        Raises:
            RequestError: one of them cannot be served, or failed.
        """
        try:
            for sequence in sequences:
                engine.add(sequence)
            said = 0
            while not engine.idle:
                engine.step(UNSEEN_SECONDS)
                before, said = said, sum(each.num_output for each in sequences)
                self.on_tokens(said - before)
        finally:
            for sequence in sequences:
                engine.abort(sequence)
        for sequence in sequences:
            if sequence.finish_reason is FinishReason.ERROR:
                raise RequestError(sequence.error or "a sequence failed.")

    def fits(self, tokens: Sequence[int], max_tokens: int) -> bool:
        """Whether there is room for a prompt and this many output tokens."""
        if self.limits.max_source:
            return len(tokens) <= min(self.limits.max_source, self.limits.max_context - max_tokens)
        return len(tokens) + max_tokens <= self.limits.max_context

    def read(self, tokens: Sequence[int], first: int = 0) -> Iterator[Tensor]:
        """The target's logits [vocab] after the tokens from place ``first`` on, read in chunks like a prompt."""
        if self.limits.max_source:
            raise ConfigError("a text alone tells nothing of a model with an encoder; name a model without one.")
        with self._cached(None) as sequence_id:
            self._read_silently(sequence_id, tokens[:first])
            for start in range(first, len(tokens), _READ_ROWS):
                yield from self._pass(sequence_id, tokens[start : start + _READ_ROWS], "all")

    def steps_after(
        self, tokens: Sequence[int], paths: Sequence[Sequence[int]], source: EncoderInput | None = None
    ) -> Iterator[Tensor]:
        """The logits [vocab] after ``tokens`` and each of the paths, one row a pass: what plain decoding computes.

        ``source``: what the target's encoder reads, ``tokens`` being the decoder's; None: ``tokens`` are a prompt.
        """
        begun, read = self._begun(tokens, source)
        with self._cached(read) as sequence_id:
            *before, root = begun
            self._read_silently(sequence_id, before)
            cached: tuple[int, ...] = ()
            for path in paths:
                wanted = (root, *path)
                # What a path shares with the one before it is not computed again.
                kept = common_prefix(cached, wanted, len(path))
                held = self.runner.cache.truncate(sequence_id, len(before) + kept)
                self._read_silently(sequence_id, [*before, *wanted][held : len(before) + kept])
                for token in wanted[kept:]:
                    (logits,) = self._pass(sequence_id, [token], "last")
                yield logits
                cached = wanted

    def _begun(self, tokens: Sequence[int], source: EncoderInput | None) -> tuple[Sequence[int], EncoderInput | None]:
        """The decoder's tokens, and what the encoder reads, of a prompt."""
        encoder = self.backend.config.encoder
        if encoder is None or source is not None:
            return tokens, source
        if encoder.start_token_id is None or encoder.mel_bins is not None:
            raise ConfigError(
                "this model cannot be measured: its encoder reads audio, or its files name no decoder_start_token_id."
            )
        first = () if encoder.forced_first_token_id is None else (encoder.forced_first_token_id,)
        read = EncoderInput(tuple(tokens), foreign=encoder.vocab_size is not None)
        return [encoder.start_token_id, *first], read

    @contextmanager
    def _cached(self, source: EncoderInput | None) -> Iterator[int]:
        sequence_id = next(self._ids)
        self.runner.cache.add(sequence_id, source=source)
        self.runner.encode(sequence_id)
        try:
            yield sequence_id
        finally:
            self.runner.cache.remove(sequence_id)

    def _read_silently(self, sequence_id: int, tokens: Sequence[int]) -> None:
        for start in range(0, len(tokens), _READ_ROWS):
            self._pass(sequence_id, tokens[start : start + _READ_ROWS], "none")

    def _pass(self, sequence_id: int, tokens: Sequence[int], logits: Wanted) -> Tensor:
        with self.runner.cache.reserve({sequence_id: len(tokens)}, final={sequence_id}):
            (output,) = self.runner.forward([Span.chain(sequence_id, tokens, logits)])
            self.runner.cache.commit(sequence_id, range(len(tokens)))
        return output.logits
