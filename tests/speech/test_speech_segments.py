"""Windows' outputs are cut into segments as transformers cuts them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from headstart_speech.segments import pieces_of, settled

FIRST = 10


def cut_by_transformers(tokens: list[int], frames: int) -> tuple[list[tuple[float, float, list[int]]], int]:
    segments, offset = WhisperGenerationMixin._retrieve_segment(
        seek_sequence=torch.tensor(tokens, dtype=torch.long),
        seek_outputs=[None],
        time_offset=[torch.tensor(0.0, dtype=torch.float64)],
        timestamp_begin=FIRST,
        seek_num_frames=[frames],
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 1),
    )
    return [(float(each["start"]), float(each["end"]), each["tokens"].tolist()) for each in segments], int(offset)


def test_random_outputs_are_cut_alike() -> None:
    rng = np.random.default_rng(0)
    counts = set()
    for _ in range(500):
        frames = 2 * int(rng.integers(1, 20))
        tokens = [FIRST + int(rng.integers(0, 5)), *rng.integers(6, 15, rng.integers(0, 12)).tolist()]
        expected, offset = cut_by_transformers(tokens, frames)
        pieces, advance = pieces_of(tokens, FIRST, frames)
        assert advance == offset
        for piece, (start, end, own) in zip(pieces, expected, strict=True):
            assert (piece.start * 0.02, piece.end * 0.02) == pytest.approx((start, end))
            # transformers keeps the time that the next window will begin with.
            assert list(piece.tokens) in (own, own[:-1])
        counts.add(len(pieces))
    assert len(counts) > 3


def test_what_is_settled_is_kept() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        tokens = [FIRST, *rng.integers(6, 15, 12).tolist()]
        kept = [token for piece in pieces_of(tokens, FIRST, 40)[0] for token in piece.tokens]
        for length in range(len(tokens)):
            count = settled(tokens[:length], FIRST)
            assert kept[:count] == tokens[:count]
    assert settled([FIRST, 1, FIRST + 2], FIRST) == 0
    assert settled([FIRST, 1, FIRST + 2, FIRST + 2, 3], FIRST) == 3


def test_nothing_said_is_one_empty_piece() -> None:
    assert pieces_of([], FIRST, 40) == ([(0, 20, ())], 40)
