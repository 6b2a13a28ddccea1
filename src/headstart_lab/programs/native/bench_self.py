"""What a model's own weights in few bits cost as drafter of the same model: passes of both, in turns, on one cache.

    python -m headstart_lab.programs.native.bench_self --shape llama-3.2-1b [--target bf16] [--bits 4 3 2]
    python -m headstart_lab.programs.native.bench_self --shape llama-3.1-8b --layers 2 6

Weights are random: cost does not depend on their values. With two numbers of ``--layers`` both models are measured with
so many of their layers, and times are continued to all of them along a line: a model that does not fit into memory can
be measured so. For some rates of acceptance, each guess's given those before it, the best length of a chain and what
it comes to over plain decoding follow from the times (docs/exactness.md 10).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.few_bits import exchanged, in_fewer_bits
from headstart.backends.native.precision import Precision
from headstart.models.linear_weights import LinearWeights
from headstart.models.stored import FileMatrix
from headstart.models.weights import DecoderWeights
from headstart.passes.batch import KVStorage
from headstart_lab.programs.native.bench_pass import SHAPES, chain, random_model
from headstart_lab.provenance import finished, provenance

FORMAT = "headstart-self/1"
_CHANCES = (0.6, 0.7, 0.8, 0.9, 0.95)
_LONGEST = 12


def backends_of(
    shape: str, layers: int, target: Precision, bits: list[str]
) -> tuple[NativeBackend, dict[str, NativeBackend]]:
    """The target and its other weights, all on the target's cache."""
    sizes: dict[str, Any] = {**SHAPES[shape], "layers": layers}
    config, weights = random_model(**sizes)
    backend = NativeBackend(config, weights, target, torch.get_num_threads())
    own = {}
    for name in bits:
        few = made(in_fewer_bits(weights, int(name))) if name in ("3", "2") else weights
        precision: Any = {"4": "int4", "3": "blocks", "2": "blocks"}.get(name, name)
        own[name] = NativeBackend(config, few, precision, torch.get_num_threads(), small_head=True)
        own[name].take_cache_of(backend)
    return backend, own


def made(weights: DecoderWeights) -> DecoderWeights:
    """The same with matrices rounded once, which layers share."""

    known: dict[int, LinearWeights] = {}

    def of(linear: LinearWeights) -> LinearWeights:
        if id(linear) not in known:
            known[id(linear)] = rounded(linear)
        return known[id(linear)]

    def rounded(linear: LinearWeights) -> LinearWeights:
        matrix = linear.matrix
        assert isinstance(matrix, FileMatrix)
        parts = []
        for part in matrix.parts:
            assert part.stored is not None
            parts.append(replace(part, stored=replace(part.stored, data=part.stored.rows(), make=None)))
        return LinearWeights(FileMatrix(tuple(parts), matrix.shape[1], torch.float32), linear.bias, linear.stored_bits)

    return exchanged(weights, of)


def measure(options: argparse.Namespace, layers: int) -> dict[str, float]:
    """Median milliseconds of each pass, taken in turns: "4": a token of the drafter; "rows 5": of the target."""
    backend, own = backends_of(options.shape, layers, options.target, options.bits)
    blocks = (options.context + 64) // 32 + 1
    storage = backend.allocate_cache(blocks)
    tokens = torch.randint(0, backend.config.vocab_size, (options.context + 64,))
    backend.forward(chain(tokens[: options.context], 0, blocks, 0), storage)
    work: dict[str, Callable[[], object]] = {}
    for rows in options.rows:
        work[f"rows {rows}"] = _pass(backend, storage, tokens[:rows], options.context, blocks)
    for name, each in own.items():
        work[name] = _pass(each, storage, tokens[:1], options.context, blocks)
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(options.repeats):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start))
    for name, each in own.items():
        print(f"{layers} layers, bits {name}: {each.name}, {each.nbytes / 1e6:.0f} MB of {backend.nbytes / 1e6:.0f}")
    return {name: statistics.median(each) for name, each in times.items()}


def _pass(
    backend: NativeBackend, storage: KVStorage, tokens: torch.Tensor, context: int, blocks: int
) -> Callable[[], object]:
    rows = np.arange(len(tokens), dtype=np.int32)
    batch = replace(chain(tokens, context, blocks, 0), best_rows=rows)
    return lambda: backend.forward(batch, storage)


def speeds(times: dict[str, float], bits: str) -> list[dict[str, float]]:
    """By chance of a guess: the best length of a chain, and tokens per second over plain decoding's."""
    rows = sorted(int(name.split()[1]) for name in times if name.startswith("rows"))
    curve = [times[f"rows {each}"] for each in rows]
    found = []
    for chance in _CHANCES:
        best = (1.0, 0)
        for length in range(1, min(_LONGEST, rows[-1] - 1) + 1):
            tokens = sum(chance**depth for depth in range(length + 1))
            taken = length * times[bits] + float(np.interp(1 + length, rows, curve))
            best = max(best, (tokens * times["rows 1"] / taken, length))
        found.append({"chance": chance, "speedup": round(best[0], 2), "guesses": best[1]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-3.2-1b", choices=SHAPES)
    parser.add_argument("--target", default="bf16", help="precision of the target")
    parser.add_argument("--bits", nargs="+", default=["4", "3", "2"], help="4, 3, 2 or precisions")
    parser.add_argument("--layers", type=int, nargs="+", default=[], help="two numbers of layers to measure with")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8])
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, help="also write what came out, with its provenance, to this JSON file")
    options = parser.parse_args()
    where, whole = provenance(), SHAPES[options.shape]["layers"]
    if len(options.layers) == 2:
        few, more = sorted(options.layers)
        least, most = measure(options, few), measure(options, more)
        times = {name: least[name] + (most[name] - least[name]) * (whole - few) / (more - few) for name in least}
    else:
        times = measure(options, whole)
    for name, milliseconds in times.items():
        print(f"{name:>8}: {milliseconds:7.2f} ms, {milliseconds / times['rows 1']:.2f} of a plain pass")
    result = {name: speeds(times, name) for name in options.bits}
    for name, each in result.items():
        print(f"bits {name}: {json.dumps(each)}")
    if options.out:
        settings = {name: str(value) for name, value in vars(options).items() if name != "out"}
        record = {"format": FORMAT, "provenance": finished(where), "settings": settings, "ms": times, "speeds": result}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
