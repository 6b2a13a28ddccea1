"""Passes on processors of another architecture: written down here, computed by ``emulated_passes.cpp`` there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from native_cases import Rows
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native import toolchain
from headstart.backends.native.formats import blocks_forms
from headstart.backends.native.isa import InstructionSet
from headstart.backends.native.matrices import MATRICES, experts_of, linears_of
from headstart.backends.native.packing import CONSTANTS, NORMS, constants_of, norms_of
from headstart.backends.native.precision import Precision
from headstart.backends.native.shapes import layers_of, shape_of
from headstart.models.config import ModelConfig
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.rope_frequencies import amplitude, inverse_frequencies
from headstart.models.weights import DecoderWeights, ExpertsWeights
from headstart.sampling.kernels import NoiseKey

TARGET = "aarch64"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
PROCESSORS = {"neon-bf16": "max", "neon-dot": "neoverse-n1", "neon": "cortex-a53", "generic": "cortex-a53"}
"""What is emulated for each instruction set: it has that, and of what others use as little as possible."""

missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
"""Tools that a test has to do without."""


@dataclass
class Script:
    """What is asked of one model, over one sequence."""

    passes: Sequence[Rows] = ()
    """Their blocks are not read: those of the sequence are the cache's, in order."""
    greedy: Sequence[tuple[Sequence[int], int]] = ()
    """Prompts, and how many tokens to say."""
    noise: NoiseKey = field(default_factory=lambda: NoiseKey((1, 2), (3, 4, 5)))
    noise_tokens: int = 0
    pages: int = 8


@dataclass
class Answer:
    logits: list[NDArray[np.float32]]
    """[pass] [row, vocab]"""
    said: list[list[int]]
    words: NDArray[np.uint32]


def build(isa: InstructionSet, to: Path) -> Path:
    """The program for an instruction set.

    Raises:
        CalledProcessError: it does not compile.
    """
    source = Path(__file__).with_name("emulated_passes.cpp")
    flags = (*toolchain.CODE_FLAGS, *isa.compiler_flags(TARGET), "-fopenmp", "-static", f"-I{toolchain.SOURCES}")
    flags += (*toolchain.WARNINGS, "-Werror")
    subprocess.run([COMPILER, *flags, str(source), "-o", str(to)], check=True)
    return to


def run(program: Path, processor: str, config: ModelConfig, model: Path, script: Script) -> Answer:
    """What the program answers for a model that ``write_model`` wrote."""
    asked, answer = program.with_suffix(".script"), program.with_suffix(".answer")
    with asked.open("wb") as to:
        _write_script(to, script)
    subprocess.run([EMULATOR, "-cpu", processor, str(program), str(model), str(asked), str(answer)], check=True)
    raw = answer.read_bytes()
    sizes = [4 * len(rows.tokens) * config.vocab_size for rows in script.passes]
    sizes += [4 * count for _, count in script.greedy]
    parts = [raw[end - size : end] for size, end in zip(sizes, np.cumsum(sizes), strict=True)]
    of_passes = len(script.passes)
    return Answer(
        [np.frombuffer(part, np.float32).reshape(-1, config.vocab_size) for part in parts[:of_passes]],
        [np.frombuffer(part, np.int32).tolist() for part in parts[of_passes:]],
        np.frombuffer(raw[sum(sizes) :], np.uint32),
    )


def write_model(path: Path, config: ModelConfig, weights: DecoderWeights, precision: Precision) -> Path:
    """A model as ``read_model`` of the program reads it, its weights as floats."""
    with path.open("wb") as to:
        _array(to, np.frombuffer(bytes(shape_of(config, precision, 1)), np.uint8))
        _array(to, np.frombuffer(b"".join(map(bytes, layers_of(config))), np.uint8))
        _array(to, blocks_forms(weights, precision == "blocks"))
        _numbers(to, len(NORMS), MATRICES, len(CONSTANTS))
        for parts in weights.layers:
            for norm in norms_of(parts):
                _norm(to, norm, config.norms.offset)
            for linear in linears_of(parts):
                _linear(to, linear)
            for constant in constants_of(parts):
                _tensor(to, None if constant is None else constant.float())
            _experts(to, parts.channel if isinstance(parts.channel, ExpertsWeights) else None)
            for expert in experts_of(parts):
                _linear(to, expert.up)
                _linear(to, expert.down)
        _norm(to, weights.final_norm, config.norms.offset)
        _linear(to, weights.head)
        assert weights.positions is None
        _numbers(to, precision != "fp32")
        _matrix(to, weights.embedding.to(torch.float32 if precision == "fp32" else torch.bfloat16))
        _numbers(to, len(config.ropes))
        for rope in config.ropes:
            frequencies = inverse_frequencies(rope, weights.rope_factors)
            angles = torch.arange(1024).float()[:, None] * frequencies
            _numbers(to, len(angles), rope.dim)
            _tensor(to, angles.cos() * amplitude(rope))
            _tensor(to, angles.sin() * amplitude(rope))
    return path


def _write_script(to: BinaryIO, script: Script) -> None:
    _numbers(to, script.pages, len(script.passes))
    for rows in script.passes:
        _numbers(to, rows.cached)
        parents = range(-1, len(rows.tokens) - 1) if rows.parents is None else rows.parents
        for table in (rows.tokens, parents):
            _array(to, np.asarray(table, np.int32))
    _numbers(to, len(script.greedy))
    for prompt, count in script.greedy:
        _array(to, np.asarray(prompt, np.int32))
        _numbers(to, count)
    _array(to, np.array([*script.noise.key, *script.noise.counter], np.uint32))
    _numbers(to, script.noise_tokens)


def _numbers(to: BinaryIO, *numbers: int) -> None:
    to.write(np.array(numbers, np.int32).tobytes())


def _array(to: BinaryIO, array: NDArray[np.generic] | None) -> None:
    size = 0 if array is None else array.nbytes
    to.write(np.int64(size).tobytes())
    if array is not None:
        to.write(np.ascontiguousarray(array).data)


def _tensor(to: BinaryIO, tensor: Tensor | None) -> None:
    if tensor is None:
        _array(to, None)
    else:
        bits = tensor.detach().contiguous()
        _array(to, (bits.view(torch.int16) if bits.dtype is torch.bfloat16 else bits.float()).numpy())


def _matrix(to: BinaryIO, matrix: Tensor) -> None:
    _numbers(to, len(matrix))
    _tensor(to, matrix)


def _norm(to: BinaryIO, norm: NormWeights | None, offset: float) -> None:
    _tensor(to, None if norm is None else norm.weight.float() + offset)
    _tensor(to, None if norm is None else norm.bias)


def _linear(to: BinaryIO, linear: LinearWeights | None) -> None:
    if linear is None:
        _matrix(to, torch.empty(0, 0))
        _tensor(to, None)
    else:
        _matrix(to, linear.weight.float())
        _tensor(to, linear.bias)


def _experts(to: BinaryIO, experts: ExpertsWeights | None) -> None:
    """How many there are, and the router; the shared one has no gate."""
    _numbers(to, 0 if experts is None else len(experts.experts))
    if experts is not None:
        _linear(to, experts.router)
        _tensor(to, experts.correction)
