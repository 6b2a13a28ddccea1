"""Runs recorded round by round: when what was computed (the paper's figure 5), what became of guesses (figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.drafting.abilities import RunsAnEncoder
from headstart.engine.engine import Engine
from headstart.engine.trace import RoundTrace, Trace
from headstart.passes.draft_tree import ROOT
from headstart.sampling.params import SamplingParams
from headstart.text.detokenizer import IncrementalDetokenizer
from headstart.text.tokenizer import Tokenizer
from headstart_lab.workbench import Contender, Workbench

_WARM_UP = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@dataclass(frozen=True)
class TracedRound:
    """One round on the clock; seconds count from the first call of an encoder, or from the first round."""

    start: float
    draft_encoder: float
    """Seconds of the draft's encoder, which runs when the first guess is wanted."""
    draft: float
    """Seconds of the drafter, its encoder left out."""
    draft_steps: int
    """Guesses, one after the other: the levels of the draft."""
    target: float
    """Seconds of the target's pass."""
    end: float
    accepted: tuple[int, ...]
    """Guessed tokens that became output."""
    rejected: int | None
    """The guess in the place of ``answer``, where there was one."""
    answer: int | None
    """The target's own token; None where the output ended before it."""


@dataclass(frozen=True)
class TracedRun:
    """One output."""

    label: str
    prompt: tuple[int, ...]
    """What the output follows in the decoder."""
    encoder: float
    """Seconds of the target's encoder; 0: it has none."""
    rounds: tuple[TracedRound, ...]

    @property
    def seconds(self) -> float:
        return self.rounds[-1].end if self.rounds else self.encoder


def trace_run(
    bench: Workbench,
    contender: Contender,
    label: str,
    tokens: Sequence[int],
    params: SamplingParams,
    tries: int = 1,
) -> TracedRun:
    """Decode one prompt and look at every round.

    Args:
        tries: of so many runs the fastest is kept: where a program waited for another, nothing was computed.

    Raises:
        ConfigError, CheckpointError: the drafter cannot be built.
        RequestError: the prompt cannot be served.
    """
    engine = bench.open(contender)
    # What happens only once is charged to no round.
    bench.decode(engine, bench.sequence([0, 1, 0, 1], _WARM_UP))
    runs = [_traced(bench, engine, label, tokens, params) for _ in range(tries)]
    return min(runs, key=lambda run: run.seconds)


def _traced(bench: Workbench, engine: Engine, label: str, tokens: Sequence[int], params: SamplingParams) -> TracedRun:
    drafter = engine.drafter
    before = drafter.encoder_seconds if isinstance(drafter, RunsAnEncoder) else 0.0
    sequence = bench.sequence(tokens, params)
    sequence.trace = trace = Trace()
    bench.decode(engine, sequence)
    of_draft = drafter.encoder_seconds - before if isinstance(drafter, RunsAnEncoder) else 0.0
    encoder = sequence.stats.encoder_seconds
    prompt = tuple(sequence.tokens[: sequence.prompt_length])
    return TracedRun(label, prompt, encoder, _on_clock(trace.rounds, sequence.output, encoder, of_draft))


def _on_clock(
    rounds: Sequence[RoundTrace], output: Sequence[int], encoder: float, draft_encoder: float
) -> tuple[TracedRound, ...]:
    placed: list[TracedRound] = []
    left = len(output)
    begin = rounds[0].seconds - rounds[0].draft_seconds - rounds[0].pass_seconds - encoder if rounds else 0.0
    for each in rounds:
        accepted = [each.nodes[node].token for node in each.path][:left]
        answered = left > len(each.path)
        last = each.path[-1] if each.path else ROOT
        # The guess that stood first in the answer's place; the answer itself is among them if it was guessed elsewhere.
        beside = [node.token for node in each.nodes if node.parent == last and node.token != each.answer.token]
        own_encoder = 0.0 if placed else min(draft_encoder, each.draft_seconds)
        placed.append(
            TracedRound(
                start=placed[-1].end if placed else encoder,
                draft_encoder=own_encoder,
                draft=each.draft_seconds - own_encoder,
                draft_steps=_levels(each),
                target=each.pass_seconds,
                end=each.seconds - begin,
                accepted=tuple(accepted),
                rejected=beside[0] if beside and answered else None,
                answer=each.answer.token if answered else None,
            )
        )
        left -= len(accepted) + answered
    return tuple(placed)


def _levels(seen: RoundTrace) -> int:
    depths: list[int] = []
    for node in seen.nodes:
        depths.append(1 if node.parent == ROOT else depths[node.parent] + 1)
    return max(depths, default=0)


@dataclass(frozen=True)
class Line:
    """One round as a line of the paper's figure 1."""

    before: str
    """The output before this round."""
    accepted: str
    rejected: str
    """The rejected guess, its white space shown; empty: there was none."""
    answer: str
    """The target's own token."""


def lines_of(run: TracedRun, tokenizer: Tokenizer) -> list[Line]:
    """The rounds of a run as text."""
    text = IncrementalDetokenizer(tokenizer, list(run.prompt))
    said, lines = "", []
    for place, each in enumerate(run.rounds):
        accepted = "".join(text.append(token) for token in each.accepted)
        answer = "" if each.answer is None else text.append(each.answer)
        if place == len(run.rounds) - 1:
            answer += text.finish()
        rejected = "" if each.rejected is None else tokenizer.token_text(each.rejected).replace("\n", "↵")
        lines.append(Line(said, accepted, rejected, answer))
        said += accepted + answer
    return lines
