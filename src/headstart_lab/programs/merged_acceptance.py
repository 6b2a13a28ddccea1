"""Tokens a round of single drafters and of their merged trees, all with trees of so many nodes.

    python -m headstart_lab.programs.merged_acceptance PROMPTS.jsonl --drafters suffix,recycling,auto
    python -m headstart_lab.programs.merged_acceptance PROMPTS.jsonl --tree-nodes 31 --drafters \
        'eagle3:min_probability=0:tree_nodes=31,auto:drafter_options={"eagle3":{"min_probability":0,"tree_nodes":31}}'

``auto`` is told that rows cost nothing, so that it fills its tree like the others and only the guesses are compared.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from headstart.drafting.base import Drafter, RoundOutcome, SpeculationParams
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.planning.allowances import Load, Safeguard
from headstart.drafting.planning.round_costs import RoundCosts
from headstart.loading.model import load_model
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.prompts import choose, encode_turns, read_prompts
from headstart_lab.workbench import Workbench, contenders

_MOST_ROWS = 1024


class _Unguarded(Safeguard):
    def allows(self, load: Load) -> bool:
        return True


class Untimed:
    """A drafter that is not told what passes cost."""

    def __init__(self, drafter: Drafter) -> None:
        if isinstance(drafter, AutoDrafter):
            drafter.costs = RoundCosts()
            for rows in (1, _MOST_ROWS):
                drafter.costs.passes.add(rows, 1.0)
            drafter.safeguard = _Unguarded()
        self.needs = drafter.needs
        self.begin, self.propose, self.end = drafter.begin, drafter.propose, drafter.end
        self._drafter = drafter

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self._drafter.observe([replace(outcome, pass_rows=0) for outcome in outcomes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, help="in Spec-Bench's form; the first turn of each is answered")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--drafters", default="suffix,recycling,auto")
    parser.add_argument("--per-group", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--tree-nodes", type=int, default=15)
    wanted = parser.parse_args()
    model = load_model(wanted.model)
    prompts = choose(read_prompts(wanted.prompts), wanted.per_group)
    params = SamplingParams(temperature=0, max_tokens=wanted.max_tokens)
    for contender in contenders(wanted.drafters)[1:]:
        bench = Workbench.of_model(model)
        engine = bench.open(contender, Untimed)
        tokens: dict[str, int] = defaultdict(int)
        rounds: dict[str, int] = defaultdict(int)
        for prompt in prompts:
            encoded = encode_turns(model, prompt.turns[:1], [])
            if bench.fits(encoded, wanted.max_tokens):
                sequence = bench.sequence(encoded, params, SpeculationParams(tree_nodes=wanted.tree_nodes))
                bench.decode(engine, sequence)
                tokens[prompt.group] += sequence.stats.tokens
                rounds[prompt.group] += sequence.stats.rounds
        lengths = {group: tokens[group] / rounds[group] for group in tokens}
        groups = "  ".join(f"{group} {length:.2f}" for group, length in lengths.items())
        print(f"{contender.name}: {groups}  mean {fmean(lengths.values()):.2f}", flush=True)


if __name__ == "__main__":
    main()
