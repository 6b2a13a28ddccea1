"""Counter-based noise: every random number is a function of what it is for, never of call order.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") turns a 128-bit counter and a
64-bit key into four 32-bit words. The key is the request's seed; the counter says what the number is for::

    word 0   token // 4 of a vocabulary row; 0 for a scalar     32 bits
    word 1   position of the token, or of the round's root      32 bits
    word 2   sample index (``n > 1``)                           32 bits
    word 3   kind << 31 | level << 28 | stream << 24 | index    1 + 3 + 4 + 24 bits

``kind`` tells scalars (1) from vocabulary rows (0), ``level`` the sequence's own noise (0) from that of drafters
inside its drafter, ``stream`` the use, ``index`` the node or draw (0 for the coupled stream). The packing is
injective within limits that every call checks, so no two uses share a word: rows below ``MAX_VOCAB`` tokens,
positions and samples below 2**32, indices below ``MAX_INDEX``, levels below ``MAX_LEVELS``.

A word w becomes u = (w + 1/2) 2**-32 in float64: never 0, never 1.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.sampling.kernels import NoiseKey, RowKernels

MAX_VOCAB = 2**32
MAX_INDEX = 2**24
MAX_LEVELS = 8

_WORD = 2**32
_MASK = _WORD - 1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_SCALAR = 1 << 31

UInt64Array = NDArray[np.uint64]
UInt32Array = NDArray[np.uint32]
IdArray = NDArray[np.int64]
"""[id] token ids."""


class Stream(IntEnum):
    """What a random number decides. Fresh noise for each use is what makes rejection rules exact."""

    TARGET = 0
    """Coupled: keyed by the token's own position, for draws that the target alone decides."""
    DRAFT = 1
    """A drafter's draw; index: the draw (unique within a round)."""
    ACCEPT = 2
    """Whether a draw is kept; index: the draw, or the node of a chain."""
    RESIDUAL = 3
    """The correction after a rejection; index: where the walk stopped."""
    BONUS = 4
    """The token after a fully accepted path."""


class SequenceNoise:
    """The noise of one sequence: sample ``sample`` of the request with ``seed``."""

    __slots__ = ("_key", "_level", "kernels", "sample", "seed")

    def __init__(self, seed: int, sample: int = 0, *, level: int = 0, kernels: RowKernels | None = None) -> None:
        """``seed`` in [0, 2**64), ``sample`` in [0, 2**32). ``kernels``: compiled code that may help.

        Raises:
            ValueError: outside these limits, or ``level`` outside [0, MAX_LEVELS).
        """
        self.seed = _checked("seed", seed, 2**64)
        self.sample = _checked("sample", sample, _WORD)
        self._level = _checked("level", level, MAX_LEVELS)
        self._key = (seed & _MASK, seed >> 32)
        self.kernels = kernels

    def nested(self) -> SequenceNoise:
        """Noise that shares nothing with this one, for a drafter that verifies the guesses of its own drafter.

        Raises:
            ValueError: deeper than MAX_LEVELS.
        """
        return SequenceNoise(self.seed, self.sample, level=self._level + 1, kernels=self.kernels)

    @property
    def coupled_key(self) -> NoiseKey:
        """Of the coupled draws at position 0; a position is the first word of the counter."""
        return self._key_of(Stream.TARGET, 0, 0)

    def position_exponentials(self, position: int, vocab_size: int, ids: Tensor | None = None) -> Tensor:
        """Exp(1) noise of the token at ``position``, float64 [vocab], or [id] for int64 ``ids`` (the same bits).

        argmin E/p over it draws from p; draws for the same position are coupled (docs/exactness.md 6).
        """
        return torch.from_numpy(self._row(Stream.TARGET, position, 0, vocab_size, _host(ids)))

    def exponentials(self, stream: Stream, root: int, index: int, vocab_size: int, ids: Tensor | None = None) -> Tensor:
        """Exp(1) noise for one draw of the round whose root is at position ``root``.

        float64 [vocab], or [id] for int64 ``ids`` (the same bits). ``index`` is the node or draw.

        Raises:
            ValueError: outside the limits of the packing, or ``stream`` is TARGET (keyed by position, see
                ``position_exponentials``).
        """
        return torch.from_numpy(self._row(_sampled(stream), root, index, vocab_size, _host(ids)))

    def uniform(self, stream: Stream, root: int, index: int) -> float:
        """A number in the open interval (0, 1): accept iff ``uniform * q < p``, strictly.

        Raises:
            ValueError: as ``exponentials``.
        """
        tag = self._tag(_sampled(stream), index) | _SCALAR
        return (philox4x32((0, _checked("root", root, _WORD), self.sample, tag), self._key)[0] + 0.5) / _WORD

    def draw(self, stream: Stream, root: int, index: int, weights: Tensor) -> int:
        """One token with probability proportional to ``weights`` (float64 [vocab], need not sum to 1).

        The argmin of E / weights over the stream's exponentials.

        Raises:
            ValueError: as ``exponentials``, or no weight is above 0.
        """
        return self.draw_distinct(stream, root, index, weights, 1)[0]

    def draw_distinct(self, stream: Stream, root: int, index: int, weights: Tensor, count: int) -> list[int]:
        """Up to ``count`` tokens without replacement, in the order drawn; fewer where fewer weights are above 0.

        The smallest E / weights in order: the same as drawing one by one from what is left (docs/exactness.md 4).

        Raises:
            ValueError: as ``draw``.
        """
        vocab_size = len(weights)
        host = weights.numpy(force=True)
        support = np.flatnonzero(host > 0)
        if len(support) == 0:
            raise ValueError("no weight is above 0; there is nothing to draw")
        if len(support) == 1:
            return [int(support[0])]
        whole = len(support) == vocab_size
        ratios = self._row(_sampled(stream), root, index, vocab_size, None if whole else support)
        ratios /= host if whole else host[support]
        if count == 1:
            return [int(support[ratios.argmin()])]
        first = ratios.argpartition(count - 1)[:count] if count < len(ratios) else np.arange(len(ratios))
        return [int(token) for token in support[first[ratios[first].argsort()]]]

    def contenders(self, position: int, row: NDArray[np.float32], temperature: float, floor: float) -> IdArray | None:
        """Tokens, ascending, that the coupled draw at ``position`` may pick; None where no compiled code can tell.

        p is proportional to exp(logit / temperature) where logit >= floor. ``row``: logits, float32 [vocab].

        Raises:
            ValueError: outside the limits of the packing.
        """
        if self.kernels is None:
            return None
        found = self.kernels.contenders(row, temperature, floor, self._key_of(Stream.TARGET, position, 0))
        return found if len(found) else None

    def draw_at(self, position: int, vocab_size: int, weights: NDArray[np.float64], ids: IdArray | None = None) -> int:
        """The coupled draw of the token at ``position``: argmin of E / weights (docs/exactness.md 5, 6).

        ``weights`` on the host: [vocab], or [id] for the tokens ``ids``; some must be above 0.

        Raises:
            ValueError: outside the limits of the packing.
        """
        ratios = self._row(Stream.TARGET, position, 0, vocab_size, ids)
        with np.errstate(divide="ignore"):
            ratios /= weights
        winner = int(ratios.argmin())
        return winner if ids is None else int(ids[winner])

    def _tag(self, stream: Stream, index: int) -> int:
        return self._level << 28 | int(stream) << 24 | _checked("index", index, MAX_INDEX)

    def _row(
        self, stream: Stream, position: int, index: int, vocab_size: int, ids: IdArray | None
    ) -> NDArray[np.float64]:
        if not 0 < vocab_size <= MAX_VOCAB:
            raise ValueError(f"vocab_size is {vocab_size}; it must lie in [1, {MAX_VOCAB}]")
        noise = self._key_of(stream, position, index)
        if self.kernels is not None:
            return _exponentials(self.kernels.noise_words(noise, vocab_size, ids))
        blocks = -(-vocab_size // 4)
        if ids is None or len(ids) >= blocks:
            words = philox4x32_array((np.arange(blocks, dtype=np.uint64), *noise.counter), noise.key)
            row = _exponentials(words).reshape(-1)[:vocab_size]
            return row if ids is None else row[ids]
        words = philox4x32_array(((ids >> 2).astype(np.uint64), *noise.counter), noise.key)
        return _exponentials(words[np.arange(len(ids)), ids & 3])

    def _key_of(self, stream: Stream, position: int, index: int) -> NoiseKey:
        return NoiseKey(self._key, (_checked("position", position, _WORD), self.sample, self._tag(stream, index)))


def fresh_seed() -> int:
    """A seed in [0, 2**64) for a request that names none."""
    return secrets.randbits(64)


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """One Philox4x32-10 block in Python integers: four 32-bit words (quicker than NumPy for a single number)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (product1 >> 32) ^ c1 ^ k0, product1 & _MASK
        c2, c3 = (product0 >> 32) ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def philox4x32_array(counter: Sequence[UInt64Array | int], key: Sequence[UInt64Array | int]) -> UInt64Array:
    """Philox4x32-10 over arrays: four counter and two key words, broadcast to [...] -> 32-bit words [..., 4]."""
    words = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in (*counter, *key)))
    c0, c1, c2, c3 = (word.copy() for word in words[:4])
    k0, k1 = (np.asarray(word, dtype=np.uint64) for word in key)
    mask, shift = np.uint64(_MASK), np.uint64(32)
    multiplier0, multiplier1 = (np.uint64(multiplier) for multiplier in _MULTIPLIERS)
    weyl0, weyl1 = (np.uint64(constant) for constant in _WEYL)
    product0, product1 = np.empty_like(c0), np.empty_like(c0)
    for _ in range(_ROUNDS):
        np.multiply(c0, multiplier0, out=product0)
        np.multiply(c2, multiplier1, out=product1)
        np.right_shift(product1, shift, out=c0)
        c0 ^= c1
        c0 ^= k0
        np.bitwise_and(product1, mask, out=c1)
        np.right_shift(product0, shift, out=c2)
        c2 ^= c3
        c2 ^= k1
        np.bitwise_and(product0, mask, out=c3)
        k0, k1 = (k0 + weyl0) & mask, (k1 + weyl1) & mask
    return np.stack((c0, c1, c2, c3), axis=-1)


def _exponentials(words: UInt64Array | UInt32Array) -> NDArray[np.float64]:
    # NumPy's logarithm gives an element the same bits wherever it is in the array; torch's may not (vector tails).
    uniform = words.astype(np.float64)
    uniform += 0.5
    uniform *= 1 / _WORD
    np.log(uniform, out=uniform)
    return np.negative(uniform, out=uniform)


def _host(ids: Tensor | None) -> IdArray | None:
    return None if ids is None else ids.numpy(force=True)


def _checked(name: str, value: int, limit: int) -> int:
    if not 0 <= value < limit:
        raise ValueError(f"{name} is {value}; it must lie in [0, {limit})")
    return value


def _sampled(stream: Stream) -> Stream:
    if stream is Stream.TARGET:
        raise ValueError("the target stream is keyed by position alone; use position_exponentials")
    return stream
