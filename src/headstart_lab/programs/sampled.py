"""What speculation brings to requests that sample, beside what it brings to greedy ones.

    python -m headstart_lab.programs.sampled PROMPTS.jsonl --drafters ngram,suffix,eagle3 --temperature 1

Greedy and sampled, plain and with each drafter, take turns prompt by prompt. Prints tokens a round, speed-up over plain
decoding at the same temperature, the share of a round that is neither draft nor target pass, and the ratios of sampled
to greedy. Clocks run from the first round to the last; prompts are read outside of them.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

import torch

from headstart.engine.engine import Engine
from headstart.engine.outputs import SequenceStats
from headstart.loading.model import load_model
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.prompts import choose, encode_turns, read_prompts
from headstart_lab.workbench import PLAIN, Contender, Workbench, contenders


@dataclass
class Cell:
    """One contender at one temperature: what each group's prompts took, by group."""

    stats: dict[str, list[SequenceStats]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    """(group, prompt) -> seconds a token, one for each repeat."""

    def add(self, group: str, prompt: int, stats: SequenceStats) -> None:
        self.stats[group].append(stats)
        self.seconds[group, prompt].append(_decode_seconds(stats) / stats.tokens)

    @property
    def tokens_a_round(self) -> float:
        """The mean over the groups."""
        return fmean(sum(s.tokens for s in group) / sum(s.rounds for s in group) for group in self.stats.values())

    @property
    def overhead(self) -> float:
        """Of all rounds' time, the part that is neither draft nor target pass."""
        every = [stats for group in self.stats.values() for stats in group]
        passes = sum(each.draft_seconds + each.draft_prefill_seconds + each.target_seconds for each in every)
        return 1 - passes / sum(map(_decode_seconds, every))

    def speed_up(self, plain: Cell) -> float:
        """The mean over the groups of the median over their prompts: seconds a token, plain's over this one's."""
        ratios: dict[str, list[float]] = defaultdict(list)
        for key, seconds in self.seconds.items():
            ratios[key[0]].append(median(plain.seconds[key]) / median(seconds))
        return fmean(map(median, ratios.values()))


def _decode_seconds(stats: SequenceStats) -> float:
    return stats.seconds - stats.prefill_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, help="in Spec-Bench's form; the first turn of each is answered")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--drafters", default="ngram,suffix,recycling,medusa,eagle3")
    parser.add_argument("--per-group", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=1.0, help="of the sampled requests")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--threads", type=int, help="of the passes; as many as there are cores unless given")
    wanted = parser.parse_args()
    if wanted.threads:
        torch.set_num_threads(wanted.threads)
    model = load_model(wanted.model, wanted.precision)
    bench = Workbench.of_model(model)
    modes = {
        "greedy": {"temperature": 0.0},
        "sampled": {"temperature": wanted.temperature, "top_p": wanted.top_p, "top_k": wanted.top_k},
    }
    engines: dict[tuple[str, str], Engine] = {}
    for contender in contenders(wanted.drafters):
        # One engine a mode: what a drafter learns from one must not help the other.
        engines |= {(contender.name, mode): _warm(bench, contender) for mode in modes}
    cells: dict[tuple[str, str], Cell] = defaultdict(Cell)
    prompts = choose(read_prompts(wanted.prompts), wanted.per_group)
    for repeat in range(wanted.repeats):
        for number, prompt in enumerate(prompts):
            encoded = encode_turns(model, prompt.turns[:1], [])
            if not bench.fits(encoded, wanted.max_tokens):
                continue
            for (name, mode), engine in engines.items():
                params = SamplingParams(max_tokens=wanted.max_tokens, seed=number, **modes[mode])
                sequence = bench.sequence(encoded, params)
                bench.decode(engine, sequence)
                cells[name, mode].add(prompt.group, number, sequence.stats)
            print(f"repeat {repeat + 1}, prompt {number + 1} of {len(prompts)}", file=sys.stderr, flush=True)
    _print(cells)


def _warm(bench: Workbench, contender: Contender) -> Engine:
    engine = bench.open(contender)
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=0, max_tokens=4, ignore_eos=True)
        bench.decode(engine, bench.sequence([1, 2, 3], params))
    return engine


def _print(cells: dict[tuple[str, str], Cell]) -> None:
    print("| drafter | tokens/round greedy | sampled | ratio | speed-up greedy | sampled | ratio | rest of a round |")
    print("|---|---|---|---|---|---|---|---|")
    plain = {mode: cells[PLAIN, mode] for mode in ("greedy", "sampled")}
    for name in dict.fromkeys(name for name, _ in cells):
        greedy, sampled = cells[name, "greedy"], cells[name, "sampled"]
        tokens = greedy.tokens_a_round, sampled.tokens_a_round
        speed = greedy.speed_up(plain["greedy"]), sampled.speed_up(plain["sampled"])
        print(
            f"| `{name}` | {tokens[0]:.2f} | {tokens[1]:.2f} | {tokens[1] / tokens[0]:.2f} "
            f"| {speed[0]:.2f} | {speed[1]:.2f} | {speed[1] / speed[0]:.2f} "
            f"| {greedy.overhead:.1%}, {sampled.overhead:.1%} |"
        )
    first, second = plain["greedy"], plain["sampled"]
    ratios = [median(second.seconds[key]) / median(first.seconds[key]) for key in first.seconds]
    print(f"plain sampled decoding takes {median(ratios):.3f} times as long a token as plain greedy decoding")


if __name__ == "__main__":
    main()
