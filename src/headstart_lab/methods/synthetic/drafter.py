"""Guesses that are right at chosen rates, for load tests: how fast would this server be with a drafter as good as that?

vLLM's synthetic mode (``rejection_sample_method: synthetic``) and llama.cpp's accept guesses by lot, right or wrong,
which changes what the model says. Here the guesses are made right by lot, and verified like any others: the answer is
decoded once plainly and recorded, and whoever asks the same again gets guesses from the record. The law is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from headstart.drafting.abilities import bytes_of
from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext, ScopedMemory
from headstart.drafting.history import HistoryDrafter
from headstart.drafting.options import require
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.noise import Stream
from headstart.sampling.params import SamplingParams
from headstart_lab.stand_ins import stand_in

_OF_THE_ANSWER = ("max_tokens", "stop", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens")
_OF_THE_REPLY = ("n", "seed", "logprobs", "prompt_logprobs", "truncate_prompt_tokens")
_OF_DRAWS = ("temperature", "top_p", "top_k", "min_p")
_OF_THE_LAW = tuple(each.name for each in fields(SamplingParams) if each.name not in (*_OF_THE_ANSWER, *_OF_THE_REPLY))
"""Parameters that decide which token comes next."""


@dataclass(frozen=True)
class SyntheticOptions:
    rates: str | float | list | None = None  # type: ignore[type-arg]
    """Chance that the first, the first two, ... guesses of a round are right, as 0.8,0.6,0.5: vLLM's
    synthetic_acceptance_rates. They must be given."""
    cost: str | None = None
    """The drafter whose time each draft takes: eagle3, p-eagle, dflash, mtp or self, run with random weights of the
    right shape for the target, or draft-model=0.5B; what it guesses is thrown away. None: drafts take no time."""
    recorded_tokens: int = 1 << 20
    """Tokens of answers that are remembered, in each scope: about 8 bytes each."""

    def __post_init__(self) -> None:
        require(self.recorded_tokens >= 1, f"recorded_tokens is {self.recorded_tokens}; it must be 1 or more.")
        fall = [1.0, *self._numbers()]
        valid = len(fall) > 1 and all(0 <= after <= before for before, after in pairwise(fall))
        require(
            valid or self.rates is None,
            f"rates is {self.rates!r:.60}; give numbers from 1 down to 0, none above the one before it.",
        )

    @property
    def chances(self) -> tuple[float, ...]:
        """[depth] that a guess is right where those before it are."""
        return tuple(after / before if before else 0.0 for before, after in pairwise([1.0, *self._numbers()]))

    @property
    def guesses_each(self) -> int:
        """As ``options.GuessesForEach`` has it: with fewer, the rates would not be met."""
        return len(self._numbers())

    def _numbers(self) -> list[float]:
        given = self.rates.split(",") if isinstance(self.rates, str) else self.rates
        try:
            return [float(rate) for rate in (given if isinstance(given, list) else [given])]  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return []


class RecordedText:
    """What a sequence is going to say, as far as an earlier one has said it."""

    def __init__(self, prompt_length: int, record: Sequence[int]) -> None:
        self._record = record
        self._place = -prompt_length
        """In the record; below 0: in the prompt."""
        self._follows = True

    def extend(self, tokens: Sequence[int]) -> None:
        """Follow further tokens, the prompt's first."""
        said = tokens[max(-self._place, 0) :]
        start = max(self._place, 0)
        self._place += len(tokens)
        self._follows = self._follows and list(self._record[start : start + len(said)]) == list(said)

    def rest(self, limit: int) -> Sequence[int]:
        """The next tokens; none where the sequence went another way, or further."""
        return self._record[self._place : self._place + limit] if self._follows and self._place >= 0 else []


class SyntheticDrafter(HistoryDrafter[RecordedText]):
    """A chain whose guesses are right at chosen rates, from answers to the same request before."""

    Options = SyntheticOptions

    def __init__(self, context: DraftContext, options: SyntheticOptions) -> None:
        super().__init__()
        require(bool(options.chances), "this drafter guesses right at rates that you choose; give rates=0.8,0.6, say.")
        length = len(options.chances)
        self._cost = None if options.cost is None else stand_in(context, options.cost, length)
        self._vocab_size = context.vocab_size
        self._chances = options.chances
        self._scope_of = context.scope_of
        self._records = ScopedMemory(lambda: Records(options.recorded_tokens))

    @property
    def needs(self) -> TargetSignals:  # type: ignore[override]
        """Those of the drafter whose time is taken."""
        return TargetSignals() if self._cost is None else self._cost.needs

    @property
    def nbytes(self) -> int:
        """See ``Sized``."""
        return 0 if self._cost is None else bytes_of(self._cost)

    def begin(self, sequence: SequenceView) -> None:
        super().begin(sequence)
        if self._cost is not None:
            self._cost.begin(sequence)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if self._cost is not None:
            self._cost.propose(sequences, budgets)
        return super().propose(sequences, budgets)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        super().observe(outcomes)
        if self._cost is not None:
            self._cost.observe(outcomes)

    def new_state(self, sequence: SequenceView) -> RecordedText:
        prediction = sequence.speculation.prediction
        told = () if isinstance(prediction, str) else prediction
        known = self._records[self._scope_of(sequence)].get(_request(sequence))
        return RecordedText(sequence.prompt_length, told if known is None else known)

    def draft(self, state: RecordedText, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        chances = self._chances
        right = state.rest(min(len(chances), budget.nodes, budget.depth))
        guesses, misled = [], False
        for depth, token in enumerate(right):
            # Its lot is the drafter's own noise, which decides nothing else where guesses are point masses.
            lot = sequence.noise.uniform(Stream.DRAFT, len(sequence.tokens) - 1, depth)
            misled = misled or lot >= chances[depth]
            guesses.append((token + 1) % self._vocab_size if misled else token)
        return DraftTree.chain(guesses)

    def end(self, sequence_id: int) -> None:
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._records[self._scope_of(sequence)].keep(_request(sequence), sequence.tokens[sequence.prompt_length :])
        super().end(sequence_id)
        if self._cost is not None:
            self._cost.end(sequence_id)


class Records:
    """Answers to requests, of bounded length in all; those kept last stay."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._answers: OrderedDict[Hashable, list[int]] = OrderedDict()
        self._tokens = 0

    def get(self, request: Hashable) -> Sequence[int] | None:
        """The answer, or its beginning; None: nobody asked."""
        return self._answers.get(request)

    def keep(self, request: Hashable, answer: list[int]) -> None:
        """An answer; the longer one where there is one already."""
        answer, known = answer[: self._max_tokens], self._answers.get(request, [])
        if len(answer) <= len(known):
            return
        self._answers[request] = answer
        self._answers.move_to_end(request)
        self._tokens += len(answer) - len(known)
        while self._tokens > self._max_tokens:
            self._tokens -= len(self._answers.popitem(last=False)[1])


def _request(sequence: SequenceView) -> Hashable:
    """What makes two requests have one answer, whatever their length."""
    params = sequence.params
    drawn = None if params.greedy else (sequence.noise.seed, sequence.noise.sample)
    # As text, since some are mappings.
    law = tuple(repr(getattr(params, name)) for name in _OF_THE_LAW if not params.greedy or name not in _OF_DRAWS)
    return tuple(sequence.tokens[: sequence.prompt_length]), drawn, law
