"""Drafters against plain decoding in batches of several sizes, in turn, on the same prompts.

    python -m headstart_lab.programs.batches PROMPTS.jsonl --batches 1,4,8,16,32 \\
        --drafters ngram,auto:drafters=ngram,auto
    python -m headstart_lab.programs.batches PROMPTS.jsonl --batches 1,4,16 --by-group --temperatures 0,1 \\
        --drafters auto

Every batch is decoded by each drafter one right after the other, as often as asked for; each cell is the
median of the ratios to plain decoding in the same turn, with the smallest and the largest. Tokens are compared with
plain decoding's; where requests sample, each text has its own noise, the same for all drafters.

All texts of a batch begin together, prompts are included, and the last one to end is waited for: with a drafter they
end at different times, and the batch thins out. With ``--keep-full 3`` a turn has three times as many texts, the next
begins where one ends, as in a server's queue, and rounds count in which all places decode. The first text of each place
is cut short, each at another length: else all of plain decoding's texts, and only its, would end in the same round.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import cycle, islice, product
from pathlib import Path
from statistics import median
from typing import Any

from headstart.engine.engine import Engine
from headstart.loading.model import load_model
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.prompts import choose, encode_turns, read_prompts
from headstart_lab.provenance import finished, model_record, provenance
from headstart_lab.workbench import PLAIN, Workbench, contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, nargs="?", help="in Spec-Bench's form; without: those that ship")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--drafters", default="ngram,auto:drafters=ngram,auto")
    parser.add_argument("--batches", default="1,4,8,16,32")
    parser.add_argument("--temperatures", default="0")
    parser.add_argument("--by-group", action="store_true", help="batches of the prompts of one group")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--longest-prompt", type=int, default=400, help="tokens; longer ones are left out")
    parser.add_argument("--repeats", type=int, default=3, help="turns that count; one more comes before them")
    parser.add_argument("--keep-full", type=int, metavar="N", help="N texts a place, one after the other")
    parser.add_argument("--cpu-time", action="store_true", help="of this process instead of the wall's (one thread)")
    parser.add_argument("--out", type=Path, help="JSON file")
    wanted = parser.parse_args()
    if wanted.keep_full and wanted.cpu_time:
        parser.error("--keep-full has the wall's time alone.")
    where = provenance()
    model = load_model(wanted.model, wanted.precision)
    groups: dict[str, list[list[int]]] = defaultdict(list)
    for prompt in choose(read_prompts(wanted.prompts), None):
        tokens = encode_turns(model, prompt.turns[:1], [])
        if len(tokens) <= wanted.longest_prompt:
            groups[prompt.group if wanted.by_group else "all"].append(tokens)
    listed = contenders(wanted.drafters)
    results: list[dict[str, Any]] = []
    print(f"| prompts | temperature | batch | {' | '.join(each.name for each in listed[1:])} | plain tokens/s |")
    print("|" + "---|" * (len(listed) + 3))
    temperatures = map(float, wanted.temperatures.split(","))
    for temperature, batch in product(temperatures, map(int, wanted.batches.split(","))):
        bench = Workbench.of_model(model, batch, wanted.longest_prompt + wanted.max_tokens)
        engines = {each.name: bench.open(each) for each in listed}
        for group, encoded in groups.items():
            cells = []
            speeds, different = turns(wanted, bench, engines, encoded, batch, temperature)
            for each in listed[1:]:
                ratios = [fast / plain for fast, plain in zip(speeds[each.name], speeds[PLAIN], strict=True)]
                cells.append(f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
                where_it_was = {"prompts": group, "temperature": temperature, "batch": batch, "drafter": each.name}
                results.append({**where_it_was, "ratios": ratios, "different": different[each.name]})
            line = f"{group} | {temperature:g} | {batch} | {' | '.join(cells)} | {median(speeds[PLAIN]):.1f}"
            print(f"| {line} |", flush=True)
    print(f"Texts that are not plain decoding's: {sum(each['different'] for each in results)}")
    if wanted.out is not None:
        settings = {name: str(value) for name, value in vars(wanted).items()}
        record = {"provenance": finished(where), "model": model_record(model), "settings": settings, "results": results}
        wanted.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def turns(
    wanted: argparse.Namespace,
    bench: Workbench,
    engines: Mapping[str, Engine],
    encoded: Sequence[list[int]],
    batch: int,
    temperature: float,
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Of each drafter: tokens per second in each turn that counts, and the texts that are not plain decoding's."""
    clock = time.process_time if wanted.cpu_time else time.perf_counter
    source = cycle(encoded)
    speeds: dict[str, list[float]] = defaultdict(list)
    different: dict[str, int] = defaultdict(int)
    for turn in range(wanted.repeats + 1):
        prompts = list(islice(source, batch * (wanted.keep_full or 1)))
        lengths = [wanted.max_tokens] * len(prompts)
        if wanted.keep_full:
            lengths[:batch] = [max(1, wanted.max_tokens * place // batch) for place in range(1, batch + 1)]
        asked = [
            (tokens, SamplingParams(temperature=temperature, max_tokens=length, ignore_eos=True, seed=place))
            for place, (tokens, length) in enumerate(zip(prompts, lengths, strict=True))
        ]
        names = list(engines)
        said = {}
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            sequences = [bench.sequence(tokens, params) for tokens, params in asked]
            if wanted.keep_full:
                with closing(bench.full_rounds(engines[name], sequences, batch)) as rounds:
                    tokens, seconds = (sum(column) for column in list(zip(*rounds, strict=True))[1:])
            else:
                start = clock()
                bench.decode(engines[name], *sequences)
                tokens, seconds = batch * wanted.max_tokens, clock() - start
            said[name] = [sequence.output for sequence in sequences]
            if turn:
                speeds[name].append(tokens / seconds)
        for name in names:
            for ours, plain in zip(said[name], said[PLAIN], strict=True):
                # The last texts of a batch that is kept full are given up before their end.
                length = min(len(ours), len(plain)) if wanted.keep_full else None
                different[name] += ours[:length] != plain[:length]
    return speeds, different


if __name__ == "__main__":
    main()
