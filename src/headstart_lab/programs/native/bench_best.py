"""Passes that return best tokens against the same passes with logits whose best is looked up: ratios, in turns.

    python -m headstart_lab.programs.native.bench_best [--model smollm2] [--precision bf16] [--threads 2] \\
        [--rows 1 4 16]

Rows are a chunk of ``--text``, read behind other parts of it; how much the screen leaves depends on them. Tokens are
compared on the way. ``--cpu-time`` counts processor time instead of wall-clock time, for one thread on a busy machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.backends.native.precision import PRECISIONS
from headstart.loading.model import load_model
from headstart.passes.backend import Backend
from headstart.passes.batch import KVStorage, PassBatch

KINDS = ("logits", "best", "neither")
FIRST, SPREAD, BLOCK = 300, 256, 32


def run(backend: Backend, storage: KVStorage, text: NDArray[np.int32], first: int, count: int, kind: str) -> list[int]:
    """One pass over ``count`` tokens of the text from place ``first`` on; the best tokens behind them."""
    rows, none = np.arange(count, dtype=np.int32), np.zeros(0, np.int32)
    output = backend.forward(
        PassBatch(
            tokens=text[first : first + count],
            parents=rows - np.int32(1),
            row_starts=np.array([0, count], np.int32),
            cached_lengths=np.array([first], np.int32),
            block_tables=np.arange(len(text) // BLOCK, dtype=np.int32)[None],
            logit_rows=rows if kind == "logits" else none,
            best_rows=rows if kind == "best" else none,
        ),
        storage,
    )
    if kind == "best" and output.best is not None:
        return [int(token) for token in output.best]
    return [int(row.argmax()) for row in output.logits.numpy()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="bf16", choices=PRECISIONS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[4] / "docs" / "planner.md")
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    model = load_model(options.model, options.precision)
    blocks = -(-(FIRST + SPREAD + max(options.rows)) // BLOCK)
    text = np.asarray(model.tokenizer.encode(options.text.read_text())[: blocks * BLOCK], np.int32)
    storage = model.backend.allocate_cache(blocks, BLOCK)
    run(model.backend, storage, text, 0, len(text), "neither")
    print(f"{model.backend.name}, {options.threads} threads; milliseconds")
    for count in options.rows:
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for repeat in range(options.repeats):
            said = {}
            for kind in KINDS:
                start = clock()
                said[kind] = run(model.backend, storage, text, FIRST + repeat * 7 % SPREAD, count, kind)
                times[kind].append((clock() - start) * 1e3)
            if said["best"] != said["logits"]:
                raise SystemExit("best tokens are not those of the logits")
        ratios = sorted(best / logits for best, logits in zip(times["best"], times["logits"], strict=True))
        low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
        medians = "  ".join(f"{kind} {statistics.median(values):.2f}" for kind, values in times.items())
        print(f"{count:3} rows  {medians}  ratio {statistics.median(ratios):.3f} ({low:.3f}-{high:.3f})", flush=True)


if __name__ == "__main__":
    main()
