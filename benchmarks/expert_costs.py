"""What passes of a mixture of experts cost: rows, distinct experts, time. Needs no model.

    python benchmarks/expert_costs.py --layers 1 --rows 1,2,4,8,16 --repeats 5
    python benchmarks/expert_costs.py --layers 8 --device cuda --rows 1,2,4,8,16,32,64

Random weights have the shape of Qwen3-30B-A3B (hidden 2,048, 128 experts of 768, 8 used, 32 heads, 4 of keys) with
fewer layers and a small vocabulary: enough for cost, which grows with the layers. A layer takes 1.2 GB in bf16. Equally
many rows are timed with few and with many distinct tokens in them, which call few and many experts, in turn.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from statistics import fmean, median

import numpy as np
import torch
from torch import Tensor

from headstart.backends.torch.backend import TorchBackend
from headstart.drafting.planning.expert_calls import at_random
from headstart.models.config import ExpertsConfig, HeadNorms, LayerConfig, ModelConfig, RopeConfig
from headstart.models.stored import FileMatrix, MatrixPart
from headstart.models.weights import (
    AttentionWeights,
    DecoderWeights,
    ExpertsWeights,
    LayerWeights,
    LinearWeights,
    MlpWeights,
    NormWeights,
)
from headstart.runner import ModelRunner, Span

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 32, 4, 128, 4096
EXPERTS = ExpertsConfig(128, 8, 768, normalised=True)
DISTINCT = (1, 4, 64)
"""Different tokens among the rows of a pass, at most."""


def random_model(layers: int) -> tuple[ModelConfig, DecoderWeights]:
    """Of the shape of Qwen3-30B-A3B; matrices are drawn when they are read."""
    config = ModelConfig(
        *("qwen3_moe", VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, EXPERTS.size, 4096),
        layers=(LayerConfig(channel="experts"),) * layers,
        ropes=(RopeConfig(1e6, HEAD_DIM),),
        qk_norm=HeadNorms(),
        experts=EXPERTS,
    )
    seeds = iter(range(1 << 30))

    def matrix(rows: int, inputs: int) -> LinearWeights:
        seed = next(seeds)

        def drawn() -> Tensor:
            return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed)) * inputs**-0.5

        return LinearWeights(FileMatrix((MatrixPart("random", rows, drawn),), inputs, torch.bfloat16))

    def norm(size: int) -> NormWeights:
        return NormWeights(torch.ones(size))

    def layer() -> LayerWeights:
        attention = AttentionWeights(
            matrix((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
            matrix(HIDDEN, HEADS * HEAD_DIM),
            norm(HEAD_DIM),
            norm(HEAD_DIM),
        )
        experts = tuple(
            MlpWeights(matrix(2 * EXPERTS.size, HIDDEN), matrix(HIDDEN, EXPERTS.size)) for _ in range(EXPERTS.count)
        )
        return LayerWeights(
            attention, ExpertsWeights(matrix(EXPERTS.count, HIDDEN), experts), norm(HIDDEN), norm(HIDDEN)
        )

    table = matrix(VOCAB, HIDDEN).weight
    return config, DecoderWeights(
        tuple(layer() for _ in range(layers)), norm(HIDDEN), LinearWeights(table), embedding=table
    )


def timed(runner: ModelRunner, tokens: list[int]) -> tuple[float, float]:
    """Distinct experts and seconds of a pass of these rows after nothing."""
    with runner.cache.reserve({0: len(tokens)}):
        start = time.perf_counter()
        (output,) = runner.forward([Span.chain(0, tokens)])
        float(output.logits[0, 0])  # waits for the device
        seconds = time.perf_counter() - start
    assert output.pass_experts is not None
    return output.pass_experts, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=1, help="of 48")
    parser.add_argument("--rows", default="1,2,4,8,16,32", help="of passes, with commas between them")
    parser.add_argument("--repeats", type=int, default=7, help="of each pass; medians are shown")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    given = parser.parse_args()
    sizes = [int(rows) for rows in given.rows.split(",")]
    dtype = torch.bfloat16 if given.precision == "bf16" else torch.float32
    runner = ModelRunner(TorchBackend(*random_model(given.layers), dtype, given.device), 512)
    runner.cache.add(0)
    timed(runner, [0] * max(sizes))
    draws = np.random.default_rng(0)
    found: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for _ in range(given.repeats):
        for rows in sizes:
            for distinct in sorted({min(each, rows) for each in DISTINCT}):
                tokens = np.resize(draws.choice(VOCAB, distinct, replace=False), rows).tolist()
                found[rows, distinct].append(timed(runner, tokens))
    name, threads = runner.backend.name, torch.get_num_threads()
    print(f"{name} on {given.device}, {threads} threads, {given.layers} of 48 layers, {given.repeats} repeats")
    print(f"{'rows':>5}{'tokens':>8}{'at random':>11}{'experts':>9}{'ms':>9}")
    points = []
    for (rows, distinct), passes in found.items():
        experts, seconds = fmean(called for called, _ in passes), median(taken for _, taken in passes)
        points.append((rows, experts, 1e3 * seconds))
        chance = at_random(EXPERTS.count, EXPERTS.used, float(rows))
        print(f"{rows:5}{distinct:8}{chance:11.1f}{experts:9.1f}{1e3 * seconds:9.2f}")
    known = np.array([(1.0, rows, experts) for rows, experts, _ in points])
    (base, row, expert), *_ = np.linalg.lstsq(known, np.array([ms for *_, ms in points]), rcond=None)
    print(f"least squares: {base:.2f} ms + {row:.3f} ms a row + {expert:.3f} ms a distinct expert")


if __name__ == "__main__":
    main()
