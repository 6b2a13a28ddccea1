"""What passes of a mixture of experts cost: rows, distinct experts, time. Needs no model.

    python -m headstart_lab.programs.expert_costs --layers 2 --rows 1,2,4,8,16 --repeats 9
    python -m headstart_lab.programs.expert_costs --layers 2 --precision int4 --turns 6
    python -m headstart_lab.programs.expert_costs --layers 8 --device cuda --rows 1,2,4,8,16,32,64
    python -m headstart_lab.programs.expert_costs --model deepseek-v2-lite --layers 4 --precision int4 --turns 6

Random weights have the shape of Qwen3-30B-A3B (hidden 2,048, 128 experts of 768, 8 used, 32 heads, 4 of keys) or of
DeepSeek-V2-Lite (hidden 2,048, 64 experts of 1,408, 6 used, a shared one of 2,816, 16 heads of latent attention) with
fewer layers and a small vocabulary: enough for cost, which grows with the layers. A layer takes 1.2 GB in bf16. Equally
many rows are timed with few and with many distinct tokens in them, which call few and many experts, in turn.

``--turns``: then plain decoding and ``auto`` decode the same texts in turn, of prompts that say the same again and
again, greedily, where a copy may pay, and drawn from all tokens, where no guess does.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.precision import PRECISIONS
from headstart.backends.torch.backend import TorchBackend
from headstart.models.config import AttentionConfig, HeadNorms, LatentConfig, LayerConfig, ModelConfig, RopeConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.stored import FileMatrix, MatrixPart
from headstart.models.weights import (
    AttentionWeights,
    DecoderWeights,
    ExpertsWeights,
    LatentWeights,
    LayerWeights,
    MlpWeights,
)
from headstart.passes.backend import Backend
from headstart.passes.runner import ModelRunner, Span
from headstart.sampling.params import SamplingParams
from headstart_lab.plan.expert_passes import at_random
from headstart_lab.workbench import Contender, Workbench

HIDDEN, VOCAB = 2048, 4096


def _shape(family: str, heads: int, kv_heads: int, head_dim: int, experts: ExpertsConfig, **more: Any) -> ModelConfig:
    settings: dict[str, Any] = {"layers": (LayerConfig(channel="experts"),), "ropes": (RopeConfig(1e6, head_dim),)}
    sizes = (VOCAB, HIDDEN, heads, kv_heads, head_dim, experts.size, 4096)
    return ModelConfig(family, *sizes, experts=experts, **settings | more)


SHAPES = {
    "qwen3-30b-a3b": _shape(
        "qwen3_moe",
        32,
        4,
        128,
        ExpertsConfig(128, 8, 768, normalised=True),
        attention=AttentionConfig(qk_norm=HeadNorms()),
    ),
    "deepseek-v2-lite": _shape(
        *("deepseek_v2", 16, 16, 192, ExpertsConfig(64, 6, 1408, shared_size=2816)),
        layers=(LayerConfig(mixer="latent", channel="experts"),),
        ropes=(RopeConfig(1e4, 64),),
        latent=LatentConfig(512, 128, 64, 128),
    ),
}
Clock = Callable[[], float]
DISTINCT = (1, 4, 64)
"""Different tokens among the rows of a pass, at most."""


def random_model(shape: str, layers: int) -> tuple[ModelConfig, DecoderWeights]:
    """Matrices are made when they are read, of numbers that all of them share."""
    config = replace(SHAPES[shape], layers=SHAPES[shape].layers * layers)
    experts = experts_of(config)
    drawn = torch.randn(1 << 26, generator=torch.Generator().manual_seed(0))
    places = np.random.default_rng(0)

    def matrix(rows: int, inputs: int) -> LinearWeights:
        first = int(places.integers(len(drawn) - rows * inputs))

        def read() -> Tensor:
            part: Tensor = drawn[first : first + rows * inputs].view(rows, inputs) * inputs**-0.5
            return part

        return LinearWeights(FileMatrix((MatrixPart("random", rows, read),), inputs, torch.bfloat16))

    def norm(size: int) -> NormWeights:
        return NormWeights(torch.ones(size))

    def mlp(size: int) -> MlpWeights:
        return MlpWeights(matrix(2 * size, HIDDEN), matrix(HIDDEN, size))

    def attention() -> AttentionWeights | LatentWeights:
        heads, size = config.num_heads, config.head_dim
        if config.latent is None:
            all_heads = (heads + 2 * config.num_kv_heads) * size
            return AttentionWeights(matrix(all_heads, HIDDEN), matrix(HIDDEN, heads * size), norm(size), norm(size))
        rank = config.latent.kv_rank
        return LatentWeights(
            down=matrix(heads * size + rank + config.latent.rope_dim, HIDDEN),
            q_norm=None,
            q_up=None,
            kv_norm=norm(rank),
            key_up=matrix(heads * rank, config.latent.plain_dim),
            value_up=matrix(heads * config.latent.value_dim, rank),
            output=matrix(HIDDEN, heads * config.latent.value_dim),
        )

    def layer() -> LayerWeights:
        mlps = tuple(mlp(experts.size) for _ in range(experts.count))
        shared = mlp(experts.shared_size) if experts.shared_size else None
        channel = ExpertsWeights(matrix(experts.count, HIDDEN), mlps, shared=shared)
        return LayerWeights(attention(), channel, norm(HIDDEN), norm(HIDDEN))

    table = matrix(VOCAB, HIDDEN).weight
    return config, DecoderWeights(
        tuple(layer() for _ in range(layers)), norm(HIDDEN), LinearWeights(table), embedding=table
    )


def experts_of(config: ModelConfig) -> ExpertsConfig:
    assert config.experts is not None
    return config.experts


def timed(runner: ModelRunner, tokens: list[int], clock: Clock) -> tuple[float, float]:
    """Distinct experts and seconds of a pass of these rows after nothing."""
    with runner.cache.reserve({0: len(tokens)}):
        start = clock()
        (output,) = runner.forward([Span.chain(0, tokens)])
        float(output.logits[0, 0])  # waits for the device
        seconds = clock() - start
    assert output.pass_experts is not None
    return output.pass_experts, seconds


def backend_of(given: argparse.Namespace) -> Backend:
    """The model as it is asked for."""
    config, weights = random_model(given.model, given.layers)
    if given.device == "cpu" and not given.torch:
        return NativeBackend(config, weights, given.precision)
    dtype = torch.bfloat16 if given.precision == "bf16" else torch.float32
    return TorchBackend(config, weights, dtype, given.device)


def take_turns(backend: Backend, turns: int, tokens: int, clock: Clock) -> None:
    """Shows how long ``auto`` takes of what plain decoding takes."""
    bench = Workbench(backend)
    draws = np.random.default_rng(1)
    for kind, params in (
        ("greedy", SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)),
        ("drawn", SamplingParams(temperature=1, seed=1, max_tokens=tokens, ignore_eos=True)),
    ):
        engines = {name: bench.open(Contender.parse(name)) for name in ("none", "auto:drafters=suffix")}
        seconds: dict[str, list[float]] = defaultdict(list)
        accepted = rounds = 0
        for turn in range(turns + 1):  # the first tells nothing
            prompt = draws.integers(VOCAB, size=24).tolist() * 4
            said = []
            for name in sorted(engines, reverse=turn % 2 == 1):
                sequence = bench.sequence(prompt, params)
                start = clock()
                bench.decode(engines[name], sequence)
                if turn:
                    seconds[name].append(clock() - start)
                    rounds, accepted = rounds + sequence.stats.rounds, accepted + len(sequence.output)
                said.append(sequence.output)
            assert said[0] == said[1]
        auto, plain = (np.array(seconds[name]) for name in sorted(engines))
        ratios = auto / plain
        print(
            f"{kind}: auto takes {median(ratios):.3f} of plain decoding's time (quarters "
            f"{np.quantile(ratios, 0.25):.3f} to {np.quantile(ratios, 0.75):.3f}, all {auto.sum() / plain.sum():.3f}); "
            f"{tokens / median(plain):.1f} tokens/s plain, {accepted / rounds:.2f} tokens a round of both"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="qwen3-30b-a3b", help="whose shape")
    parser.add_argument("--layers", type=int, default=1, help="of 48, or 27")
    parser.add_argument("--rows", default="1,2,4,8,16,32", help="of passes, with commas between them")
    parser.add_argument("--repeats", type=int, default=7, help="of each pass; medians are shown")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16", help="PyTorch: bf16, or else fp32")
    parser.add_argument("--torch", action="store_true", help="by PyTorch on the processor, too")
    parser.add_argument("--turns", type=int, default=0, help="of plain decoding and auto")
    parser.add_argument("--tokens", type=int, default=96, help="of each text that they decode")
    parser.add_argument("--cpu-time", action="store_true", help="the processor's, for one thread on a busy machine")
    given = parser.parse_args()
    sizes = [int(rows) for rows in given.rows.split(",")]
    backend = backend_of(given)
    runner = ModelRunner(backend, 512)
    runner.cache.add(0)
    clock = time.process_time if given.cpu_time else time.perf_counter
    timed(runner, [0] * max(sizes), clock)
    draws = np.random.default_rng(0)
    found: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for _ in range(given.repeats):
        for rows in sizes:
            for distinct in sorted({min(each, rows) for each in DISTINCT}):
                tokens = np.resize(draws.choice(VOCAB, distinct, replace=False), rows).tolist()
                found[rows, distinct].append(timed(runner, tokens, clock))
    name, threads = runner.backend.name, torch.get_num_threads()
    experts = experts_of(backend.config)
    print(
        f"{given.model} by {name} on {given.device}, {threads} threads, {given.layers} layers, {given.repeats} repeats"
    )
    print(f"{'rows':>5}{'tokens':>8}{'at random':>11}{'experts':>9}{'ms':>9}")
    points = []
    for (rows, distinct), passes in found.items():
        called, seconds = fmean(each for each, _ in passes), median(taken for _, taken in passes)
        points.append((rows, called, 1e3 * seconds))
        chance = at_random(experts.count, experts.used, float(rows))
        print(f"{rows:5}{distinct:8}{chance:11.1f}{called:9.1f}{1e3 * seconds:9.2f}")
    known = np.array([(1.0, rows, experts) for rows, experts, _ in points])
    (base, row, expert), *_ = np.linalg.lstsq(known, np.array([ms for *_, ms in points]), rcond=None)
    print(f"least squares: {base:.2f} ms + {row:.3f} ms a row + {expert:.3f} ms a distinct expert")
    if given.turns:
        take_turns(backend, given.turns, given.tokens, clock)


if __name__ == "__main__":
    main()
