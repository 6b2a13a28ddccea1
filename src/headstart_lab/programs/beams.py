"""What guessing ahead brings to beam search: passes and time, over plain beams.

    python -m headstart_lab.programs.beams --drafters recycling,eagle3,auto --widths 2,4 --tokens 64

Plain beams and each drafter take turns prompt by prompt, all on one loaded model. Prints steps a pass (what was saved),
nodes a pass, the ratio of times, and whether every beam and score is the same as without guesses.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from headstart.entrypoints.llm import LLM
from headstart.loading.model import load_model
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.prompts import read_prompts

PLAIN = "none"


@dataclass
class Total:
    """Over all prompts."""

    steps: int = 0
    passes: int = 0
    drafted: int = 0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    same: bool = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, nargs="?", help="left out: the package's own")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--drafters", default="recycling,eagle3,auto", help="names, with commas between them")
    parser.add_argument("--widths", default="2,4", help="beams, with commas between them")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--every", type=int, default=1, help="take every so-manieth prompt")
    given = parser.parse_args()
    model = load_model(given.model, given.precision)
    prompts = read_prompts(given.prompts)[:: given.every]
    doors = {name: LLM(model, name) for name in [PLAIN, *given.drafters.split(",")]}
    print(f"{model.backend.name}, {len(prompts)} prompts, {given.tokens} tokens at most")
    for width in map(int, given.widths.split(",")):
        params = SamplingParams(beam_width=width, n=width, max_tokens=given.tokens)
        totals: dict[str, Total] = defaultdict(Total)
        for prompt in prompts:
            expected = None
            for name, llm in doors.items():
                (output,) = llm.chat([{"role": "user", "content": prompt.turns[0]}], params)
                found = [(beam.token_ids, beam.score) for beam in output.outputs]
                expected = found if expected is None else expected
                total, stats = totals[name], output.stats
                total.same &= found == expected
                total.steps += stats.beam_steps
                total.passes += stats.rounds
                total.drafted += stats.drafted
                total.seconds += stats.seconds
                total.draft_seconds += stats.draft_seconds
        for name, total in totals.items():
            print(
                f"{width} beams, {name}: {total.steps} steps in {total.passes} passes, "
                f"{total.steps / total.passes:.2f} steps a pass, {total.drafted / total.passes:.1f} nodes a pass; "
                f"{totals[PLAIN].seconds / total.seconds:.2f} times as fast, "
                f"{total.draft_seconds / total.seconds:.0%} of it drafting; "
                f"{'the same beams and scores' if total.same else 'OTHER BEAMS'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
