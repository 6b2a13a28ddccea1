"""Recordings as an encoder reads them: piece by piece, whatever a file says of itself."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest

pytest.importorskip("soundfile", reason="needs the extra 'audio'")
pytest.importorskip("soxr", reason="needs the extra 'audio'")

import soundfile
import soxr
from transformers import WhisperFeatureExtractor

from headstart.entrypoints import audio
from headstart.entrypoints.audio import RATE
from headstart.errors import RequestError
from headstart.models.encoder_decoder import EncoderConfig
from headstart_speech import recordings
from headstart_speech.recordings import Recording, read_recording


def file_of(samples: Any, rate: int, **options: Any) -> bytes:
    written = io.BytesIO()
    soundfile.write(written, samples, rate, **{"format": "WAV", "subtype": "FLOAT"} | options)
    return written.getvalue()


def noise(seconds: float, rate: int = RATE, channels: int = 1) -> Any:
    return np.random.default_rng(0).uniform(-0.5, 0.5, (int(seconds * rate), channels)).astype(np.float32)


@pytest.mark.parametrize("block", [1 << 20, 1000, 7])
@pytest.mark.parametrize(("rate", "channels"), [(RATE, 1), (RATE, 3), (8000, 1), (44_100, 2), (192_000, 1)])
def test_a_file_is_read_in_pieces_as_if_it_were_whole(
    rate: int, channels: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = noise(0.05, rate, channels)
    monkeypatch.setattr(recordings, "_BLOCK", block)
    mixed = samples.mean(axis=1, dtype=np.float32)
    expected = mixed if rate == RATE else soxr.resample(mixed, rate, RATE)
    found, told = read_recording(file_of(samples, rate))
    assert told == RATE
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("frames", [1 << 13, 64, 1])
@pytest.mark.parametrize("samples", [1, 399, 6400, 40_000, 40_001])
def test_features_in_pieces_are_transformers_own(samples: int, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "_FRAMES", frames)
    wave, encoder = noise(samples / RATE)[:, 0], config()
    recording = Recording.of(wave, encoder)
    extract = WhisperFeatureExtractor(feature_size=encoder.mel_bins, sampling_rate=RATE, hop_length=160)
    length = max(samples, recording.window * 160)
    read = extract(wave, sampling_rate=RATE, padding="max_length", max_length=length, return_tensors="np")
    np.testing.assert_allclose(recording.features, read["input_features"][0], atol=1e-5)


def test_what_is_held_of_a_file_is_its_samples_at_16_khz(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()

    class Counting(soundfile.SoundFile):  # type: ignore[misc, name-defined]
        def read(self, frames: int = -1, *args: Any, **options: Any) -> Any:
            read.append(frames * self.channels)
            return super().read(frames, *args, **options)

    monkeypatch.setattr(soundfile, "SoundFile", Counting)
    found, _ = read_recording(file_of(np.zeros((4000, 500), np.int16), 655_350, format="WAV", subtype="PCM_16"))
    assert found.nbytes < 1000
    assert max(read) <= 1 << 20


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: file_of(noise(2), RATE), "more than the 1 seconds"),
        (lambda: file_of(np.zeros((100_000, 2), np.int16), 655_350, format="FLAC", subtype="PCM_16"), "192000 samples"),
        (lambda: file_of(np.zeros((300, 1000), np.int16), RATE, subtype="PCM_16"), "192000 samples"),
        (lambda: file_of(noise(0.1, 500), 500), "500 samples a second"),
        (lambda: forged(rate=2**31 - 1), "2147483647 samples a second"),
        (lambda: forged(rate=0), "no audio that can be read"),
        (lambda: forged(channels=0), "no audio that can be read"),
        (lambda: forged(channels=65_535), "no audio that can be read"),
        (lambda: file_of(np.full(100, np.nan, np.float32), 8000), "no finite numbers"),
    ],
)
def test_what_cannot_be_meant_is_refused(data: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_recording(data(), 1)


def test_a_length_that_a_header_makes_up_is_not_believed() -> None:
    assert len(read_recording(forged())[0]) == 50


def forged(rate: int = RATE, channels: int = 1) -> bytes:
    """A file of 50 samples that says it has two thousand million."""
    most = struct.pack("<I", 2**32 - 1)
    sizes = (16, 1, channels, rate, rate * 2 % 2**32, channels * 2 % 2**16, 16)
    return b"RIFF" + most + b"WAVEfmt " + struct.pack("<IHHIIHH", *sizes) + b"data" + most + bytes(100)


def config() -> EncoderConfig:
    """Of a tiny Whisper, whose window is 0.4 seconds."""
    return EncoderConfig(1, 1, 4, 4, max_positions=20, positions="sinusoid", mel_bins=80)
