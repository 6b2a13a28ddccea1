"""Headstart beside its peers: the same prompts, the same model file, as many tokens, in one sitting.

    python benchmarks/peers/run.py --per-group 2 --drafters ngram,recycling --out results

Every peer runs in an environment of its own, which the first run makes (``environments.py``), as a process that waits
for requests. Each prompt is decoded by all contenders one right after the other. Headstart's plain decoding comes
first and says how many tokens an answer has; every peer decodes as many, whatever it says. All are greedy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from environments import CACHE, PEERS, WORKERS, Peer

from headstart.analysis.bars import Bar, BarChart
from headstart.analysis.bench.prompts import BenchPrompt, choose, encode_turns, read_prompts
from headstart.analysis.bench.run import Run
from headstart.analysis.bench.summary import Speed, speeds
from headstart.analysis.page import Cell, Table
from headstart.analysis.plots import Figure
from headstart.analysis.provenance import finished, flat, model_record, provenance
from headstart.analysis.workbench import PLAIN, Workbench, contenders
from headstart.cli.exhibits import print_tables, write_report
from headstart.engine.engine import Engine
from headstart.engine.outputs import SequenceStats
from headstart.errors import HeadstartError
from headstart.loading import Model, load_model
from headstart.models.aliases import DEFAULT_MODEL
from headstart.sampling.params import SamplingParams

FORMAT = "headstart-peers/1"
MAX_CONTEXT = 2048
WARM_UP, WARM_UP_PROMPT = 8, (1, 2, 1, 2)

Answer = tuple[Sequence[int], SequenceStats]
Decode = Callable[[Sequence[int], int], Answer]
"""(prompt, tokens at most) -> token ids, counts and times. Peers always decode as many as they are asked for."""


class Worker:
    """A peer's process."""

    def __init__(self, peer: Peer, model: Path, work: Path, threads: int) -> None:
        command = [str(peer.python), str(WORKERS / peer.worker), "--model", str(model), "--work", str(work)]
        command += ["--threads", str(threads), "--max-context", str(MAX_CONTEXT)]
        self.peer = peer
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        hello = self._read()
        self.modes: list[str] = hello["modes"]
        self.versions: dict[str, str] = hello["versions"]

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def decode(self, mode: str, tokens: Sequence[int], count: int) -> dict[str, Any]:
        """One request; raises RuntimeError with what the peer has to say if it fails."""
        assert self._process.stdin is not None
        print(json.dumps({"mode": mode, "tokens": list(tokens), "count": count}), file=self._process.stdin, flush=True)
        reply = self._read()
        if "error" in reply:
            raise RuntimeError(f"{self.peer.name}, {mode}: {reply['error']}")
        return reply

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.peer.name} ended with status {self._process.wait()}; see above.")
        reply: dict[str, Any] = json.loads(line)
        return reply


def main() -> None:
    options = arguments()
    where = provenance()
    torch.set_num_threads(options.threads)
    model = load_model(options.model, options.precision)
    prompts = choose(read_prompts(options.prompts), options.per_group)
    work = CACHE / "work" / model.checkpoint.digest()[:12]
    work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        workers = []
        for name in options.peers:
            PEERS[name].install()
            workers.append(stack.enter_context(Worker(PEERS[name], model.checkpoint.path, work, options.threads)))
        runs = list(measure(model, workers, prompts, options))
    record = {
        "provenance": finished(where),
        "model": model_record(model),
        "versions": {worker.peer.name: worker.versions for worker in workers},
        "settings": {
            "prompts": "package" if options.prompts is None else options.prompts.name,
            "prompt_ids": [prompt.id for prompt in prompts],
            "max_tokens": options.max_tokens,
            "repeats": options.repeats,
            "threads": options.threads,
            "batch_size": 1,
        },
    }
    report(runs, record, options.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as for headstart; a GGUF file serves all peers")
    parser.add_argument("--precision", default="auto", help="of Headstart")
    parser.add_argument("--peers", default=",".join(PEERS), type=lambda text: [n for n in text.split(",") if n])
    parser.add_argument("--drafters", default="ngram", help="Headstart's, beside its plain decoding")
    parser.add_argument("--prompts", type=Path, help="JSONL in Spec-Bench's form; first turns are used")
    parser.add_argument("--per-group", type=int)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="directory for peers.json and peers.html")
    options = parser.parse_args()
    unknown = set(options.peers) - set(PEERS)
    if unknown:
        parser.error(f"there is no peer {min(unknown)!r}; choose from {', '.join(PEERS)}")
    return options


def own_decoder(bench: Workbench, engine: Engine) -> Decode:
    """Headstart with one drafter."""

    def decode(tokens: Sequence[int], count: int) -> Answer:
        sequence = bench.sequence(tokens, SamplingParams(temperature=0, max_tokens=count))
        bench.decode(engine, sequence)
        return sequence.output, sequence.stats

    return decode


def peer_decoder(worker: Worker, mode: str) -> Decode:
    """One mode of a peer. Its first token comes with the prompt and counts as decoded: 1 / count in its favour."""

    def decode(tokens: Sequence[int], count: int) -> Answer:
        reply = worker.decode(mode, tokens, count)
        stats = SequenceStats(
            prompt_tokens=len(tokens),
            tokens=len(reply["tokens"]),
            seconds=reply["seconds"],
            prefill_seconds=reply["first_seconds"] or 0.0,
        )
        return reply["tokens"], stats

    return decode


def measure(
    model: Model, workers: Sequence[Worker], prompts: Sequence[BenchPrompt], options: argparse.Namespace
) -> Iterator[Run]:
    """All contenders on each prompt, the order of those after plain decoding rotating."""
    bench = Workbench.of_model(model, max_context=MAX_CONTEXT)
    peers = {f"{worker.peer.name} {mode}": peer_decoder(worker, mode) for worker in workers for mode in worker.modes}
    for decode in peers.values():
        decode(WARM_UP_PROMPT, WARM_UP)
    for repeat in range(options.repeats):
        # Drafters are fresh in each repeat: one that remembers requests must not have seen the answer before.
        own = {own_name(each.name): own_decoder(bench, bench.open(each)) for each in contenders(options.drafters)}
        for decode in own.values():
            decode(WARM_UP_PROMPT, WARM_UP)
        plain = own.pop(own_name(PLAIN))
        others = list((own | peers).items())
        for place, prompt in enumerate(prompts):
            tokens = encode_turns(model, prompt.turns[:1], [])
            if not bench.fits(tokens, options.max_tokens):
                print(f"prompt {prompt.id} is left out: {len(tokens)} tokens are too many", file=sys.stderr)
                continue
            output, stats = plain(tokens, options.max_tokens)
            count = len(output)
            answers = [(own_name(PLAIN), output, stats)]
            first = (place + repeat) % max(len(others), 1)
            answers += [(name, *decode(tokens, count)) for name, decode in others[first:] + others[:first]]
            for name, output, stats in answers:
                yield Run(name, prompt.id, prompt.group, 0, repeat, tuple(output), (), stats, must_agree=False)
            print(f"repeat {repeat + 1}, prompt {prompt.id}: {count} tokens", file=sys.stderr)


def own_name(drafter: str) -> str:
    return f"headstart {drafter}"


def report(runs: Sequence[Run], record: dict[str, Any], out: Path | None) -> None:
    """Tables on the terminal, JSON and HTML in ``out``."""
    names = list(dict.fromkeys(run.contender for run in runs))
    by_name = {name: [run for run in runs if run.contender == name] for name in names}
    plain = by_name[own_name(PLAIN)]
    figures = {name: speeds(mine, plain) for name, mine in by_name.items()}
    agreement = {name: same_tokens(mine, plain) for name, mine in by_name.items()}
    ranked = sorted(names, key=lambda name: figures[name][1].decoding.middle, reverse=True)
    groups = list(figures[names[0]][0])
    shown: list[Table | Figure | BarChart] = [
        table(ranked, figures, agreement),
        Table(
            "Tokens per second in decoding, by task group",
            ("contender", *groups),
            tuple((name, *(figures[name][0][group].decoding.middle for group in groups)) for name in ranked),
            decimals=1,
        ),
        chart(ranked, figures),
        Table("Where these figures come from", ("", ""), tuple(flat(record))),
    ]
    print_tables(shown)
    if out is not None:
        result = {
            "format": FORMAT,
            **record,
            "contenders": [
                {
                    "name": name,
                    "groups": {group: asdict(speed) for group, speed in figures[name][0].items()},
                    "mean": asdict(figures[name][1]),
                    "same_tokens": agreement[name],
                }
                for name in names
            ],
            "runs": [run_row(run) for run in runs],
        }
        write_report(out, "peers", result, "Headstart and its peers", shown)


def table(
    ranked: Sequence[str], figures: dict[str, tuple[dict[str, Speed], Speed]], agreement: dict[str, float]
) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            figures[name][1].decoding.middle,
            figures[name][1].with_prefill.middle,
            figures[name][1].speedup.middle,
            f"{agreement[name]:.0%}",
        )
        for name in ranked
    ]
    return Table(
        "Headstart and its peers",
        ("contender", "tokens/s", "with prefill", "over headstart none", "same tokens"),
        tuple(rows),
        "Means over the task groups, medians over the repeats; greedy, one sequence at a time. same tokens: how far, "
        "on average, a text is Headstart's plain one; peers round differently, and some hold other weights.",
        decimals=(0, 1, 1, 2, 0),
    )


def chart(ranked: Sequence[str], figures: dict[str, tuple[dict[str, Speed], Speed]]) -> BarChart:
    bars = [Bar(name, *_spread(figures[name][1])) for name in ranked]
    return BarChart("Decoding", "tokens per second, mean of the task groups", tuple(bars), decimals=1)


def same_tokens(runs: Sequence[Run], plain: Sequence[Run]) -> float:
    """Mean part of an answer before its first difference from plain decoding's."""
    expected = {(run.prompt, run.repeat): run.tokens for run in plain}
    parts = []
    for run in runs:
        reference = expected[run.prompt, run.repeat]
        shared = 0
        while shared < min(len(reference), len(run.tokens)) and reference[shared] == run.tokens[shared]:
            shared += 1
        parts.append(shared / len(reference))
    return sum(parts) / len(parts)


def run_row(run: Run) -> dict[str, Any]:
    return {
        "contender": run.contender,
        "prompt": run.prompt,
        "group": run.group,
        "repeat": run.repeat,
        "prompt_tokens": run.stats.prompt_tokens,
        "tokens": run.stats.tokens,
        "seconds": run.stats.seconds,
        "prefill_seconds": run.stats.prefill_seconds,
    }


def _spread(speed: Speed) -> tuple[float, float, float]:
    return speed.decoding.middle, speed.decoding.low, speed.decoding.high


if __name__ == "__main__":
    try:
        main()
    except (HeadstartError, RuntimeError) as error:
        sys.exit(f"Error: {error}")
