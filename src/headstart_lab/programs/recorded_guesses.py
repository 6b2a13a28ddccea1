"""What drafters guess at each position of plainly decoded answers, kept in a file."""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from headstart.common.enumerations import VerifyRule
from headstart.drafting.abilities import Graded
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.inner_sequence import InnerSequence
from headstart.drafting.planning.merged import Guesses
from headstart.drafting.registry import create_drafter
from headstart.loading.model import load_model
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.prompts import by_turns_of_groups, encode_turns, read_prompts
from headstart_lab.workbench import Contender, Workbench

_ASKED = DraftBudget(nodes=16, depth=8, min_probability=0.02)
_LONGEST_PROMPT = 700
Thing = TypeVar("Thing")
Tree = list[list[int]]
"""Tokens, parents and grades of guesses, in topological order."""


@dataclass
class Voice:
    """One of the drafters."""

    name: str
    rates: list[float]
    """[grade] how often its guesses hold, where it says so."""
    reads: bool
    """Whether it reads the target's states."""


@dataclass
class Answer:
    """What was said to one prompt."""

    group: str
    prompt: int
    """Tokens of it."""
    tokens: list[int]
    guesses: list[list[Tree]]
    """[position][voice] before the token of that position was said."""


@dataclass
class Recording:
    """Answers of one model at one temperature."""

    temperature: float
    voices: list[Voice]
    answers: list[Answer]

    def write(self, path: Path) -> None:
        """As compressed JSON."""
        path.write_bytes(gzip.compress(json.dumps(asdict(self), separators=(",", ":")).encode(), mtime=0))

    @classmethod
    def read(cls, path: Path) -> Recording:
        """What ``write`` wrote."""
        known = json.loads(gzip.decompress(path.read_bytes()))
        voices, answers = [Voice(**each) for each in known["voices"]], [Answer(**each) for each in known["answers"]]
        return cls(known["temperature"], voices, answers)


class _Recorder:
    """A drafter that guesses nothing, and keeps what others would have."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters, self.guesses = drafters, list[list[Tree]]()
        self._views: dict[int, InnerSequence] = {}
        taps = {tap for each in drafters for tap in each.needs.taps}
        self.needs = TargetSignals(tuple(sorted(taps)), max(each.needs.top_ids for each in drafters))

    def begin(self, sequence: SequenceView) -> None:
        # Like the planner it asks for point masses.
        coupled = replace(sequence.speculation, verify=VerifyRule.COUPLED)
        view = self._views[sequence.id] = InnerSequence.of(sequence, speculation=coupled)
        for each in self.drafters:
            each.begin(view)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        for sequence in sequences:
            view = self._views[sequence.id]
            found = [Guesses.of(each.propose([view], [_ASKED])[0]) for each in self.drafters]
            self.guesses.append([[each.tokens, each.parents, each.grades] for each in found])
        return [DraftTree.empty() for _ in sequences]

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for each in self.drafters:
            each.observe([replace(outcome, sequence=self._views[outcome.sequence.id]) for outcome in outcomes])

    def end(self, sequence_id: int) -> None:
        self._views.pop(sequence_id, None)
        for each in self.drafters:
            each.end(sequence_id)


def record(name: str, drafters: Sequence[str], prompts: Path, temperature: float, tokens: int, most: int) -> Recording:
    """Decode up to ``most`` answers of ``tokens`` tokens plainly, and ask the drafters at each position."""
    model = load_model(name, "auto")
    bench = Workbench.of_model(model, 1, _LONGEST_PROMPT + tokens)
    opened = list[_Recorder]()

    def create(context: DraftContext) -> Drafter:
        opened.append(_Recorder([create_drafter(each, context) for each in drafters]))
        return opened[0]

    engine = bench.open(Contender("recorder", create))
    asked = [
        (each.group, encode_turns(model, each.turns[:1], [])) for each in by_turns_of_groups(read_prompts(prompts))
    ]
    asked = [(group, encoded) for group, encoded in asked if len(encoded) <= _LONGEST_PROMPT][:most]
    answers = list[Answer]()
    for group, encoded in with_time_left(asked, "answers"):
        params = SamplingParams(temperature=temperature, seed=len(answers), max_tokens=tokens, ignore_eos=True)
        sequence, opened[0].guesses = bench.sequence(encoded, params), []
        bench.decode(engine, sequence)
        answers.append(Answer(group, len(encoded), list(sequence.output), opened[0].guesses))
    voices = [
        Voice(each, list(drafter.grade_rates) if isinstance(drafter, Graded) else [], bool(drafter.needs.taps))
        for each, drafter in zip(drafters, opened[0].drafters, strict=True)
    ]
    return Recording(temperature, voices, answers)


def with_time_left(things: Sequence[Thing], name: str) -> Iterator[Thing]:
    """The things, while lines say how many of them are through and how long the others will take."""
    began = said = time.monotonic()
    for done, thing in enumerate(things, start=1):
        yield thing
        now = time.monotonic()
        if now - said > 2.0:
            left, said = (now - began) / done * (len(things) - done), now
            print(f"{done} of {len(things)} {name}, {left:.0f} s left", file=sys.stderr, flush=True)
