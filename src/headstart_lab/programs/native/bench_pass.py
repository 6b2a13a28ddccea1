"""One pass of the native backend against one read of its weights, interleaved: ratios, their medians and spread.

    python -m headstart_lab.programs.native.bench_pass [--precision bf16 int8] [--threads 2] [--context 300] \\
        [--rows 1 4 16]
    python -m headstart_lab.programs.native.bench_pass --shape llama-3.2-1b --precision bf16 int4 int4-fast \\
        --rows 1 16 --prefill 0

Weights are random: cost does not depend on their values. All layers are packed from one, so a model takes little more
memory than its packed weights. ``--cpu-time`` counts processor time instead of wall-clock time, for one thread on a
busy machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.precision import PRECISIONS
from headstart.models.config import LayerConfig, ModelConfig, RopeConfig
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.weights import AttentionWeights, DecoderWeights, LayerWeights, MlpWeights
from headstart.passes.batch import PassBatch
from headstart_lab.provenance import finished, provenance

FORMAT = "headstart-pass/1"
SHAPES = {
    "smollm2-135m": dict(hidden=576, heads=9, kv_heads=3, head_dim=64, mlp=1536, layers=30, vocab=49152),
    "llama-3.2-1b": dict(hidden=2048, heads=32, kv_heads=8, head_dim=64, mlp=8192, layers=16, vocab=128256),
    "llama-3.2-3b": dict(hidden=3072, heads=24, kv_heads=8, head_dim=128, mlp=8192, layers=28, vocab=128256),
    "llama-3.1-8b": dict(hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336, layers=32, vocab=128256),
}


def random_model(
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    mlp: int,
    layers: int,
    vocab: int,
    device: torch.device | str = "cpu",
    one_layer: bool = True,
) -> tuple[ModelConfig, DecoderWeights]:
    """``one_layer``: all layers have the same matrices."""
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
        matrix = torch.empty(outputs, inputs, dtype=torch.bfloat16, device=device)
        return LinearWeights(matrix.normal_(0, inputs**-0.5))

    norm = NormWeights(torch.ones(hidden))

    def layer() -> LayerWeights:
        return LayerWeights(
            mixer=AttentionWeights(
                qkv=linear((heads + 2 * kv_heads) * head_dim, hidden), output=linear(hidden, heads * head_dim)
            ),
            channel=MlpWeights(up=linear(2 * mlp, hidden), down=linear(hidden, mlp)),
            attention_norm=norm,
            mlp_norm=norm,
        )

    stack = (layer(),) * layers if one_layer else tuple(layer() for _ in range(layers))
    head = linear(vocab, hidden)
    return config, DecoderWeights(embedding=head.weight, layers=stack, final_norm=norm, head=head)


def chain(tokens: Tensor, cached: int, blocks: int, wanted: int) -> PassBatch:
    rows = len(tokens)
    counted = np.arange(rows, dtype=np.int32)
    return PassBatch(
        tokens=tokens.numpy().astype(np.int32),
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


def measured(passes: Sequence[float], reads: Sequence[float]) -> dict[str, float]:
    """Medians and best times, and the ratios of neighbours: their median and the half that lies around it."""
    ratios = [work / read for work, read in zip(passes, reads, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "median_ms": round(statistics.median(passes), 3),
        "best_ms": round(min(passes), 3),
        "floor_median_ms": round(statistics.median(reads), 3),
        "floor_best_ms": round(min(reads), 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_low": round(low, 3),
        "ratio_high": round(high, 3),
        "ratio_of_best": round(min(passes) / min(reads), 3),
        "repeats": len(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default=["bf16"], nargs="+", choices=PRECISIONS)
    parser.add_argument("--shape", default="smollm2-135m", choices=SHAPES)
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--prefill", type=int, default=512, help="tokens; 0: none")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--out", type=Path, help="also write all cases, with their provenance, to this JSON file")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    where = provenance()
    config, weights = random_model(**SHAPES[options.shape])  # type: ignore[arg-type]
    results = []
    for precision in options.precision:
        for result in measure(NativeBackend(config, weights, precision, options.threads, options.isa), options):
            results.append(result)
            show(result, options.json)
    if options.out:
        settings = {name: value for name, value in vars(options).items() if name not in ("json", "out")}
        record = {"format": FORMAT, "provenance": finished(where), "settings": settings, "cases": results}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def measure(backend: NativeBackend, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Each case of one backend."""
    clock = time.process_time if options.cpu_time else time.perf_counter
    blocks = (max(options.context + max(options.rows), options.prefill) + 31) // 32
    storage = backend.allocate_cache(blocks)
    tokens = torch.randint(0, backend.config.vocab_size, (max(options.context, options.prefill, *options.rows),))
    backend.forward(chain(tokens[: options.context], 0, blocks, 1), storage)
    cases = [(f"{rows} rows", chain(tokens[:rows], options.context, blocks, rows)) for rows in options.rows]
    if options.prefill:
        cases.append((f"prefill {options.prefill}", chain(tokens[: options.prefill], 0, blocks, 1)))
    for name, batch in cases:
        repeats = options.repeats if batch.num_rows <= 64 else 3
        backend.forward(batch, storage)
        passes, reads = interleaved(partial(backend.forward, batch, storage), backend.read_seconds, clock, repeats)
        times = measured(passes, reads)
        yield {
            "case": name,
            "backend": backend.name,
            "shape": options.shape,
            "threads": options.threads,
            "context": options.context,
            "weight_bytes": backend.nbytes,
            **times,
            "rows_per_second": round(batch.num_rows / times["median_ms"] * 1e3),
        }


def show(result: dict[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result), flush=True)
        return
    print(
        "{backend} {shape} {case:>12}: {median_ms:8.2f} ms, floor {floor_median_ms:6.2f}, ratio {ratio:5.2f} "
        "({ratio_low:.2f} to {ratio_high:.2f}; best {ratio_of_best:.2f}), {rows_per_second} rows/s".format_map(result),
        flush=True,
    )


if __name__ == "__main__":
    main()
