"""The planner on a made-up clock: recorded texts are said again while passes take what a law of their rows says.

    python -m headstart_lab.programs.replay texts.json --record PROMPTS.jsonl
    python -m headstart_lab.programs.replay texts.json --batches 1,2,4,8,16,32 --drafters auto

All but the passes is timed on the thread's own clock, so that other work on the machine matters little and the law may
be another machine's. Users ask again when answered (closed loop); every run begins with a drafter that knows nothing.
Texts are checked. Drafters that read the target's states or logits cannot take part.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch

from headstart.drafting.context import DraftContext
from headstart.engine.engine import Engine
from headstart.engine.schedule import Limits
from headstart.engine.sequence import Sequence as Decoded
from headstart.engine.sequence import StopRules
from headstart.loading.model import load_model
from headstart.passes.backend import Backend
from headstart.passes.batch import NO_STATES, IntArray, path_lengths
from headstart.passes.runner import ModelRunner, Span, SpanOutput
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms
from headstart_lab.bench.prompts import choose, encode_turns, read_prompts
from headstart_lab.workbench import PLAIN, Workbench, contenders

_VOCAB = 65536
_LONGEST_PROMPT, _TOKENS, _TEXTS = 220, 96, 64
_passes = 0.0
"""Made-up seconds so far."""


def _clock() -> float:
    return time.thread_time() + _passes


class _Storage:
    """Holds nothing."""

    nbytes = 0

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size

    def move(self, source: IntArray, target: IntArray) -> None: ...

    def copy_blocks(self, source: Sequence[int], target: Sequence[int]) -> None: ...


class _Replay(ModelRunner):
    """Says recorded texts. Passes take ``plain`` seconds, each further row ``slope``, from ``knee`` on twice it."""

    def __init__(self, cache_tokens: int, plain: float, slope: float, knee: int) -> None:
        backend = SimpleNamespace(allocate_cache=_Storage, finds_best=True, config=SimpleNamespace(vocab_size=_VOCAB))
        super().__init__(cast(Backend, backend), cache_tokens)
        self.plain, self.slope, self.knee = plain, slope, knee
        self.texts: dict[int, list[int]] = {}

    def forward(
        self, spans: Sequence[Span], taps: tuple[int, ...] = (), num_layers: int | None = None
    ) -> list[SpanOutput]:
        global _passes
        began = time.thread_time()
        outputs = [SpanOutput(torch.empty(0, _VOCAB), NO_STATES, self._best(span)) for span in spans]
        rows = sum(map(len, spans))
        seconds = self.plain + self.slope * (rows - 1 + max(rows - self.knee, 0))
        _passes += seconds - (time.thread_time() - began)
        return outputs

    def _best(self, span: Span) -> IntArray:
        """[row] the text's next token after rows that are the text's own; after others, any."""
        text, first = self.texts.get(span.sequence_id, []), self.cache.length(span.sequence_id)
        right: list[bool] = []
        best = np.zeros(len(span), dtype=np.int32)
        rows = zip(span.tokens.tolist(), span.parents.tolist(), path_lengths(span.parents.tolist()), strict=True)
        for row, (token, parent, depth) in enumerate(rows):
            place = first + depth - 1
            right.append(place + 1 < len(text) and token == text[place] and (parent < 0 or right[parent]))
            best[row] = text[place + 1] if right[row] else 0
        return best


def _record(model_name: str, prompts: Path, out: Path) -> None:
    model = load_model(model_name, "auto")
    encoded = [encode_turns(model, prompt.turns[:1], []) for prompt in choose(read_prompts(prompts), None)]
    encoded = [tokens for tokens in encoded if len(tokens) <= _LONGEST_PROMPT]
    random.Random(0).shuffle(encoded)
    bench = Workbench.of_model(model, 16, _LONGEST_PROMPT + _TOKENS)
    params = SamplingParams(temperature=0, max_tokens=_TOKENS, ignore_eos=True)
    sequences = [bench.sequence(tokens, params) for tokens in encoded[:_TEXTS]]
    bench.decode(bench.open(contenders(PLAIN)[0]), *sequences)
    out.write_text(json.dumps([[each.prompt_length, each.tokens] for each in sequences]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, help="JSON: a prompt's length and all tokens, for each text")
    parser.add_argument("--record", type=Path, help="write that file: greedy answers to prompts in Spec-Bench's form")
    parser.add_argument("--model", default="smollm2", help="that answers")
    parser.add_argument("--drafters", default="auto")
    parser.add_argument("--batches", default="1,2,4,8,16,32")
    parser.add_argument("--requests", type=int, default=32, help="of each run; at least one for each user")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--pass-ms", default="12.3,0.58,16", help="a plain pass, each further row, rows of the knee")
    wanted = parser.parse_args()
    if wanted.record is not None:
        _record(wanted.model, wanted.record, wanted.texts)
        return
    # Engine and planner look at the same clock.
    time.perf_counter = _clock
    texts = json.loads(wanted.texts.read_text(encoding="utf-8"))
    plain, slope, knee = map(float, wanted.pass_ms.split(","))
    params, ids = SamplingParams(temperature=0), count()
    transforms = Transforms(params, _VOCAB, ())
    print("| users | drafter | speed-up | tokens a round | ms a token | of it not passes |")
    print("|---|---|---|---|---|---|")
    for users in map(int, wanted.batches.split(",")):
        taken: dict[str, list[float]] = {}
        for contender in contenders(wanted.drafters):
            chooser, rounds, beside = random.Random(1), 0, 0.0
            seconds = taken[contender.name] = []
            for _ in range(wanted.repeats):
                runner = _Replay(users * 512, plain / 1e3, slope / 1e3, int(knee))
                drafter = contender.create(DraftContext(_VOCAB, runner))
                engine = Engine(runner, drafter, Limits(max_sequences=users))
                chosen = chooser.sample(texts, max(wanted.requests, users))
                began, passes = _clock(), _passes
                sequences = []
                for length, tokens in chosen:
                    stops = StopRules(frozenset(), frozenset(), wanted.max_tokens)
                    noise = SequenceNoise(0, 0)
                    sequence = Decoded(next(ids), tokens[:length], length, params, transforms, noise, stops)
                    runner.texts[sequence.id] = tokens
                    engine.add(sequence)
                    sequences.append(sequence)
                while not engine.idle:
                    engine.step()
                seconds.append(_clock() - began)
                beside += seconds[-1] - (_passes - passes)
                rounds += sum(sequence.stats.rounds for sequence in sequences)
                for sequence, (length, tokens) in zip(sequences, chosen, strict=True):
                    assert sequence.output == tokens[length : length + wanted.max_tokens], contender.name
            said = len(chosen) * wanted.max_tokens * wanted.repeats
            ratio = median([a / b for a, b in zip(taken[PLAIN], seconds, strict=True)])
            cells = f"{ratio:.3f} | {said / rounds:.2f} | {sum(seconds) / said * 1e3:.2f} | {beside / said * 1e3:.3f}"
            print(f"| {users} | {contender.name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
