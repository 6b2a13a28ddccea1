"""Two estimates of how likely guesses are accepted, replayed over recorded rounds: graded rates, and a logistic one
that learns online.

    python benchmarks/learned_acceptance.py rounds.jsonl --record PROMPTS.jsonl --per-group 8
    python benchmarks/learned_acceptance.py rounds.jsonl

Both are told of each round after they have estimated it, in the order in which it was recorded; what is counted is what
they said before. Rounds are those of ``auto`` with wide trees (rows cost nothing), so that either could have cut them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from merged_acceptance import Untimed
from numpy.typing import NDArray

from headstart.analysis.bench.prompts import choose, encode_turns, read_prompts
from headstart.analysis.workbench import Workbench, contenders
from headstart.draft_tree import MAX_GRADES, ROOT, DraftTree
from headstart.drafting.base import RoundOutcome, SpeculationParams
from headstart.drafting.head_drafters import eagle
from headstart.drafting.planning import auto
from headstart.drafting.planning.auto_members import OWN_MEMORY, OWN_WEIGHT
from headstart.drafting.planning.guess_rates import GuessRates
from headstart.drafting.planning.merged import Guesses, _Overlaid, _reach
from headstart.heads.head_pass import GrownTree
from headstart.loading import load_model
from headstart.sampling.params import SamplingParams

_DRAFTERS = 'auto:drafter_options={"eagle3":{"min_probability":0.01,"tree_nodes":31}}'
_SHARED_MEMORY = 1000.0
_SIZES = (2, 4, 8, 16)
"""Nodes that are verified."""
_FEATURES = 12
_RATE, _DECAY = 0.3, 1e-4


# What is recorded.


def record(model_name: str, prompts: Path, out: Path, per_group: int, max_tokens: int) -> None:
    """Write a line for each sequence: the rates that drafters start from, and its rounds."""
    scores: dict[bytes, list[float]] = {}

    def with_scores(grown: Sequence[GrownTree], *others: Any) -> list[DraftTree]:
        trees: list[DraftTree] = pruned(grown, *others)
        for tree, own in zip(trees, grown, strict=True):
            scores[tree.tokens.tobytes() + tree.parents.tobytes()] = own.scores.tolist()
        return trees

    pruned, eagle.pruned_trees = eagle.pruned_trees, with_scores
    model = load_model(model_name)
    bench = Workbench.of_model(model)
    engine = bench.open(contenders(_DRAFTERS)[1], Untimed)
    drafter = engine.drafter._drafter  # type: ignore[attr-defined]
    assert isinstance(drafter, auto.AutoDrafter)
    rounds: list[dict[str, Any]] = []
    observe = drafter.observe

    def observed(outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            followed = drafter._followed.get(outcome.sequence.id)
            if followed is None or not outcome.committed or not followed.guesses:
                continue
            said = []
            for place, guesses in followed.guesses:
                arrays = (np.array(each, dtype=np.int32) for each in (guesses.tokens, guesses.parents))
                paths = scores.get(b"".join(each.tobytes() for each in arrays))
                said.append([place, guesses.tokens, guesses.parents, guesses.grades, paths])
            rounds.append({"said": list(outcome.committed), "guesses": said})
        scores.clear()
        observe(outcomes)

    drafter.observe = observed  # type: ignore[method-assign]
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    first = [list(member.rates[""].rates) for member in drafter._members]
    with out.open("w", encoding="utf-8") as lines:
        for prompt in choose(read_prompts(prompts), per_group):
            encoded = encode_turns(model, prompt.turns[:1], [])
            if bench.fits(encoded, max_tokens):
                bench.decode(engine, bench.sequence(encoded, params, SpeculationParams(tree_nodes=63)))
                lines.write(json.dumps({"group": prompt.group, "rates": first, "rounds": rounds}) + "\n")
                lines.flush()
                rounds.clear()


# What is compared.


@dataclass
class Guess:
    """One guess of a round, as both estimates see it."""

    member: int
    grade: int
    depth: int
    rank: int
    chance: float | None
    """The drafter's own, given its parent; None: it says none."""
    parent: int


def guesses_of(member: int, tokens: list[int], parents: list[int], grades: list[int], paths: Any) -> list[Guess]:
    """All of one drafter's."""
    found: list[Guess] = []
    seen: dict[int, int] = {}
    for parent, grade in zip(parents, grades, strict=True):
        depth = 1 if parent == ROOT else found[parent].depth + 1
        chance = None
        if paths is not None:
            above = 0.0 if parent == ROOT else paths[parent]
            chance = math.exp(min(paths[len(found)] - above, 0.0))
        rank = seen[parent] = seen.get(parent, -1) + 1
        found.append(Guess(member, grade, depth, rank, chance, parent))
    return found


class Logistic:
    """Weights for each member, learnt by AdaGrad; the graded rate is one of what it looks at."""

    def __init__(self, members: int) -> None:
        self.weights = np.zeros((members, _FEATURES))
        self.weights[:, 1] = 1.0  # as the graded rate at first
        self._squares = np.full((members, _FEATURES), 1.0)

    def features(self, guess: Guess, rate: float) -> NDArray[np.float64]:
        relation = guess.grade // MAX_GRADES
        own = _logit(guess.chance) if guess.chance is not None else 0.0
        return np.array(
            [
                1.0,
                _logit(rate),
                own,
                float(guess.depth == 1),
                math.log(guess.depth),
                float(guess.rank == 0),
                math.log1p(guess.rank),
                float(relation == 1),
                float(relation == 2),
                own * (relation == 1),
                own * (relation == 2),
                own * math.log(guess.depth),
            ]
        )

    def estimate(self, member: int, features: NDArray[np.float64]) -> float:
        return 1 / (1 + math.exp(-float(np.clip(self.weights[member] @ features, -12, 12))))

    def learn(self, member: int, features: NDArray[np.float64], held: bool) -> None:
        gradient = (self.estimate(member, features) - held) * features
        self._squares[member] += gradient**2
        self.weights[member] -= _RATE * gradient / np.sqrt(self._squares[member])


def _logit(chance: float) -> float:
    chance = min(max(chance, 1e-3), 1 - 1e-3)
    return math.log(chance / (1 - chance))


class Score:
    """What one estimate came to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log_loss = self.brier = 0.0
        self.judged = 0
        self.bins = np.zeros((10, 3))
        """[tenth] estimates, those that held, guesses."""
        self.tokens = dict.fromkeys(_SIZES, 0)
        self.rounds = 0

    def count(self, estimate: float, held: bool) -> None:
        estimate = min(max(estimate, 1e-4), 1 - 1e-4)
        self.log_loss -= math.log(estimate if held else 1 - estimate)
        self.brier += (estimate - held) ** 2
        self.judged += 1
        self.bins[min(int(10 * estimate), 9)] += (estimate, held, 1)

    def cut(self, tree: _Overlaid, chances: list[float], said: Sequence[int]) -> None:
        """How many tokens the best nodes by this estimate would have brought."""
        self.rounds += 1
        totals: dict[int, float] = {}
        for parent, chance in zip(tree.parents, chances, strict=True):
            totals[parent] = totals.get(parent, 0.0) + chance
        scaled = [chance / max(1.0, totals[parent]) for parent, chance in zip(tree.parents, chances, strict=True)]
        reach = _reach(tree.parents, scaled)
        order = sorted(range(len(reach)), key=reach.__getitem__, reverse=True)
        children = {
            (parent, token): node for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
        }
        path, node = [], ROOT
        for token in said:
            if (node, token) not in children:
                break
            node = children[node, token]
            path.append(node)
        place = {node: rank for rank, node in enumerate(order)}
        for size in _SIZES:
            self.tokens[size] += 1 + next((i for i, each in enumerate(path) if place[each] >= size), len(path))


def judged(guesses: list[Guess], tokens: list[int], said: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Guesses whose parent was on the target's path, and whether they held."""
    path, first = ROOT, 0
    for token in said:
        accepted = None
        for node in range(first, len(guesses)):
            if guesses[node].parent == path:
                held = tokens[node] == token
                yield node, held
                accepted = node if held else accepted
        if accepted is None:
            return
        path, first = accepted, accepted + 1


def replay(sequences: Sequence[Mapping[str, Any]]) -> list[Score]:
    """Both estimates over all rounds."""
    members = len(sequences[0]["rates"])
    shared = [GuessRates(rates, 8.0, _SHARED_MEMORY) for rates in sequences[0]["rates"]]
    learned = Logistic(members)
    scores = [Score("graded rates"), Score("logistic"), Score("mean of both")]
    for sequence in sequences:
        own = [GuessRates(each, OWN_WEIGHT, OWN_MEMORY) for each in shared]
        for each in sequence["rounds"]:
            said = each["said"]
            proposals = [(member, guesses_of(member, *rest), rest[0]) for member, *rest in each["guesses"]]
            tree = _Overlaid([(1 << m, Guesses(r[0], r[1], r[2])) for m, *r in each["guesses"]])
            chances = [[0.0] * len(tree.tokens) for _ in scores]
            seen = []
            for (member, guesses, _), nodes in zip(proposals, tree.places, strict=True):
                rows = [learned.features(guess, own[member].rates[guess.grade]) for guess in guesses]
                graded = [own[member].rates[guess.grade] for guess in guesses]
                logistic = [learned.estimate(member, row) for row in rows]
                both = [(a + b) / 2 for a, b in zip(graded, logistic, strict=True)]
                seen.append((rows, (graded, logistic, both)))
                for estimate, merged in zip((graded, logistic, both), chances, strict=True):
                    for node, chance in zip(nodes, estimate, strict=True):
                        merged[node] += chance / tree.owners[node].bit_count()
            for score, merged in zip(scores, chances, strict=True):
                score.cut(tree, merged, said)
            for (member, guesses, tokens), (rows, estimates) in zip(proposals, seen, strict=True):
                for node, held in judged(guesses, tokens, said):
                    for score, estimate in zip(scores, estimates, strict=True):
                        score.count(estimate[node], held)
                    own[member].count(guesses[node].grade, held)
                    learned.learn(member, rows[node], held)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=Path)
    parser.add_argument(
        "--record", type=Path, help="write that file: rounds of answers to prompts in Spec-Bench's form"
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--per-group", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    wanted = parser.parse_args()
    if wanted.record is not None:
        record(wanted.model, wanted.record, wanted.rounds, wanted.per_group, wanted.max_tokens)
        return
    sequences = [json.loads(line) for line in wanted.rounds.read_text(encoding="utf-8").splitlines()]
    scores = replay(sequences)
    print(f"{len(sequences)} texts, {scores[0].rounds} rounds, {scores[0].judged} judged guesses")
    print("| estimate | log loss | Brier | " + " | ".join(f"tokens a round, {size} nodes" for size in _SIZES) + " |")
    print("|---|---|---|" + "---|" * len(_SIZES))
    for score in scores:
        cells = [score.log_loss / score.judged, score.brier / score.judged]
        tokens = [score.tokens[size] / score.rounds for size in _SIZES]
        print(f"| {score.name} | " + " | ".join(f"{each:.4f}" for each in (*cells, *tokens)) + " |")
    for score in scores:
        said, held, count = score.bins.T
        print(f"{score.name}: said / held in tenths: ", end="")
        print("  ".join(f"{a / n:.2f}/{b / n:.2f} ({int(n)})" for a, b, n in zip(said, held, count, strict=True) if n))


if __name__ == "__main__":
    main()
