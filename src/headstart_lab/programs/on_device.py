"""What an accelerator gives: its rates, passes of random targets beside them, and drafters beside plain decoding.

    python -m headstart_lab.programs.on_device --minutes 3 --out results.json
    python -m headstart_lab.programs.on_device --model smollm2 --drafters ngram,eagle3,auto --shapes smollm2-135m

Passes are bf16, of random weights (their cost does not depend on the values), over a context of ``--context`` tokens.
"over reads" is a pass of one row over the time in which its weights could be copied; "kernels" is what the device
itself computes of it, by PyTorch's profiler: the rest is waiting for Python. Texts are greedy. Where one parts from
plain decoding's, the gap is that of the two best logits there, as a part of all logits' range: in bf16 those of a tie
may change places. Without an accelerator everything runs on the processor.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from headstart.backends.torch.backend import TorchBackend
from headstart.backends.torch.device import finish, parse_device
from headstart.backends.torch.recorder import recorder_of
from headstart.drafting.options import pieces
from headstart.errors import HeadstartError
from headstart.loading.model import load_model
from headstart.loading.reading import Reading
from headstart.passes.runner import Span
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.prompts import choose, encode_turns, read_prompts
from headstart_lab.devices import available_devices
from headstart_lab.differences import first_difference, numerics_of
from headstart_lab.plan.pass_times import measure_passes
from headstart_lab.programs.native.bench_pass import SHAPES, random_model
from headstart_lab.provenance import finished, model_record, provenance
from headstart_lab.workbench import PLAIN, Contender, Workbench

TINY = dict(hidden=64, heads=4, kv_heads=2, head_dim=16, mlp=128, layers=2, vocab=512)
ALL_SHAPES = {**SHAPES, "tiny": TINY}
ROWS = (1, 2, 4, 8, 16, 32, 64)
BATCH = 16
"""Sequences that an accelerator is asked for together."""
GREEDY = SamplingParams(temperature=0)
_PROMPT_TOKENS, _PROMPTS = 64, 3
_SCRATCH = -1


class Clock:
    """How much of the minutes is left."""

    def __init__(self, minutes: float) -> None:
        self._end = time.perf_counter() + 60 * minutes

    @property
    def left(self) -> float:
        return self._end - time.perf_counter()


def seconds_of(work: Callable[[], object], device: torch.device, most_seconds: float) -> float:
    """Of one run, the median of up to 50 that end within ``most_seconds``."""
    taken: list[float] = []
    for _ in range(3):
        work()
    finish(device)
    end = time.perf_counter() + most_seconds
    while len(taken) < 3 or (len(taken) < 50 and time.perf_counter() < end):
        start = time.perf_counter()
        work()
        finish(device)
        taken.append(time.perf_counter() - start)
    return median(taken)


def measure_rates(device: torch.device, tiny: bool) -> dict[str, float]:
    """Bytes that a copy reads and writes in a second, and operations of a bf16 product."""
    size, side = (1 << 28, 512) if tiny else (1 << 30, 8192)
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = seconds_of(lambda: target.copy_(source), device, 1.0)
    left, right = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    made = torch.empty_like(left)
    multiplied = seconds_of(lambda: torch.mm(left, right, out=made), device, 1.0)
    return {"copy_bytes_per_second": 2 * size / copied, "bf16_operations_per_second": 2 * side**3 / multiplied}


def measure_shape(
    name: str, device: torch.device, context: int, copy_rate: float, seconds: float, graphs: bool
) -> dict[str, Any]:
    """Passes of a random target, in about so many seconds; ``graphs``: recorded ones."""
    config, weights = random_model(**ALL_SHAPES[name], device=device, one_layer=False)
    recorder = recorder_of(device) if graphs else None
    backend = TorchBackend(config, weights, torch.bfloat16, device, recorder=recorder)
    read = backend.nbytes - backend.decoder.embedding.nbytes
    bench = Workbench(backend, max_context=context + 2 * ROWS[-1], max_sequences=BATCH)
    text = np.random.default_rng(0).integers(config.vocab_size, size=context).tolist()
    start = time.perf_counter()
    measure_passes(bench, context, [1], 2, GREEDY, text)
    repeats = int(min(max(seconds / (time.perf_counter() - start) / 2, 3), 30))
    batches = [1] if device.type == "cpu" else [1, BATCH]
    curves = measure_passes(bench, context, batches, repeats, GREEDY, text).seconds
    ms = {batch: {rows: 1e3 * took for rows, took in curve.items()} for batch, curve in curves.items()}
    return {
        "shape": name,
        "bytes_read": read,
        "one_row_over_reads": curves[1][1] / (read / copy_rate),
        "pass_ms": ms,
        "over_one_row": {rows: ms[1][rows] / ms[1][1] for rows in ROWS},
        "prompt_ms": 1e3 * seconds_of(lambda: read_context(bench, text), device, 0.5),
        **kernels_of(bench, text, device),
        **texts_of(
            bench,
            [text[:_PROMPT_TOKENS]],
            ["ngram", "synthetic:rates=[0.8,0.8,0.8,0.8]"],
            int(min(max(seconds / (10 * curves[1][1]), 8), 48)),
        ),
    }


def read_context(bench: Workbench, text: Sequence[int]) -> None:
    """A pass of a whole context."""
    cache = bench.runner.cache
    cache.add(_SCRATCH)
    try:
        with cache.reserve({_SCRATCH: len(text)}, final={_SCRATCH}):
            bench.runner.forward([Span.chain(_SCRATCH, text, "last")])
    finally:
        cache.remove(_SCRATCH)


def kernels_of(bench: Workbench, text: Sequence[int], device: torch.device) -> dict[str, float]:
    """How many kernels a pass of one row runs after ``text``, and how long; nothing where they cannot be counted."""
    if device.type != "cuda":
        return {}
    cache = bench.runner.cache
    cache.add(_SCRATCH)
    try:
        with cache.reserve({_SCRATCH: len(text)}, final={_SCRATCH}):
            bench.runner.forward([Span.chain(_SCRATCH, text, "none")])
            cache.commit(_SCRATCH, range(len(text)))
        with cache.reserve({_SCRATCH: 1}, final={_SCRATCH}):
            bench.runner.forward([Span.chain(_SCRATCH, [1])])
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                bench.runner.forward([Span.chain(_SCRATCH, [1])])
    except RuntimeError as error:
        print(f"the profiler does not run here: {error}")
        return {}
    finally:
        cache.remove(_SCRATCH)
    events = [event for event in profile.key_averages() if event.self_device_time_total]
    return {
        "kernels": sum(event.count for event in events),
        "kernels_ms": sum(event.self_device_time_total for event in events) / 1e3,
    }


def texts_of(
    bench: Workbench, prompts: Sequence[Sequence[int]], drafters: Sequence[str], max_tokens: int
) -> dict[str, Any]:
    """Plain decoding and drafters in turns, the first of which does not count."""
    found: dict[str, Any] = {}
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    engines = {}
    for name in (PLAIN, *drafters):
        try:
            engines[name] = bench.open(Contender.parse(name))
        except HeadstartError as error:
            print(f"{name} is left out: {error}")
    taken: dict[str, list[float]] = {name: [] for name in engines}
    said = {}
    for _ in range(3):
        for name, engine in engines.items():
            said[name] = [bench.sequence(tokens, params) for tokens in prompts]
            start = time.perf_counter()
            for sequence in said[name]:
                bench.decode(engine, sequence)
            taken[name].append(time.perf_counter() - start)
    plain = said[PLAIN]
    for name, sequences in said.items():
        rounds = sum(each.stats.rounds for each in sequences)
        tokens = sum(each.num_output for each in sequences)
        seconds = median(taken[name][1:])
        found[name] = {
            "tokens_per_second": tokens / seconds,
            "over_plain": median(taken[PLAIN][1:]) / seconds,
            "tokens_per_round": tokens / rounds,
            "round_ms": 1e3 * seconds / rounds,
            "differences": list(differences(bench, plain, sequences)),
        }
    return {"drafters": found}


def differences(bench: Workbench, plain: Sequence[Any], others: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Where texts part from plain decoding's."""
    for number, (ours, theirs) in enumerate(zip(plain, others, strict=True)):
        if ours.output != theirs.output:
            parting = first_difference(bench, ours, theirs.output)
            tie = parting.is_tie(numerics_of(bench.backend))
            yield {"prompt": number, "token": parting.index, "gap": parting.gap, "tie": tie}


def measure_model(
    name: str, device: torch.device, drafters: Sequence[str], max_tokens: int, graphs: bool
) -> dict[str, Any]:
    """A model's texts on prompts of the package."""
    model = load_model(name, device=device, reading=Reading(cuda_graphs=graphs))
    bench = Workbench.of_model(model, max_context=1024)
    encoded = [encode_turns(model, prompt.turns[:1], []) for prompt in choose(read_prompts(), 1)]
    prompts = [tokens for tokens in encoded if bench.fits(tokens, max_tokens)][:_PROMPTS]
    return {"model": model_record(model), **texts_of(bench, prompts, drafters, max_tokens)}


def show(result: dict[str, Any]) -> None:
    """A few lines of a shape or model."""
    if "shape" in result:
        kernels = f", kernels {result['kernels_ms']:.2f} ms ({result['kernels']})" if "kernels" in result else ""
        print(
            f"{result['shape']}: one row {result['pass_ms'][1][1]:.2f} ms = {result['one_row_over_reads']:.2f} over "
            f"reads{kernels}; a context in {result['prompt_ms']:.1f} ms"
        )
        print("  rows  " + "  ".join(f"{rows}: {ratio:.2f}" for rows, ratio in result["over_one_row"].items()))
        for batch, curve in result["pass_ms"].items():
            print(f"  {batch} sequences, rows: ms  " + "  ".join(f"{rows}: {ms:.2f}" for rows, ms in curve.items()))
    for name, each in result["drafters"].items():
        parted = [
            f"token {it['token']} gap {it['gap']:.1e}{' (tie)' if it['tie'] else ''}" for it in each["differences"]
        ]
        apart = "; ".join(parted) or "nowhere"
        print(
            f"  {name}: {each['tokens_per_second']:.0f} tokens/s ({each['over_plain']:.2f} of plain), "
            f"{each['tokens_per_round']:.2f} a round of {each['round_ms']:.2f} ms; parts from plain: {apart}"
        )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=available_devices()[-1], help="by PyTorch's name; the last one there is")
    parser.add_argument("--minutes", type=float, default=3.0, help="of everything; what does not fit is left out")
    parser.add_argument("--shapes", default=",".join(SHAPES), help=f"of {', '.join(ALL_SHAPES)}; or none")
    parser.add_argument("--context", type=int, default=512, help="tokens before the rows of a pass")
    parser.add_argument("--model", help="whose texts are decoded too: a directory, file or name")
    parser.add_argument("--drafters", default="ngram,eagle3,auto", help="for the model")
    parser.add_argument("--max-tokens", type=int, default=96, help="of a text")
    graphs = argparse.BooleanOptionalAction
    parser.add_argument("--cuda-graphs", action=graphs, default=True, help="record passes, where the device can")
    parser.add_argument("--out", type=Path, help="JSON file, written anew after each part")
    wanted = parser.parse_args()
    shapes = [] if wanted.shapes == "none" else wanted.shapes.split(",")
    if unknown := set(shapes) - set(ALL_SHAPES):
        parser.error(f"--shapes: {', '.join(sorted(unknown))}; there are {', '.join(ALL_SHAPES)}.")
    clock, where, device = Clock(wanted.minutes), provenance(), parse_device(wanted.device)
    record: dict[str, Any] = {
        "provenance": where,
        "settings": {name: str(value) for name, value in vars(wanted).items()},
        "device": {"name": str(device), "cuda": torch.version.cuda},
        "results": [],
    }
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        record["device"] |= {"card": card.name, "memory_bytes": card.total_memory}
    record["rates"] = rates = measure_rates(device, tiny=device.type == "cpu")
    copy_rate = rates["copy_bytes_per_second"]
    print(
        f"{record['device'].get('card', device)}, torch {torch.__version__}: copies {copy_rate / 1e9:.0f} GB/s, bf16 "
        f"products {rates['bf16_operations_per_second'] / 1e12:.1f} TFLOP/s",
        flush=True,
    )
    parts: list[Callable[[], dict[str, Any]]] = []
    if wanted.model:
        drafters = pieces(wanted.drafters, ",")
        parts.append(lambda: measure_model(wanted.model, device, drafters, wanted.max_tokens, wanted.cuda_graphs))
    for place, shape in enumerate(shapes):
        parts.append(
            lambda shape=shape, place=place: measure_shape(  # type: ignore[misc]
                shape, device, wanted.context, copy_rate, clock.left / (2 * (len(shapes) - place)), wanted.cuda_graphs
            )
        )
    for part in parts:
        if clock.left < 0:
            print("the minutes are over; further parts are left out")
            break
        record["results"].append(part())
        show(record["results"][-1])
        if wanted.out is not None:
            wanted.out.write_text(json.dumps(finished(record), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
