"""What a model with an encoder takes on the native pass and by PyTorch, in turns: the decoder's passes, the encoder.

    python -m headstart_lab.programs.native.bench_encoder_decoder --shape t5-small --rows 1,4,8,16 --source 128
    python -m headstart_lab.programs.native.bench_encoder_decoder --shape whisper-tiny --repeats 11
    python -m headstart_lab.programs.native.bench_encoder_decoder --threads 1 --processor-time

Random weights of the shape of a known model, read from no file. Each size is timed with every backend once, then
again, as often as ``--repeats`` says; medians and ratios to PyTorch in float32 are shown. On a machine that others use,
the processor time of one thread tells more than a clock on the wall.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from headstart.backends.native.encoder_decoder import NativeEncoderDecoder
from headstart.backends.native.team import team_size
from headstart.backends.torch.encoder_decoder import EncoderDecoderBackend
from headstart.models.config import ModelConfig
from headstart.models.encoder_decoder_weights import EncoderDecoderWeights, StackWeights
from headstart.models.families import config_from_hf
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.weights import AttentionWeights, CrossWeights, LayerWeights, MlpWeights
from headstart.passes.backend import EncoderBackend
from headstart.passes.batch import EncoderInput
from headstart.passes.runner import ModelRunner, Span

_T5 = {"model_type": "t5", "vocab_size": 32128, "eos_token_id": 1, "decoder_start_token_id": 0}
_WHISPER = {"model_type": "whisper", "vocab_size": 51864, "eos_token_id": 50256, "decoder_start_token_id": 50257}
SHAPES: dict[str, dict[str, Any]] = {
    "t5-small": _T5 | {"d_model": 512, "d_ff": 2048, "num_heads": 8, "num_layers": 6},
    "t5-base": _T5 | {"d_model": 768, "d_ff": 3072, "num_heads": 12, "num_layers": 12},
    "whisper-tiny": _WHISPER
    | {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}
    | {"encoder_attention_heads": 6, "decoder_attention_heads": 6},
}
CACHED = 64
"""Tokens before the rows of a pass."""


def random_weights(config: ModelConfig) -> EncoderDecoderWeights:
    """Of order one where they are added to."""
    draws = torch.Generator().manual_seed(0)
    encoder = config.encoder
    assert encoder is not None
    hidden = config.hidden_size

    def linear(outputs: int, inputs: int) -> LinearWeights:
        return LinearWeights((torch.randn(outputs, inputs, generator=draws) * inputs**-0.5).bfloat16())

    def norm() -> NormWeights:
        return NormWeights(torch.ones(hidden), torch.zeros(hidden) if config.norms.kind == "layer" else None)

    def layer(inner: int, mlp: int, reads_memory: bool) -> LayerWeights:
        ups = 2 * mlp if config.mlp.gated else mlp
        mixer = AttentionWeights(linear(3 * inner, hidden), linear(hidden, inner))
        channel = MlpWeights(linear(ups, hidden), linear(hidden, mlp))
        return LayerWeights(mixer, channel, norm(), norm(), cross=cross(inner) if reads_memory else None)

    convolutions: tuple[LinearWeights, ...] = ()
    if encoder.mel_bins is not None:
        convolutions = linear(hidden, 3 * encoder.mel_bins), linear(hidden, 3 * hidden)

    def cross(inner: int) -> CrossWeights:
        return CrossWeights(norm(), linear(inner, hidden), linear(2 * inner, hidden), linear(hidden, inner))

    def stack(layers: int, heads: int, head_dim: int, mlp: int, positions: int, crosses: bool) -> StackWeights:
        inner, relative = heads * head_dim, encoder.relative
        return StackWeights(
            tuple(layer(inner, mlp, crosses) for _ in range(layers)),
            final_norm=norm(),
            positions=torch.randn(positions, hidden, generator=draws) if encoder.positions == "learned" else None,
            relative=() if relative is None else (torch.randn(relative.buckets, heads, generator=draws),),
            convolutions=() if crosses else convolutions,
        )

    table = torch.randn(config.vocab_size, hidden, generator=draws).bfloat16()
    return EncoderDecoderWeights(
        table,
        LinearWeights(table),
        stack(encoder.num_layers, encoder.num_heads, encoder.head_dim, encoder.mlp_size, encoder.max_positions, False),
        stack(config.num_layers, config.num_heads, config.head_dim, config.mlp_size, config.max_positions, True),
    )


def seconds_of(work: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start


class Contender:
    """A backend with a text whose source has been read."""

    def __init__(self, name: str, backend: EncoderBackend, source: EncoderInput, clock: Callable[[], float]) -> None:
        self.name = name
        self.clock = clock
        self.backend = backend
        self.source = source
        self.runner = ModelRunner(backend, 512 + 2 * source.positions)
        self.runner.cache.add(0, source=source)
        self.runner.encode(0)
        with self.runner.cache.reserve({0: CACHED}):
            self.runner.forward([Span.chain(0, [5] * CACHED, "none")])
            self.runner.cache.commit(0, range(CACHED))

    def decode(self, rows: int) -> float:
        with self.runner.cache.reserve({0: rows}):
            span = Span.chain(0, [7] * rows)
            return seconds_of(lambda: self.runner.forward([span]), self.clock)

    def encode(self) -> float:
        blocks = self.runner.cache.memory_of(0).blocks  # type: ignore[union-attr]
        return seconds_of(lambda: self.backend.encode(self.source, self.runner.cache.storage, blocks), self.clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="t5-small")
    parser.add_argument("--rows", default="1,4,8,16", help="of passes, with commas between them")
    parser.add_argument(
        "--source", type=int, default=128, help="tokens that the encoder reads; Whisper reads 30 seconds"
    )
    parser.add_argument("--repeats", type=int, default=7, help="of each; medians are shown")
    parser.add_argument("--threads", type=int, default=team_size())
    parser.add_argument("--processor-time", action="store_true", help="of all threads, in place of time on the wall")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    config = config_from_hf(SHAPES[given.shape])
    weights = random_weights(config)
    source = EncoderInput(tuple(range(3, 3 + given.source)))
    if config.encoder is not None and config.encoder.mel_bins is not None:
        source = EncoderInput.of_features(np.zeros((config.encoder.mel_bins, 3000), np.float32))
    backends: dict[str, EncoderBackend] = {
        "torch-fp32": EncoderDecoderBackend(config, weights, torch.float32),
        "torch-bf16": EncoderDecoderBackend(config, weights, torch.bfloat16),
        "native-fp32": NativeEncoderDecoder(config, weights, "fp32", given.threads),
        "native-bf16": NativeEncoderDecoder(config, weights, "bf16", given.threads),
    }
    clock = time.process_time if given.processor_time else time.perf_counter
    contenders = [Contender(name, backend, source, clock) for name, backend in backends.items()]
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    kinds = [("encoder", 0), *((f"{rows} rows", int(rows)) for rows in given.rows.split(","))]
    for turn in range(given.repeats + 1):
        for kind, rows in kinds:
            for each in contenders:
                taken = each.decode(rows) if rows else each.encode()
                if turn:  # the first one warms up
                    found[kind, each.name].append(taken)
    load = os.getloadavg()[0]
    print(
        f"{given.shape}, source of {source.positions}, {given.threads} threads, {given.repeats} turns, load {load:.1f}"
    )
    print(" " * 10 + "".join(f"{each.name:>24}" for each in contenders))
    for kind, _ in kinds:
        base = median(found[kind, "torch-fp32"])
        cells = [median(found[kind, each.name]) for each in contenders]
        print(f"{kind:>10}" + "".join(f"{1e3 * cell:14.2f} ms {base / cell:5.2f} x" for cell in cells))


if __name__ == "__main__":
    main()
