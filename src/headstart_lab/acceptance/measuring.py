"""How often a drafter's guesses are accepted, by their laws rather than by counting, and where acceptance is lost.

The target writes a text plainly. At each of its tokens the drafter is asked for a draft of one level, which is only
looked at: the chance that it would be accepted follows from the two laws, p of the target and q of the draft. Its mean
over the text is alpha by Corollary 3.6 of Leviathan et al. 2023 (E of sum min(p, q) over prefixes that the target
wrote). A second run, with speculation, counts acceptance at each position of a draft.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from torch import Tensor

from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView, SpeculationParams
from headstart.engine.engine import Engine
from headstart.engine.outputs import SequenceStats
from headstart.engine.sequence import Sequence as Decoded
from headstart.errors import ConfigError
from headstart.loading.model import Model
from headstart.passes.draft_tree import ROOT, DraftTree, TreeLaw
from headstart.passes.runner import Span
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms
from headstart.verification import algebra
from headstart.verification.draws import draws_by_parent
from headstart_lab.acceptance.token_kinds import TokenKind, kind_of
from headstart_lab.bench.prompts import BenchPrompt, encode_turns
from headstart_lab.theory import formulas as theory
from headstart_lab.workbench import PLAIN, Contender, Workbench

LENIENCES = (1.0, 0.5, 0.3, 0.1)
"""Of the paper's table 5."""


PASSES_OF_A_TOKEN = 3
"""What measuring a token takes, in passes of plain decoding, about: its own, a draft for it, and the second run."""
_TRIAL_TOKENS = 8


@dataclass(frozen=True)
class Guess:
    """What a draft of one level is worth."""

    accepted: float | None
    """Chance that one of its tokens is accepted; None: there was no guess."""
    lenient: tuple[float, ...] | None = None
    """The same at each of LENIENCES (lossy); None where a tree has several draws."""


@dataclass(frozen=True)
class Position:
    """One token of the target's text."""

    group: str
    turn: int
    context: int
    """Tokens before it."""
    kind: TokenKind
    """Of the token that the target wrote."""
    guess: Guess

    @property
    def lost(self) -> float:
        """Chance that it was not guessed."""
        return 1.0 - (self.guess.accepted or 0.0)


@dataclass
class Acceptance:
    """One drafter at one temperature."""

    drafter: str
    temperature: float
    positions: list[Position] = field(default_factory=list)
    turns: int = 0
    """Turns of prompts that were measured."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Turns that were not -> why."""
    drawn: bool = False
    """Its guesses are draws from a law; else point masses."""
    accepted_per_position: list[int] = field(default_factory=list)
    drafted_per_position: list[int] = field(default_factory=list)
    """[i] as in ``SequenceStats``, of the run with speculation."""
    tokens: int = 0
    rounds: int = 0
    """Of the run with speculation."""

    @property
    def guessed(self) -> list[Position]:
        """Where there was a guess."""
        return [position for position in self.positions if position.guess.accepted is not None]

    @property
    def alpha(self) -> float | None:
        """Mean acceptance where there was a guess (Corollary 3.6)."""
        chances = [position.guess.accepted for position in self.positions if position.guess.accepted is not None]
        return fmean(chances) if chances else None

    @property
    def coverage(self) -> float:
        """Part of the tokens for which there was a guess."""
        return len(self.guessed) / len(self.positions) if self.positions else 0.0

    @property
    def lenient_alphas(self) -> tuple[float, ...] | None:
        """Mean acceptance at each of LENIENCES, where every guess was a single one."""
        chances = [position.guess.lenient for position in self.guessed]
        known = [each for each in chances if each is not None]
        return tuple(map(fmean, zip(*known, strict=True))) if known and len(known) == len(chances) else None

    def count(self, stats: SequenceStats) -> None:
        """Take in a turn's run with speculation."""
        self.turns += 1
        self.tokens += stats.tokens
        self.rounds += stats.rounds
        for mine, theirs in (
            (self.accepted_per_position, stats.accepted_per_position),
            (self.drafted_per_position, stats.drafted_per_position),
        ):
            mine += [0] * (len(theirs) - len(mine))
            for place, number in enumerate(theirs):
                mine[place] += number


class Onlooker:
    """Asks a drafter at every step and keeps its guesses to itself, so that decoding stays plain."""

    def __init__(self, drafter: Drafter) -> None:
        self.needs = drafter.needs
        self.tree: DraftTree | None = None
        """What was guessed for the step that is under way; None where no guess was allowed."""
        self._drafter = drafter

    def begin(self, sequence: SequenceView) -> None:
        self._drafter.begin(sequence)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        (tree,) = self._drafter.propose(sequences, budgets)
        self.tree = tree if budgets[0].nodes else None
        return [DraftTree.empty()]

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self._drafter.observe(outcomes)

    def end(self, sequence_id: int) -> None:
        self._drafter.end(sequence_id)


def plain_pace(model: Model, prompt: str) -> float:
    """Tokens a second of plain decoding here, reading the prompt included."""
    bench = Workbench.of_model(model)
    engine = bench.open(Contender.parse(PLAIN))
    params = SamplingParams(temperature=0, max_tokens=_TRIAL_TOKENS, ignore_eos=True)
    text = bench.sequence(encode_turns(model, [prompt], []), params)
    start = time.perf_counter()
    bench.decode(engine, text)
    return text.num_output / max(time.perf_counter() - start, 1e-6)


def measure_acceptance(
    model: Model,
    bench: Workbench,
    contender: Contender,
    prompts: Sequence[BenchPrompt],
    params: SamplingParams,
    on_turn: Callable[[int], None] = lambda tokens: None,
    result: Acceptance | None = None,
    speculating: bool = True,
    until: float = math.inf,
) -> Acceptance:
    """Acceptance on texts that the target writes in answer to prompts, turn by turn.

    Args:
        bench: made for the model, for one sequence at a time.
        params: of every request; names a seed if it samples.
        on_turn: called after each turn with the tokens of its text.
        result: empty; filled turn by turn, so that a run that is cut short keeps the turns that were measured.
        until: after this time (``time.perf_counter``) no further turn begins, but for the first.
        speculating: count acceptance by position, too, in a second run of each turn.

    Raises:
        ConfigError, CheckpointError: the drafter cannot be built, or no prompt fits.
        RequestError: a prompt cannot be rendered, or a sequence failed.
    """
    result = Acceptance(contender.name, params.temperature) if result is None else result
    watching = bench.open(contender, Onlooker)
    counting = bench.open(contender) if speculating else None
    # Draws of its own for each prompt: at one seed and place all would be accepted or rejected together.
    for sample, prompt in enumerate(prompts):
        answers: list[str] = []
        for turn in range(len(prompt.turns)):
            if result.turns and time.perf_counter() >= until:
                return result
            tokens = encode_turns(model, prompt.turns[: turn + 1], answers)
            if not bench.fits(tokens, (params.max_tokens or 1) + 1):
                for behind in range(turn, len(prompt.turns)):
                    result.left_out[f"prompt {prompt.id}, turn {behind + 1}"] = (
                        f"{len(tokens)} tokens are too many" if behind == turn else "the turn before it was left out"
                    )
                break
            text = bench.sequence(tokens, params, SpeculationParams(draft_tokens=1), sample)
            guesses = _watch(bench, watching, text, result)
            sequence = bench.sequence(tokens, params, sample=sample)
            if counting is not None:
                bench.decode(counting, sequence)
            # All of a turn at once, that none is left half measured.
            result.positions += _positions(model, text, guesses, prompt.group, turn)
            result.count(sequence.stats)
            answers.append(model.tokenizer.decode(text.output))
            on_turn(text.num_output)
    if not result.positions:
        raise ConfigError(f"no prompt leaves room for {params.max_tokens} more tokens; lower max_tokens.")
    return result


def guess_at(tree: DraftTree, logits: Tensor, transforms: Transforms) -> Guess:
    """The chance that a first-level node of a draft is accepted, under the rule that serves its law.

    For independent draws it is their expectation; for draws without replacement, and for guesses, it is that of those
    which were made.

    Args:
        logits: [vocab] the target's, after the root.
        transforms: of the request, none of which looks at what was said.
    """
    children = tree.children.get(ROOT, [])
    if not children:
        return Guess(None)
    law = transforms.law(logits)
    guesses = sorted({int(tree.tokens[node]) for node in children})
    if transforms.greedy:
        ratio = max(transforms.peak_ratio(logits, token) for token in guesses)
        return Guess(float(law[guesses].sum()), tuple(float(ratio >= lenience) for lenience in LENIENCES))
    if tree.law is TreeLaw.POINT_MASS:
        lenient = tuple(min(1.0, float(law[guesses[0]]) / lenience) for lenience in LENIENCES)
        return Guess(float(law[guesses].sum()), lenient if len(guesses) == 1 else None)
    draws = draws_by_parent(tree).get(ROOT, [])
    landed = {draw.node for draw in draws}
    extras = sorted({int(tree.tokens[node]) for node in children if node not in landed})
    if len(draws) == 1 and not extras:
        p, q = law.numpy(), draws[0].law.numpy()
        lenient = tuple(float(theory.acceptance(p, q, lenience)) for lenience in LENIENCES)
        return Guess(lenient[0], lenient)
    rejected, left = 1.0, law
    rest: dict[int, Tensor] = {}
    for draw in draws:
        if tree.law is TreeLaw.SAMPLED:
            draft = draw.law
            kept = float(theory.acceptance(left.numpy(), draft.numpy()))
        else:
            draft = rest.get(draw.row, draw.law)
            kept = min(1.0, float(left[draw.token] / draft[draw.token]))
            rest[draw.row] = algebra.without(draft, draw.token)
        rejected *= 1.0 - min(kept, 1.0)
        left = algebra.residual(left, draft)
    return Guess(1.0 - rejected * (1.0 - float(left[extras].sum())))


def _watch(bench: Workbench, engine: Engine, text: Decoded, result: Acceptance) -> dict[int, Guess]:
    """Let the target write a text; place of each of its tokens -> the guess that was made for it."""
    onlooker = engine.drafter
    assert isinstance(onlooker, Onlooker)
    guesses: dict[int, Guess] = {}

    def watch(span: Span, cached: int, logits: Tensor) -> None:
        if len(logits) and onlooker.tree is not None:
            result.drawn |= onlooker.tree.law is not TreeLaw.POINT_MASS
            guesses[cached + 1] = guess_at(onlooker.tree, logits[-1], text.transforms)

    with bench.runner.watched(watch):
        bench.decode(engine, text)
    return guesses


def _positions(model: Model, text: Decoded, guesses: dict[int, Guess], group: str, turn: int) -> list[Position]:
    tokenizer = model.tokenizer
    special = tokenizer.special_ids | set(model.eos_token_ids)

    def kind(place: int) -> TokenKind:
        before, token = text.tokens[place - 1 : place + 1]
        return kind_of(tokenizer.token_bytes(token), tokenizer.token_bytes(before), token in special)

    return [Position(group, turn, place, kind(place), guess) for place, guess in sorted(guesses.items())]
