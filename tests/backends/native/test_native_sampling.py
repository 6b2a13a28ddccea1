"""Compiled code for rows of logits changes no draw: every instruction set against NumPy alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from native_cases import isa_params

from headstart.backends.native.loader import load_library
from headstart.backends.native.sampling import NativeRows
from headstart.errors import LogitsError, RequestError
from headstart.sampling.history import TokenHistory
from headstart.sampling.kernels import MASS_ERROR, NoiseKey
from headstart.sampling.noise import SequenceNoise, Stream, philox4x32_array
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms

ALL_ISAS = isa_params()
NOISE = NoiseKey((5, 2**32 - 1), (7, 3, 1 << 28))
SETTINGS: tuple[dict[str, object], ...] = (
    {},
    {"temperature": 0.3},
    {"temperature": 7.0},
    {"temperature": 1e-30},
    {"temperature": 1e30},
    {"top_k": 5},
    {"top_k": 1},
    {"top_p": 0.9},
    {"top_p": 0.02},
    {"top_p": 0.9, "temperature": 3.0},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_p": 0.7, "top_k": 40, "min_p": 0.01},
    {"banned_token_ids": tuple(range(0, 200, 3)), "logit_bias": {1: 4.0, 2: -math.inf}},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "temperature": 0.8},
)


def rows_of(isa: str) -> NativeRows:
    library = load_library(isa)
    assert library is not None
    return NativeRows(library)


def logits_of(vocab_size: int, seed: int) -> torch.Tensor:
    """Rows of many kinds: steep, flat, with ties, with one likely token, with tokens that are forbidden."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(vocab_size, generator=generator) * (0.0, 0.3, 3.0, 12.0)[seed % 4]
    if seed % 3 == 0:
        row = row.round()
    if seed % 5 == 1:
        row[seed % vocab_size] += 20
    if seed % 7 == 2:
        row[torch.rand(vocab_size, generator=generator) < 0.5] = -torch.inf
        row[seed % vocab_size] = 0
    return row


@pytest.mark.parametrize("isa", ALL_ISAS)
@pytest.mark.parametrize("vocab_size", [1, 5, 16, 63, 64, 65, 1000])
def test_noise_words_are_those_of_numpy(isa: str, vocab_size: int) -> None:
    blocks = np.arange(-(-vocab_size // 4), dtype=np.uint64)
    expected = philox4x32_array((blocks, *NOISE.counter), NOISE.key).reshape(-1)[:vocab_size]
    rows = rows_of(isa)
    assert np.array_equal(rows.noise_words(NOISE, vocab_size, None), expected)
    ids = np.random.default_rng(0).permutation(vocab_size)[: vocab_size // 2 + 1]
    assert np.array_equal(rows.noise_words(NOISE, vocab_size, ids), expected[ids])


@pytest.mark.parametrize("isa", ALL_ISAS)
def test_exponentials_have_the_same_bits(isa: str) -> None:
    ids = torch.arange(0, 5000, 7)

    def rows(noise: SequenceNoise) -> list[torch.Tensor]:
        return [
            noise.position_exponentials(9, 5001),
            noise.position_exponentials(9, 5001, ids),
            noise.position_exponentials(9, 5001, ids[:50]),
            noise.exponentials(Stream.RESIDUAL, 3, 2, 5001),
        ]

    expected = rows(SequenceNoise(11, 4))
    assert all(map(torch.equal, rows(SequenceNoise(11, 4, kernels=rows_of(isa))), expected))


@pytest.mark.parametrize("isa", ALL_ISAS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_draws_are_those_of_numpy(isa: str, settings: dict[str, object]) -> None:
    compiled = rows_of(isa)
    for vocab_size, draws in ((200, 100), (257, 100), (6001, 12)):
        history = TokenHistory([3, 5, 8], [5, 1]).along([9])
        drawn = []
        for used in (None, compiled):
            transforms = Transforms(SamplingParams(**settings), vocab_size, kernels=used)  # type: ignore[arg-type]
            drawn.append(
                [
                    transforms.sample(logits_of(vocab_size, seed), SequenceNoise(seed, kernels=used), seed, history)
                    for seed in range(draws)
                ]
            )
        assert drawn[0] == drawn[1]


@pytest.mark.parametrize("isa", ALL_ISAS)
def test_laws_are_those_of_numpy(isa: str) -> None:
    compiled = rows_of(isa)
    for settings in SETTINGS:
        alone, helped = (
            Transforms(SamplingParams(**settings), 1500, kernels=used)  # type: ignore[arg-type]
            for used in (None, compiled)
        )
        history = TokenHistory([3, 5, 8]).along([])
        for seed in range(8):
            expected = alone.law(logits_of(1500, seed), history)
            assert torch.equal(helped.law(logits_of(1500, seed), history), expected)


@pytest.mark.parametrize("isa", ALL_ISAS)
def test_contenders_hold_the_winner_and_hardly_anybody_else(isa: str) -> None:
    compiled, counts = rows_of(isa), []
    alone, helped = SequenceNoise(3), SequenceNoise(3, kernels=compiled)
    for position in range(300):
        row = logits_of(300, position).numpy()
        with np.errstate(over="ignore"):
            weights = np.exp((row.astype(np.float64) - row.max()) / 0.7) * (row >= -1.0 * (row.max() > -1))
        winner = alone.draw_at(position, 300, weights)
        found = helped.contenders(position, row, 0.7, -1.0 if row.max() > -1 else -math.inf)
        assert found is not None
        assert winner in found.tolist()
        counts.append(len(found))
    assert np.mean(counts) < 1.01


@pytest.mark.parametrize("isa", ALL_ISAS)
def test_ties_go_to_numpy(isa: str) -> None:
    """Tokens whose noise is equal to within the margin cannot be told apart by two libraries' logarithms."""
    compiled = rows_of(isa)
    vocab_size, position = 64, 1
    noise = SequenceNoise(2)
    exponentials = noise.position_exponentials(position, vocab_size).numpy()
    # Logits that make every token's ratio the same up to rounding to float32, then exactly one above the rest.
    row = np.log(exponentials).astype(np.float32)
    expected = Transforms(SamplingParams(), vocab_size).sample(torch.from_numpy(row), noise, position)
    helped = Transforms(SamplingParams(), vocab_size, kernels=compiled)
    assert helped.sample(torch.from_numpy(row), SequenceNoise(2, kernels=compiled), position) == expected


@pytest.mark.parametrize("isa", ALL_ISAS)
@pytest.mark.parametrize("place", [0, 15, 16, 40, 199])
def test_rows_without_a_law_are_refused(isa: str, place: int) -> None:
    compiled = rows_of(isa)
    noise = SequenceNoise(0, kernels=compiled)
    transforms = [
        Transforms(SamplingParams(**settings), 200, kernels=compiled)  # type: ignore[arg-type]
        for settings in ({}, {"top_k": 3}, {"top_p": 0.5})
    ]
    for value in (math.nan, math.inf):
        row = torch.zeros(200)
        row[place] = value
        for each in transforms:
            with pytest.raises(LogitsError):
                each.sample(row, noise, 1)
    for each in transforms:
        with pytest.raises(RequestError, match="no token is left"):
            each.sample(torch.full((200,), -torch.inf), noise, 1)


@pytest.mark.parametrize("isa", ALL_ISAS)
def test_contenders_of_a_row_without_a_peak_are_unknown(isa: str) -> None:
    compiled = rows_of(isa)
    for value in (math.nan, math.inf, -math.inf):
        row = np.full(70, value, dtype=np.float32)
        assert not len(compiled.contenders(row, 1.0, -math.inf, NOISE))


@pytest.mark.parametrize("isa", ALL_ISAS)
def test_ranked_and_mass(isa: str) -> None:
    compiled = rows_of(isa)
    for vocab_size in (1, 17, 64, 1003):
        for seed in range(12):
            row = logits_of(vocab_size, seed).numpy()
            for rank in {1, 2, vocab_size // 2, vocab_size} & set(range(1, vocab_size + 1)):
                assert compiled.ranked(row, rank) == np.sort(row)[::-1][rank - 1]
            peak = float(row.max())
            for temperature in (0.05, 1.0, 30.0):
                exact = np.exp((row.astype(np.float64) - peak) / temperature).sum()
                assert abs(compiled.mass(row, peak, temperature) / exact - 1) < MASS_ERROR
