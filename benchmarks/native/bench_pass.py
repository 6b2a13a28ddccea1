"""One pass of the native backend against one read of its weights, interleaved: ratios, medians and best times.

    python benchmarks/native/bench_pass.py [--precision bf16] [--threads 2] [--context 300] [--rows 1 4 16]

Weights are random: cost does not depend on their values. ``--cpu-time`` counts processor time instead of wall-clock
time, for one thread on a busy machine.
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
from torch import Tensor

from headstart.models.backend import PassBatch
from headstart.models.config import LayerConfig, ModelConfig, RopeConfig
from headstart.models.weights import DecoderWeights, LayerWeights, LinearWeights, NormWeights
from headstart.native.backend import NativeBackend

SHAPES = {
    "smollm2-135m": dict(hidden=576, heads=9, kv_heads=3, head_dim=64, mlp=1536, layers=30, vocab=49152),
    "llama-3.2-1b": dict(hidden=2048, heads=32, kv_heads=8, head_dim=64, mlp=8192, layers=16, vocab=128256),
}


def random_model(
    *, hidden: int, heads: int, kv_heads: int, head_dim: int, mlp: int, layers: int, vocab: int
) -> tuple[ModelConfig, DecoderWeights]:
    config = ModelConfig(
        family="llama",
        vocab_size=vocab,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_size=mlp,
        max_positions=8192,
        layers=(LayerConfig(),) * layers,
        ropes=(RopeConfig(theta=1e5, dim=head_dim),),
    )

    def linear(outputs: int, inputs: int) -> LinearWeights:
        return LinearWeights(torch.empty(outputs, inputs, dtype=torch.bfloat16).normal_(0, inputs**-0.5))

    norm = NormWeights(torch.ones(hidden))
    parts = tuple(
        LayerWeights(
            attention_norm=norm,
            qkv=linear((heads + 2 * kv_heads) * head_dim, hidden),
            output=linear(hidden, heads * head_dim),
            mlp_norm=norm,
            up=linear(2 * mlp, hidden),
            down=linear(hidden, mlp),
        )
        for _ in range(layers)
    )
    head = linear(vocab, hidden)
    return config, DecoderWeights(embedding=head.weight, layers=parts, final_norm=norm, head=head)


def chain(tokens: Tensor, cached: int, blocks: int, wanted: int) -> PassBatch:
    rows = len(tokens)
    counted = np.arange(rows, dtype=np.int32)
    return PassBatch(
        tokens=tokens.numpy().astype(np.int32),
        positions=counted + cached,
        parents=counted - 1,
        row_starts=np.array([0, rows], np.int32),
        cached_lengths=np.array([cached], np.int32),
        block_tables=np.arange(blocks, dtype=np.int32)[None],
        logit_rows=counted[rows - wanted :],
    )


def interleaved(
    work: Callable[[], object], read: Callable[[], object], clock: Callable[[], float], repeats: int
) -> tuple[list[float], list[float]]:
    """Milliseconds of each, taken in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for run, into in zip((work, read), times, strict=True):
            start = clock()
            run()
            into.append((clock() - start) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "int8", "int8-fast", "fp32"])
    parser.add_argument("--shape", default="smollm2-135m", choices=SHAPES)
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config, weights = random_model(**SHAPES[options.shape])
    backend = NativeBackend(config, weights, options.precision, options.threads, options.isa)
    clock = time.process_time if options.cpu_time else time.perf_counter
    blocks = (max(options.context + max(options.rows), options.prefill) + 31) // 32
    storage = backend.allocate_cache(blocks)
    tokens = torch.randint(0, config.vocab_size, (max(options.context, options.prefill, *options.rows),))
    backend.forward(chain(tokens[: options.context], 0, blocks, 1), storage)

    cases = [(f"{rows} rows", chain(tokens[:rows], options.context, blocks, rows)) for rows in options.rows]
    if options.prefill:
        cases.append((f"prefill {options.prefill}", chain(tokens[: options.prefill], 0, blocks, 1)))
    for name, batch in cases:
        repeats = options.repeats if batch.num_rows <= 64 else 3
        passes, reads = interleaved(lambda b=batch: backend.forward(b, storage), backend.read_seconds, clock, repeats)
        result = {
            "case": name,
            "backend": backend.name,
            "shape": options.shape,
            "threads": options.threads,
            "context": options.context,
            "machine": platform.processor() or platform.machine(),
            "median_ms": round(statistics.median(passes), 2),
            "best_ms": round(min(passes), 2),
            "floor_median_ms": round(statistics.median(reads), 2),
            "floor_best_ms": round(min(reads), 2),
            "ratio_of_medians": round(statistics.median(passes) / statistics.median(reads), 2),
            "ratio_of_best": round(min(passes) / min(reads), 2),
            "rows_per_second": round(batch.num_rows / statistics.median(passes) * 1e3),
        }
        if options.json:
            print(json.dumps(result), flush=True)
        else:
            print(
                f"{backend.name} {name:>12}: {result['median_ms']:8.2f} ms, floor {result['floor_median_ms']:6.2f}, "
                f"ratio {result['ratio_of_medians']:5.2f} (best {result['ratio_of_best']:5.2f}), "
                f"{result['rows_per_second']} rows/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
