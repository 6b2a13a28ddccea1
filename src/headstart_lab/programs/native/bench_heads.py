"""One step of a trained head against one plain pass of its target, taken in turns: ratios of medians.

    python -m headstart_lab.programs.native.bench_heads [--precision bf16] [--threads 1] [--cpu-time] [--rows 1 4 8]

Weights are random: cost does not depend on their values. A step follows a pass of the target, as in decoding, so the
first of a draft finds its weights in memory; ``next`` is a step right behind another.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.heads import NativeEaglePass
from headstart.backends.native.linear import native_kit
from headstart.backends.native.precision import PRECISIONS
from headstart.backends.torch.eagle_pass import EaglePass
from headstart.backends.torch.head_kit import torch_kit
from headstart.drafting.heads.head_pass import DraftRows, HeadPass
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.eagle.head import EagleHead
from headstart_lab.methods.medusa.head import ParallelConfig, ParallelHeads
from headstart_lab.methods.medusa.running import ParallelPass
from headstart_lab.programs.native.bench_pass import SHAPES, chain, random_model
from headstart_train.first_steps.eagle import eagle_config


def drafted(head: HeadPass, rows: int, context: int, width: int) -> Callable[[], object]:
    """A step of ``rows`` beams behind ``context`` true rows and one level of the draft."""
    features = torch.randn(context, width)
    cache = head.new_cache()
    states, _ = head.read(np.zeros(context, np.int32), features, [DraftRows(cache, context)])
    paths = np.arange(rows, dtype=np.int32)[:, None]
    states, tokens = states.repeat(rows, 1), np.arange(rows, dtype=np.int32)

    def step() -> None:
        cache.truncate(context)
        _, logits = head.step(tokens, states, [DraftRows(cache, rows, paths)])
        head.best(logits, 6)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="bf16", choices=PRECISIONS, help="the head's")
    parser.add_argument("--target-precision", default="bf16", choices=PRECISIONS)
    parser.add_argument("--torch", action="store_true", help="the head by PyTorch instead")
    parser.add_argument("--shape", default="smollm2-135m", choices=SHAPES)
    parser.add_argument("--draft-vocab", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    clock = time.process_time if options.cpu_time else time.perf_counter
    config, weights = random_model(**SHAPES[options.shape])  # type: ignore[arg-type]
    target = NativeBackend(config, weights, options.target_precision, options.threads)
    blocks = (options.context + 32) // 32
    storage = target.allocate_cache(blocks)
    prompt = torch.randint(0, config.vocab_size, (options.context,))
    target.forward(chain(prompt, 0, blocks, 1), storage)
    row = chain(prompt[:1], options.context, blocks, 1)

    tables = TargetTables(weights.embedding, weights.head.weight)
    eagle = EagleHead(eagle_config(config, "eagle3", options.draft_vocab))
    medusa = ParallelHeads(ParallelConfig("medusa", config.hidden_size, config.vocab_size, options.draft_vocab))
    dtype = torch.float32 if options.precision == "fp32" else torch.bfloat16
    kit = torch_kit(dtype) if options.torch else native_kit(options.precision, options.threads)
    head: HeadPass = (
        EaglePass(eagle, tables, dtype)
        if options.torch
        else NativeEaglePass(eagle, tables, options.precision, options.threads)
    )
    assert kit is not None
    heads = ParallelPass(medusa, tables, kit)
    state = torch.randn(1, config.hidden_size)
    width = len(eagle.config.taps) * config.hidden_size
    cases = [(f"eagle3 {rows} rows", drafted(head, rows, options.context, width)) for rows in options.rows]
    cases.append(("medusa", lambda: heads.best(heads.logits(state, torch.zeros(1, dtype=torch.int64)), 8)))
    for name, work in cases:
        times: dict[str, list[float]] = {"pass": [], "first": [], "next": []}
        for _ in range(options.repeats):
            for case, run in (("pass", lambda: target.forward(row, storage)), ("first", work), ("next", work)):
                start = clock()
                run()
                times[case].append((clock() - start) * 1e3)
        medians = {case: statistics.median(values) for case, values in times.items()}
        result = {
            "case": name,
            "head": "torch" if options.torch else "native",
            "precision": options.precision,
            "target": target.name,
            "shape": options.shape,
            "threads": options.threads,
            "context": options.context,
            "machine": platform.processor() or platform.machine(),
            **{f"{case}_ms": round(value, 3) for case, value in medians.items()},
            "first_ratio": round(medians["first"] / medians["pass"], 3),
            "next_ratio": round(medians["next"] / medians["pass"], 3),
        }
        if options.json:
            print(json.dumps(result), flush=True)
        else:
            print(
                f"{result['head']} {options.precision} {name:>14}: {result['first_ms']:6.2f} ms after a pass, "
                f"{result['next_ms']:6.2f} after a step; pass {result['pass_ms']:6.2f}; "
                f"ratios {result['first_ratio']:5.3f} and {result['next_ratio']:5.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
