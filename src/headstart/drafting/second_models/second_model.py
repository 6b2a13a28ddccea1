"""A second model beside the target, and how it keeps up with the sequences it drafts for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from headstart.drafting.base import SequenceView
from headstart.drafting.common_prefix import common_prefix
from headstart.drafting.second_models.draft_law import fit_vocabulary
from headstart.models.config import ModelConfig
from headstart.models.encoder_decoder import EncoderConfig
from headstart.passes.batch import EncoderInput
from headstart.passes.cache.blocks import Room
from headstart.passes.runner import ModelRunner, Span, SpanOutput


class SecondModel:
    """Reads sequences into a cache of its own, and only when a draft needs them.

    What the cache holds of a sequence is compared with the sequence itself: the longest common prefix stays, the rest
    is read. So rejected drafts, rounds without a draft and preemptions need no care of their own. When blocks run out,
    the sequences that were used least recently lose theirs.

    Args:
        runner: the model and its cache, not shared with anything else.
        vocab_size: of the target; logits are cut or padded to it.
        rows_per_pass: most rows of a pass that reads prompts.
    """

    def __init__(self, runner: ModelRunner, vocab_size: int, rows_per_pass: int = 512) -> None:
        self.runner = runner
        self._cache = runner.cache
        self._vocab_size = vocab_size
        self._rows_per_pass = rows_per_pass
        self._tokens: OrderedDict[int, list[int]] = OrderedDict()
        """id -> the tokens in the cache; the sequence used last stands last."""

    @property
    def nbytes(self) -> int:
        """Of weights and cache."""
        return self.runner.backend.nbytes + self._cache.storage.nbytes

    @property
    def encoder_seconds(self) -> float:
        """Spent in its encoder so far, where it has one."""
        return self.runner.encoder_seconds

    def cached(self, sequence_id: int) -> int:
        """Tokens of the sequence in the cache."""
        return len(self._tokens.get(sequence_id, ()))

    def catch_up(self, sequences: Sequence[SequenceView]) -> dict[int, Tensor]:
        """Read each sequence up to its root: id -> logits [vocab] after it.

        Left out are sequences beyond this model's context or vocabulary, and those that the cache has no room for.
        """
        return self.read_all(self.unread(sequences))

    def read(self, tokens: Mapping[int, int]) -> dict[int, Tensor]:
        """Read one more token of each sequence in one pass: id -> logits [vocab] after it, where there is room."""
        spans = self.fitting([Span.chain(sequence_id, [token], "last") for sequence_id, token in tokens.items()])
        with self.passing(spans) as outputs:
            for span in spans:
                self.keep(span, [0])
        return {span.sequence_id: self.fit(output.logits[-1]) for span, output in zip(spans, outputs, strict=True)}

    def fitting(self, spans: Sequence[Span], final: bool = False) -> list[Span]:
        """The spans that fit into cache and context, and whose tokens the model knows; ``final``: all of their rows
        will be kept."""
        config = self.runner.backend.config
        sensible = {
            span.sequence_id: span
            for span in spans
            if self.cached(span.sequence_id) + span.longest_path <= config.max_positions
            and int(span.tokens.max()) < config.vocab_size
        }
        return [sensible[i] for i in self.with_room({i: len(span) for i, span in sensible.items()}, final)]

    def with_room(self, rows: Mapping[int, int], final: bool = False) -> list[int]:
        """The sequences whose rows fit into the cache together, in order; ``final``: all rows will be kept.

        Sequences that are not named give up their blocks where these are needed.
        """
        fitting: list[int] = []
        needed = Room()
        for sequence_id, count in rows.items():
            self._tokens.move_to_end(sequence_id)
            own = self._cache.needs(sequence_id, count, final)
            if self._free(needed + own, rows):
                needed += own
                fitting.append(sequence_id)
        return fitting

    @contextmanager
    def passing(self, spans: Sequence[Span], final: bool = False) -> Iterator[list[SpanOutput]]:
        """The outputs of one pass over spans that fit; rows that were not kept by the end are rolled back. ``final``:
        all of them are kept."""
        if not spans:
            yield []
            return
        rows = {span.sequence_id: len(span) for span in spans}
        with self._cache.reserve(rows, rows if final else ()):
            yield self.runner.forward(spans)

    def keep(self, span: Span, rows: Sequence[int]) -> None:
        """Make rows of a span of this pass the sequence's next tokens (ascending, each the parent of the next)."""
        self._cache.commit(span.sequence_id, rows)
        self._tokens[span.sequence_id] += span.tokens[list(rows)].tolist()

    def fit(self, logits: Tensor) -> Tensor:
        """[..., draft vocab] -> [..., vocab]."""
        return fit_vocabulary(logits, self._vocab_size)

    def roll_back(self, sequence: SequenceView) -> None:
        """Keep the longest prefix that agrees with the sequence, without its root. Unknown sequences are ignored."""
        cached = self._tokens.get(sequence.id)
        if cached is not None:
            length = common_prefix(cached, sequence.tokens, len(sequence.tokens) - 1)
            del cached[self._cache.truncate(sequence.id, length) :]

    def fork(self, source_id: int, sequence_id: int) -> None:
        """A sequence begins with what the cache holds of another one. Unknown sources are ignored."""
        cached = self._tokens.get(source_id)
        if cached is not None:
            self.forget(sequence_id)
            self._cache.fork(source_id, sequence_id)
            self._tokens[sequence_id] = cached.copy()

    def forget(self, sequence_id: int) -> None:
        """Release a sequence's blocks. Unknown ids are ignored."""
        if self._tokens.pop(sequence_id, None) is not None:
            self._cache.remove(sequence_id)

    def unread(self, sequences: Sequence[SequenceView]) -> dict[int, list[int]]:
        """The tokens of each sequence that are not in the cache, its root included; sequences left out as in
        ``catch_up``."""
        known = [sequence for sequence in sequences if self._knows(sequence, sequences)]
        for sequence in known:
            self.roll_back(sequence)
        spans = [Span.chain(sequence.id, sequence.tokens[self.cached(sequence.id) :]) for sequence in known]
        return {span.sequence_id: span.tokens.tolist() for span in self.fitting(spans, final=True)}

    def _knows(self, sequence: SequenceView, others: Sequence[SequenceView]) -> bool:
        """Whether the sequence is in the cache, if need be from now on: a model with an encoder reads its input then,
        for which there may be no room."""
        if sequence.id in self._tokens:
            return True
        encoder = self.runner.backend.config.encoder
        source = None if encoder is None else sequence.source
        if encoder is not None and (source is None or not _reads(encoder, source, self.runner.backend.config)):
            return False
        # What others of this call hold stays: they are about to be read.
        if not self._free(Room(self._cache.memory_blocks_needed(source)), {other.id for other in others}):
            return False
        self._cache.add(sequence.id, source=source)
        self._tokens[sequence.id] = []
        self.runner.encode(sequence.id)
        return True

    def read_all(self, unread: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        """Read these tokens, which fit into the cache, in one or more passes: id -> logits [vocab] after them."""
        waiting = dict(unread)
        logits: dict[int, Tensor] = {}
        while waiting:
            spans = self._chunks(waiting)
            with self.passing(spans, final=True) as outputs:
                for span, output in zip(spans, outputs, strict=True):
                    self.keep(span, range(len(span)))
                    rest = waiting.pop(span.sequence_id)[len(span) :]
                    if rest:
                        waiting[span.sequence_id] = rest
                    else:
                        logits[span.sequence_id] = self.fit(output.logits[-1])
        return logits

    def _chunks(self, waiting: Mapping[int, Sequence[int]]) -> list[Span]:
        """The spans of the next pass: sequences in order until its rows are used up; the last one may be cut."""
        spans: list[Span] = []
        room = self._rows_per_pass
        for sequence_id, tokens in waiting.items():
            if room > 0:
                chunk = tokens[:room]
                spans.append(Span.chain(sequence_id, chunk, "last" if len(chunk) == len(tokens) else "none"))
                room -= len(chunk)
        return spans

    def _free(self, needed: Room, used: Container[int]) -> bool:
        """Whether so much is free. If not, sequences that are not ``used`` are forgotten to free it."""
        cache = self._cache
        idle = [sequence_id for sequence_id in self._tokens if sequence_id not in used]
        for sequence_id in idle if cache.size.holds(needed) else ():
            if cache.free.holds(needed):
                break
            self.forget(sequence_id)
        return cache.free.holds(needed)


def _reads(encoder: EncoderConfig, source: EncoderInput, config: ModelConfig) -> bool:
    """Whether an encoder knows its input's tokens or features and has a place for each."""
    if source.positions > encoder.max_positions:
        return False
    if source.features is not None:
        return encoder.mel_bins == len(source.features)
    same_kind = source.foreign == (encoder.vocab_size is not None)
    return encoder.mel_bins is None and same_kind and max(source.tokens) < (encoder.vocab_size or config.vocab_size)
