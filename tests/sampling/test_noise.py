"""Noise: the published vectors, the law of the numbers, and that no two uses share them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from headstart.sampling.noise import (
    MAX_INDEX,
    MAX_LEVELS,
    MAX_VOCAB,
    SequenceNoise,
    Stream,
    fresh_seed,
    philox4x32,
    philox4x32_array,
)

SAMPLED = [Stream.DRAFT, Stream.ACCEPT, Stream.RESIDUAL, Stream.BONUS]

# Random123, kat_vectors, "philox4x32 10": counter, key, output.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(counter, key, words):
    assert philox4x32(counter, key) == words
    assert tuple(philox4x32_array(counter, key).tolist()) == words


def test_scalar_and_array_philox_agree():
    generator = np.random.default_rng(0)
    counter = generator.integers(2**32, size=(4, 50), dtype=np.uint64)
    key = generator.integers(2**32, size=(2, 50), dtype=np.uint64)
    for i, words in enumerate(philox4x32_array(list(counter), list(key)).tolist()):
        assert philox4x32(tuple(counter[:, i].tolist()), tuple(key[:, i].tolist())) == tuple(words)


def test_exponentials_follow_the_documented_words():
    noise = SequenceNoise(seed=2**40 + 7, sample=3)
    row = noise.exponentials(Stream.RESIDUAL, 11, 5, vocab_size=10)
    for token in range(10):
        tag = int(Stream.RESIDUAL) << 24 | 5
        word = philox4x32((token // 4, 11, 3, tag), (7, 2**8))[token % 4]
        assert row[token].item() == pytest.approx(-math.log((word + 0.5) / 2**32), rel=1e-15)
    word = philox4x32((0, 11, 3, 1 << 31 | int(Stream.ACCEPT) << 24 | 5), (7, 2**8))[0]
    assert noise.uniform(Stream.ACCEPT, 11, 5) == (word + 0.5) / 2**32


def test_numbers_stay_inside_their_open_ranges():
    extremes = (np.array([0, 2**32 - 1]) + 0.5) / 2**32
    assert 0 < extremes[0] < extremes[1] < 1
    row = SequenceNoise(1).position_exponentials(0, 200_000)
    assert row.dtype == torch.float64
    assert row.min() > 0
    assert torch.isfinite(row).all()


def test_laws_of_exponentials_and_uniforms():
    row = SequenceNoise(4).position_exponentials(7, 100_000).numpy()
    assert stats.kstest(row, "expon").pvalue > 1e-4
    uniforms = [SequenceNoise(seed).uniform(Stream.ACCEPT, root, 3) for seed in range(60) for root in range(60)]
    assert stats.kstest(uniforms, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("vocab_size", [1, 3, 4, 5, 257, 49152])
def test_a_subset_has_the_bits_of_the_whole_row(vocab_size):
    noise = SequenceNoise(99)
    generator = torch.Generator().manual_seed(vocab_size)
    whole = noise.position_exponentials(5, vocab_size)
    residual = noise.exponentials(Stream.RESIDUAL, 5, 2, vocab_size)
    for size in {1, 2, 7, 40, vocab_size // 5, vocab_size}:
        ids = torch.randperm(vocab_size, generator=generator)[:size]
        assert torch.equal(noise.position_exponentials(5, vocab_size, ids), whole[ids])
        assert torch.equal(noise.exponentials(Stream.RESIDUAL, 5, 2, vocab_size, ids), residual[ids])


def test_a_longer_row_starts_with_the_shorter_one():
    noise = SequenceNoise(99)
    assert torch.equal(noise.position_exponentials(5, 49152)[:1001], noise.position_exponentials(5, 1001))


def test_every_key_component_gives_independent_numbers():
    base = {"seed": 5, "sample": 0, "level": 0, "stream": Stream.DRAFT, "root": 3, "index": 2}
    changes = [
        {},
        {"seed": 6},
        {"seed": 5 + 2**32},
        {"sample": 1},
        {"level": 1},
        *({"stream": stream} for stream in SAMPLED if stream is not Stream.DRAFT),
        {"root": 4},
        {"index": 3},
        {"root": 2, "index": 3},
    ]
    rows = []
    for change in changes:
        key = base | change
        noise = SequenceNoise(key["seed"], key["sample"], level=key["level"])
        rows.append(noise.exponentials(key["stream"], key["root"], key["index"], 4000).numpy())
    rows.append(SequenceNoise(5).position_exponentials(3, 4000).numpy())
    correlation = np.corrcoef(np.stack(rows))
    np.fill_diagonal(correlation, 0)
    pairs = len(rows) * (len(rows) - 1) / 2
    assert np.abs(correlation).max() < stats.norm.isf(1e-4 / pairs / 2) / math.sqrt(4000)


def test_scalars_share_no_word_with_rows():
    for noise in (SequenceNoise(1), SequenceNoise(1).nested()):
        for stream in SAMPLED:
            uniform = noise.uniform(stream, 0, 0)
            row = noise.exponentials(stream, 0, 0, 64)
            assert not torch.isclose(torch.exp(-row), torch.tensor(uniform, dtype=torch.float64), rtol=1e-12).any()


def test_packing_is_injective_over_small_keys():
    words = {
        (noise.uniform(stream, root, index), level)
        for level, noise in enumerate((SequenceNoise(8), SequenceNoise(8, 1), SequenceNoise(8).nested()))
        for stream in SAMPLED
        for root in range(20)
        for index in range(20)
    }
    assert len({number for number, _ in words}) > 3 * 4 * 400 - 3  # birthday collisions: 0.003 expected


def test_nested_noise_is_another_sequence_of_numbers_all_the_way_down():
    noise, seen = SequenceNoise(3), set()
    for _ in range(MAX_LEVELS - 1):
        seen.add(noise.uniform(Stream.ACCEPT, 1, 1))
        noise = noise.nested()
    seen.add(noise.uniform(Stream.ACCEPT, 1, 1))
    assert len(seen) == MAX_LEVELS
    with pytest.raises(ValueError, match="level"):
        noise.nested()


@pytest.mark.parametrize(
    "use",
    [
        lambda: SequenceNoise(-1),
        lambda: SequenceNoise(2**64),
        lambda: SequenceNoise(0, 2**32),
        lambda: SequenceNoise(0).uniform(Stream.ACCEPT, 2**32, 0),
        lambda: SequenceNoise(0).uniform(Stream.ACCEPT, -1, 0),
        lambda: SequenceNoise(0).uniform(Stream.ACCEPT, 0, MAX_INDEX),
        lambda: SequenceNoise(0).exponentials(Stream.DRAFT, 0, -1, 8),
        lambda: SequenceNoise(0).exponentials(Stream.DRAFT, 0, 0, 0),
        lambda: SequenceNoise(0).exponentials(Stream.DRAFT, 0, 0, MAX_VOCAB + 1),
        lambda: SequenceNoise(0).position_exponentials(2**32, 8),
        lambda: SequenceNoise(0).uniform(Stream.TARGET, 0, 0),
        lambda: SequenceNoise(0).exponentials(Stream.TARGET, 0, 0, 8),
    ],
)
def test_keys_beyond_the_packing_are_refused(use):
    with pytest.raises(ValueError, match=r"must lie|keyed by position"):
        use()


def test_keys_at_the_limits_work():
    noise = SequenceNoise(2**64 - 1, 2**32 - 1)
    assert 0 < noise.uniform(Stream.BONUS, 2**32 - 1, MAX_INDEX - 1) < 1
    assert noise.position_exponentials(2**32 - 1, 5).shape == (5,)


def test_draws_follow_their_weights():
    weights = torch.tensor([0.5, 0.0, 1.5, 0.0, 3.0], dtype=torch.float64)
    drawn = [SequenceNoise(seed).draw(Stream.DRAFT, 0, 0, weights) for seed in range(5000)]
    counts = np.bincount(drawn, minlength=5)
    assert counts[1] == counts[3] == 0
    kept = weights > 0
    assert stats.chisquare(counts[kept.numpy()], (5000 * weights / weights.sum())[kept].numpy()).pvalue > 1e-4


def test_distinct_draws_come_in_order_from_what_is_left():
    weights = torch.tensor([0.1, 0.6, 0.0, 0.3], dtype=torch.float64)
    law = {
        (first, second): float(weights[first] * weights[second] / (1 - weights[first]))
        for first in (0, 1, 3)
        for second in (0, 1, 3)
        if first != second
    }
    noises = [SequenceNoise(seed) for seed in range(5000)]
    pairs = [tuple(noise.draw_distinct(Stream.DRAFT, 0, 0, weights, 2)) for noise in noises]
    counts = [pairs.count(pair) for pair in law]
    assert sum(counts) == len(pairs)
    assert stats.chisquare(counts, 5000 * np.array(list(law.values()))).pvalue > 1e-4
    for noise in noises[:50]:
        everything = noise.draw_distinct(Stream.DRAFT, 0, 0, weights, 9)
        assert sorted(everything) == [0, 1, 3]
        assert everything[:2] == noise.draw_distinct(Stream.DRAFT, 0, 0, weights, 2)
        assert everything[0] == noise.draw(Stream.DRAFT, 0, 0, weights)


def test_a_certain_draw_and_an_impossible_one():
    noise = SequenceNoise(0)
    assert noise.draw(Stream.BONUS, 0, 0, torch.tensor([0.0, 1e-300, 0.0], dtype=torch.float64)) == 1
    with pytest.raises(ValueError, match="nothing to draw"):
        noise.draw(Stream.BONUS, 0, 0, torch.zeros(3, dtype=torch.float64))


def test_coupled_draws_ignore_what_cannot_be_drawn():
    weights = np.array([0.2, 0.0, 0.5, 0.3])
    for position in range(200):
        noise = SequenceNoise(position)
        ids = np.array([0, 2, 3])
        assert noise.draw_at(position, 4, weights) == noise.draw_at(position, 4, weights[ids], ids)


def test_gumbel_coupling_agrees_as_often_as_its_formula():
    p = np.array([0.5, 0.2, 0.2, 0.1])
    q = np.array([0.1, 0.3, 0.2, 0.4])
    expected = sum(1 / sum(max(p[y] / p[x], q[y] / q[x]) for y in range(4)) for x in range(4))
    tv = 0.5 * np.abs(p - q).sum()
    assert expected >= (1 - tv) / (1 + tv)
    noises = [SequenceNoise(seed) for seed in range(4000)]
    agreed = sum(noise.draw_at(3, 4, p) == noise.draw_at(3, 4, q) for noise in noises)
    assert stats.binomtest(agreed, 4000, expected).pvalue > 1e-4


def test_fresh_seeds_are_valid_and_differ():
    seeds = {fresh_seed() for _ in range(10)}
    assert len(seeds) == 10
    for seed in seeds:
        SequenceNoise(seed)
