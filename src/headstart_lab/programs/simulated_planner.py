"""The planner as it is, on recorded guesses, on a clock that moves only where something takes time."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView, SpeculationParams, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.planning.members import Member
from headstart.drafting.planning.parts import PlannerParts
from headstart.passes.batch import EncoderInput
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart_lab.programs.recorded_guesses import Answer, Recording, Voice

_NAMES = ("suffix", "recycling")
"""Drafters that need no model: the planner is opened with these, and given recorded ones in their place."""
_TIMED = (1, 2, 4, 8, 16, 32, 64)
_DEFAULT_FLOOR = 0.05
_LEVEL, _ALONE, _SHARED = 0.8, 0.7, 0.3
"""Of a head's first level: each further one, what one about no sequence would take, and each sequence's part."""
_READING, _READ_TOKEN, _HEARING, _FREE = 0.3, 0.007, 0.01, 0.003
"""A head that is first asked about a sequence, the same for each token of the prompt, and one that is shown what a
round said; a question to any other drafter (suffix and the default model's head on two AVX2 cores)."""
_BUDGET = DraftBudget(nodes=15, depth=8)


@dataclass(frozen=True)
class Scenario:
    """What things take, in plain passes, and how answers follow one another."""

    row: float = 0.3
    """Each row of a pass but the first."""
    question: float = 0.15
    """A head's first level for one sequence; others take next to nothing."""
    first: bool = False
    """Whether each answer is the first one of an engine."""
    tokens: int = 96
    """Most of an answer."""
    users: int = 1
    """That ask again as soon as they are answered."""
    noise: float = 0.0
    """What disturbs passes, on average, as a share of each; exponentially distributed."""
    seed: int = 0


@dataclass
class Said:
    """What became of an answer; where several were decoded together, its share of their time."""

    group: str
    plain: float
    """Seconds of plain decoding."""
    taken: float


@dataclass
class _Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class _Sequence:
    id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    answer: Answer
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    noise: SequenceNoise = field(default_factory=lambda: SequenceNoise(0))
    source: EncoderInput | None = None

    @property
    def said(self) -> int:
        return len(self.tokens) - self.prompt_length


class _Recorded:
    """Guesses as it did when it was recorded, where the answer is the same by then."""

    def __init__(self, voice: Voice, place: int, told: Scenario, clock: _Clock, book: Mapping[int, Answer]) -> None:
        self.needs = TargetSignals((2,)) if voice.reads else TargetSignals()
        self.grade_rates = voice.rates
        self._place, self._told, self._clock, self._book = place, told, clock, book
        self._reads, self._read = voice.reads, set[int]()

    def begin(self, sequence: SequenceView) -> None: ...

    def end(self, sequence_id: int) -> None:
        self._read.discard(sequence_id)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self._clock.now += _HEARING * self._reads * len(outcomes)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        trees = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            answer, said = self._book[sequence.id], len(sequence.tokens) - sequence.prompt_length
            if self._reads and sequence.id not in self._read:
                self._read.add(sequence.id)
                self._clock.now += _READING + _READ_TOKEN * answer.prompt
            trees.append(self._within(budget, *answer.guesses[said][self._place]))
        levels = max([int(tree.depths.max(initial=1)) for tree in trees])
        of_head = self._told.question * (1 + _LEVEL * (levels - 1)) * (_ALONE + _SHARED * len(trees))
        self._clock.now += of_head if self._reads else _FREE * len(trees)
        return trees

    def _within(self, budget: DraftBudget, tokens: list[int], parents: list[int], grades: list[int]) -> DraftTree:
        """Those that it would have made within this budget: of a head those that it would have found likely enough."""
        floor = _DEFAULT_FLOOR if budget.min_probability is None else budget.min_probability
        kept, reach, depth = {ROOT: ROOT}, {ROOT: 1.0}, {ROOT: 0}
        for guess, (parent, grade) in enumerate(zip(parents, grades, strict=True)):
            if len(kept) > budget.nodes or parent not in kept or depth[parent] >= budget.depth:
                continue
            likely = reach[parent] * (self.grade_rates[grade] if self._reads and self.grade_rates else 1.0)
            if likely >= floor:
                kept[guess], reach[guess], depth[guess] = len(kept) - 1, likely, depth[parent] + 1
        guesses = [guess for guess in kept if guess != ROOT]
        if not guesses:
            return DraftTree.empty()
        return DraftTree(
            np.array([tokens[guess] for guess in guesses], dtype=np.int32),
            np.array([kept[parents[guess]] for guess in guesses], dtype=np.int32),
            grades=np.array([grades[guess] for guess in guesses], dtype=np.int32),
        )


def play(recording: Recording, told: Scenario, parts: PlannerParts) -> list[Said]:
    """Say the recorded answers again, each as soon as one of the users is free; those that are left when no user has
    another one do not count. Clock, trial passes and rounds at once are not those of ``parts``."""
    rng, found, waiting = random.Random(told.seed), list[Said](), list(enumerate(recording.answers))[::-1]
    clock, book, drafter, live = _Clock(), dict[int, Answer](), None, dict[int, tuple[_Sequence, Said]]()
    params = SamplingParams(temperature=recording.temperature)
    each_plain = (1.0 + told.row * (told.users - 1)) * (1.0 + told.noise) / told.users
    while waiting or len(live) == told.users:
        began = clock.now
        if drafter is None or (told.first and not live):
            drafter = _planner(recording, told, parts, clock, book)
        while waiting and len(live) < told.users:
            number, answer = waiting.pop()
            book[number] = answer
            sequence = _Sequence(number, [0] * answer.prompt, answer.prompt, params, answer)
            live[number] = sequence, Said(answer.group, min(told.tokens, len(answer.tokens)) * each_plain, 0.0)
            drafter.begin(sequence)
            chunk = np.zeros(answer.prompt - 1, dtype=np.int32)
            drafter.observe([RoundOutcome(sequence, 0, chunk, DraftTree.empty())])
        sequences = [sequence for sequence, _ in live.values()]
        trees = drafter.propose(sequences, [_BUDGET] * len(live))
        rows = len(live) + sum(map(len, trees))
        disturbed = 1.0 + told.noise * rng.expovariate(1.0)
        seconds = (1.0 + told.row * (rows - 1)) * disturbed
        outcomes = [_verified(each, tree, told.tokens) for each, tree in zip(sequences, trees, strict=True)]
        drafter.observe([replace(each, pass_rows=rows, pass_seconds=seconds) for each in outcomes])
        for sequence in sequences:
            live[sequence.id][1].taken += (seconds + clock.now - began) / len(sequences)
        for sequence in [each for each in sequences if each.said >= min(told.tokens, len(each.answer.tokens))]:
            drafter.end(sequence.id)
            found.append(live.pop(sequence.id)[1])
    return found


def _planner(
    recording: Recording, told: Scenario, parts: PlannerParts, clock: _Clock, book: Mapping[int, Answer]
) -> AutoDrafter:
    def member(drafter: Drafter, bit: int) -> Member:
        place = bit.bit_length() - 1
        return parts.member(_Recorded(recording.voices[place], place, told, clock, book), bit)

    own = replace(parts, member=member, clock=clock, stretch=lambda *given: None)
    names = "+".join(_NAMES[: len(recording.voices)])
    made: AutoDrafter = type("Replayed", (AutoDrafter,), {"parts": own})(DraftContext(64), AutoDrafter.Options(names))
    for rows in _TIMED:
        made.costs.passes.add(rows, 1.0 + told.row * (rows - 1))
    return made


def _verified(sequence: _Sequence, tree: DraftTree, longest: int) -> RoundOutcome:
    """Walk a tree along the answer, and say what was walked and one token more."""
    root, node = len(sequence.tokens) - 1, ROOT
    accepted, committed = list[int](), list[int]()
    for token in sequence.answer.tokens[sequence.said : longest]:
        committed.append(token)
        child = tree.child_with(node, token)
        if child is None or sequence.said + len(committed) >= longest:
            break
        accepted.append(child)
        node = child
    rows = np.asarray([sequence.tokens[-1], *tree.tokens.tolist()], dtype=np.int32)
    sequence.tokens.extend(committed)
    return RoundOutcome(sequence, root, rows, tree, tuple(accepted), tuple(committed))


def speed(said: Sequence[Said]) -> float:
    """Times plain decoding's."""
    return sum([each.plain for each in said]) / sum([each.taken for each in said])


def worst_group(said: Sequence[Said]) -> float:
    """The speed of the group that is slowest."""
    groups: dict[str, list[Said]] = defaultdict(list)
    for each in said:
        groups[each.group].append(each)
    return min(map(speed, groups.values()))


def share_below(said: Sequence[Said], bound: float = 0.99) -> float:
    """Of answers that are slower than this."""
    return fmean([each.plain < bound * each.taken for each in said])
