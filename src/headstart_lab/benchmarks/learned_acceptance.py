"""Two estimates of how likely guesses are accepted, replayed over recorded rounds: graded rates, and a logistic one
that learns online.

    python -m headstart_lab.benchmarks.learned_acceptance rounds.jsonl --record PROMPTS.jsonl --per-group 8
    python -m headstart_lab.benchmarks.learned_acceptance rounds.jsonl
    python -m headstart_lab.benchmarks.learned_acceptance --decode PROMPTS.jsonl --per-group 4 --nodes 4,8

Both are told of each round after they have estimated it, in the order in which it was recorded; what is counted is what
they said before. Rounds are those of ``auto`` with wide trees (rows cost nothing), so that either could have cut them.
With ``--decode`` either decides while decoding which guesses are verified, always as many.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headstart.drafting.base import RoundOutcome, SpeculationParams
from headstart.drafting.methods.auto import drafter as auto
from headstart.drafting.planning.guess_rates import GuessRates
from headstart.drafting.planning.learned_acceptance import LearnedAcceptance, chances_of, clues_of
from headstart.drafting.planning.members import OWN_MEMORY, OWN_WEIGHT
from headstart.drafting.planning.merged import Guesses, MergedGuesses, Overlay
from headstart.drafting.planning.round_costs import RoundCosts, TreeSize
from headstart.loading.model import load_model
from headstart.passes.draft_tree import MAX_GRADES, ROOT
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.prompts import choose, encode_turns, read_prompts
from headstart_lab.benchmarks.merged_acceptance import Untimed
from headstart_lab.workbench import Workbench, contenders

_DRAFTERS = 'auto:drafter_options={"eagle3":{"min_probability":0.01,"tree_nodes":31}}'
_SHARED_MEMORY = 1000.0
_SIZES = (2, 4, 8, 16)
"""Nodes that are verified."""


# What is recorded.


def record(model_name: str, prompts: Path, out: Path, per_group: int, max_tokens: int) -> None:
    """Write a line for each sequence: the rates that drafters start from, and its rounds."""
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
            guesses = [
                [place, each.tokens, each.parents, [grade % MAX_GRADES for grade in each.grades], each.own]
                for place, each in followed.guesses
            ]
            rounds.append({"said": list(outcome.committed), "guesses": guesses})
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


# What is decoded.


class Fixed(RoundCosts):
    """So many nodes pay in every round, whatever they are."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self._nodes = nodes

    def size(self, sequences: int, reach: Sequence[float], context: float) -> TreeSize:
        return TreeSize(min(self._nodes * sequences, len(reach)))


def decode(model_name: str, prompts: Path, per_group: int, max_tokens: int, sizes: Sequence[int]) -> None:
    """Print tokens a round of either estimate, whose trees have so many nodes."""
    model = load_model(model_name)
    bench = Workbench.of_model(model)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    learnt = LearnedAcceptance.weights
    graded = property(lambda learned: learned._graded)
    for nodes in sizes:
        for name, weights in (("graded rates", graded), ("learnt", learnt)):
            LearnedAcceptance.weights = weights  # type: ignore[assignment,method-assign]
            engine = bench.open(contenders(_DRAFTERS)[1], Untimed)
            engine.drafter._drafter.costs = Fixed(nodes)  # type: ignore[attr-defined]
            counts: dict[str, list[int]] = {}
            for prompt in choose(read_prompts(prompts), per_group):
                encoded = encode_turns(model, prompt.turns[:1], [])
                if bench.fits(encoded, max_tokens):
                    sequence = bench.sequence(encoded, params, SpeculationParams(tree_nodes=63))
                    bench.decode(engine, sequence)
                    of_group = counts.setdefault(prompt.group, [0, 0, 0])
                    for place, count in enumerate(
                        (sequence.stats.tokens, sequence.stats.rounds, sequence.stats.drafted)
                    ):
                        of_group[place] += count
            tokens, rounds, drafted = (sum(each) for each in zip(*counts.values(), strict=True))
            of_groups = "  ".join(f"{group} {each[0] / each[1]:.3f}" for group, each in counts.items())
            print(
                f"{nodes} nodes, {name}: {tokens / rounds:.3f} ({drafted / rounds:.2f} drafted)  {of_groups}",
                flush=True,
            )


# What is compared.


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

    def cut(self, tree: MergedGuesses, said: Sequence[int]) -> None:
        """How many tokens the best nodes by this estimate would have brought."""
        self.rounds += 1
        order = tree.ranked(len(tree.tokens))
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


def replay(sequences: Sequence[Mapping[str, Any]]) -> list[Score]:
    """Both estimates over all rounds."""
    shared = [GuessRates(rates, 8.0, _SHARED_MEMORY) for rates in sequences[0]["rates"]]
    learned = [LearnedAcceptance() for _ in shared]
    scores = [Score("graded rates"), Score("learnt")]
    for sequence in sequences:
        own = [GuessRates(each, OWN_WEIGHT, OWN_MEMORY) for each in shared]
        for each in sequence["rounds"]:
            said, members = each["said"], [member for member, *_ in each["guesses"]]
            overlay = Overlay([(1 << member, Guesses(*rest)) for member, *rest in each["guesses"]])
            related = overlay.related()
            (clues,) = clues_of([(overlay, related, [own[member].log_odds for member in members])])
            graded = [
                [own[member].rates[grade] for grade in guesses.grades]
                for member, guesses in zip(members, related, strict=True)
            ]
            learnt = [
                chances_of(rows @ learned[member].weights).tolist() for member, rows in zip(members, clues, strict=True)
            ]
            for score, estimates in zip(scores, (graded, learnt), strict=True):
                score.cut(overlay.merged(estimates), said)
            for place, (member, guesses, rows) in enumerate(zip(members, related, clues, strict=True)):
                judged = guesses.judge(said)
                for guess, held in judged:
                    for score, estimates in zip(scores, (graded, learnt), strict=True):
                        score.count(estimates[place][guess], held)
                    own[member].count(guesses.grades[guess], held)
                learned[member].learn(rows[[guess for guess, _ in judged]], [held for _, held in judged])
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=Path, nargs="?")
    parser.add_argument(
        "--record", type=Path, help="write that file: rounds of answers to prompts in Spec-Bench's form"
    )
    parser.add_argument("--decode", type=Path, help="decode answers to prompts, likewise")
    parser.add_argument("--nodes", default="4,8")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--per-group", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    wanted = parser.parse_args()
    if wanted.decode is not None:
        sizes = [int(each) for each in wanted.nodes.split(",")]
        decode(wanted.model, wanted.decode, wanted.per_group, wanted.max_tokens, sizes)
        return
    if wanted.rounds is None:
        parser.error("name a file of rounds, or prompts to --decode")
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
