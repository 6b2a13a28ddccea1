"""How wide and how sure a head's trees should be: one text drafted again under many settings, without the target.

    python -m headstart_lab.programs.tune_head [PROMPTS.jsonl] \\
        --settings min_probability=0.1 min_probability=0.05,width=3

The target says each prompt's greedy answer once; its states are kept, and every setting drafts along them. Prints
tokens and rows a round, milliseconds of a draft, and what a round of that many rows would bring: tokens over plain
passes, if each further row takes ``--row-cost`` of one. ``drafter=NAME`` among the settings asks another drafter, whose
head must read the same layers. Drafts follow one another here, so their weights are nearer
than in decoding: the column is for choosing among settings, not for promises.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from headstart import LLM, SamplingParams
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView, SpeculationParams
from headstart.drafting.options import parse_drafter
from headstart.passes.batch import EncoderInput, TapStates
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.noise import SequenceNoise
from headstart_lab.bench.prompts import read_prompts

GREEDY = SamplingParams(temperature=0)


@dataclass
class Text:
    """One prompt and its answer, with the target's states."""

    tokens: list[int]
    prompt_length: int
    states: dict[int, list[Tensor]]
    """tap -> [hidden] of each position."""

    def outcome(self, sequence: Replayed, first: int, end: int) -> RoundOutcome:
        """Positions [first, end) were read."""
        hidden = TapStates.of({tap: torch.stack(states[first:end]) for tap, states in self.states.items()})
        rows = np.array(self.tokens[first:end], dtype=np.int32)
        return RoundOutcome(sequence, first, rows, DraftTree.empty(), hidden=hidden)


@dataclass
class Replayed:
    """A sequence as a drafter sees it."""

    tokens: list[int]
    prompt_length: int
    id: int = 0
    source: EncoderInput | None = None
    params: SamplingParams = GREEDY
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    noise: SequenceNoise = field(default_factory=lambda: SequenceNoise(0))


class Recorder:
    """A drafter that never guesses, and keeps what it is shown."""

    def __init__(self, taps: tuple[int, ...], drafter: Drafter) -> None:
        self.needs = drafter.needs
        self.taps = taps
        self.pass_seconds: list[float] = []
        self.text: Text | None = None

    def begin(self, sequence: SequenceView) -> None:
        self.text = Text(sequence.tokens, sequence.prompt_length, {tap: [] for tap in self.taps})

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return [DraftTree.empty()] * len(sequences)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            assert self.text is not None
            for tap in self.taps:
                self.text.states[tap] += torch.from_numpy(outcome.hidden[tap][outcome.kept_rows])
            if outcome.committed:
                self.pass_seconds.append(outcome.pass_seconds)

    def end(self, sequence_id: int) -> None:
        pass


@dataclass
class Replay:
    tokens: int = 0
    rows: list[int] = field(default_factory=list)
    """Of each round, the root's included."""
    seconds: list[float] = field(default_factory=list)
    """Of each round's draft."""

    def run(self, drafter: Drafter, text: Text, budget: DraftBudget) -> None:
        """Draft along the text, and take of each draft what the text says."""
        known = text.prompt_length
        sequence = Replayed(text.tokens[:known], known)
        drafter.begin(sequence)
        drafter.observe([text.outcome(sequence, 0, known - 1)])
        while known < len(text.tokens):
            start = time.perf_counter()
            (tree,) = drafter.propose([sequence], [budget])
            self.seconds.append(time.perf_counter() - start)
            self.rows.append(1 + len(tree))
            said, node = known, tree.child_with(ROOT, text.tokens[known])
            while node is not None and (said := said + 1) < len(text.tokens):
                node = tree.child_with(node, text.tokens[said])
            said = min(said + 1, len(text.tokens))
            sequence.tokens += text.tokens[known:said]
            outcome = text.outcome(sequence, known - 1, said - 1)
            start = time.perf_counter()
            drafter.observe([outcome])
            self.seconds[-1] += time.perf_counter() - start
            self.tokens += said - known
            known = said
        drafter.end(sequence.id)


def parse(setting: str) -> dict[str, object]:
    """``name=value`` pairs with commas between them; values are JSON or texts."""
    return parse_drafter(f"head:{setting.replace(',', ':')}")[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, nargs="?", help="left out: the package's own")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--drafter", default="eagle3")
    parser.add_argument("--settings", nargs="+", default=["min_probability=0.1"])
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--row-cost", type=float, default=0.075, help="of a further row, in plain passes")
    options = parser.parse_args()

    llm = LLM(options.model, drafter=options.drafter)
    needs = llm.engine.drafter.needs
    recorder = Recorder(needs.taps, llm.engine.drafter)
    llm.engine.drafters.drafters[llm.drafter_name] = recorder
    texts = []
    for prompt in read_prompts(options.prompts):
        llm.chat(
            [{"role": "user", "content": prompt.turns[0]}], SamplingParams(temperature=0, max_tokens=options.max_tokens)
        )
        assert recorder.text is not None
        texts.append(recorder.text)
    plain = median(recorder.pass_seconds)
    print(f"{sum(len(text.tokens) - text.prompt_length for text in texts)} tokens; a plain pass {plain * 1e3:.2f} ms")
    for setting in options.settings:
        given = {"drafter": options.drafter, **parse(setting)}
        drafter = LLM(llm.model, drafter=str(given.pop("drafter")), drafter_options=given).engine.drafter
        replay = Replay()
        for text in texts:
            replay.run(drafter, text, DraftBudget(nodes=64, depth=64))
        tokens, rows = replay.tokens / len(replay.rows), sum(replay.rows) / len(replay.rows)
        seconds = median(replay.seconds)
        speed = tokens / (1 + options.row_cost * (rows - 1) + seconds / plain)
        print(
            f"{setting}: {tokens:.3f} tokens, {rows:.2f} rows, draft {seconds * 1e3:.2f} ms, worth {speed:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
