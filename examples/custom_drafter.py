"""A drafter of one's own: it counts upwards wherever the text has just counted.

The text stays the target's own however bad the guesses are. docs/add_a_drafter.md shows how a package gives its
drafter a name.
"""

import sys
from collections.abc import Sequence

from headstart import LLM, DraftTree, RoundOutcome, SamplingParams, TargetSignals
from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.options import NoOptions

PROMPT = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,"


class CountingDrafter:
    """After "14, 15," guesses " 16, 17, 18,"."""

    Options = NoOptions
    needs = TargetSignals()

    def __init__(self, context: DraftContext, options: NoOptions) -> None:
        encode = context.require_tokenizer().encode
        self._next = {
            tuple(encode(f" {number},")): encode(f" {number + 1}, {number + 2}, {number + 3},")
            for number in range(1000)
        }

    def begin(self, sequence: SequenceView) -> None:
        pass

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return [self._guess(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        pass

    def _guess(self, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        for length in range(2, 7):
            guess = self._next.get(tuple(sequence.tokens[-length:]))
            if guess is not None:
                return DraftTree.chain(guess[: min(budget.nodes, budget.depth)])
        return DraftTree.empty()


def main() -> None:
    params = SamplingParams(temperature=0, max_tokens=64)
    for drafter in (CountingDrafter, "none"):
        llm = LLM("smollm2", drafter=drafter)
        (output,) = llm.generate(PROMPT, params)
        print(f"{llm.drafter_name}: {output.stats.tokens} tokens in {output.stats.rounds} rounds\n{output.text}\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
