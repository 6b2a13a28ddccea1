"""Features of audio, for encoders that read it: the logarithm of a mel spectrogram, as Whisper was trained on."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import ConfigError, RequestError
from headstart.models.encoder_decoder import EncoderConfig
from headstart.passes import EncoderInput

RATE = 16_000
"""Samples a second that the models were trained on."""
MOST_RATE = 1_000_000
_HOP = 160
"""Samples of a frame; two frames become a position of the encoder."""


def source_of_audio(audio: object, encoder: EncoderConfig) -> EncoderInput:
    """What an encoder reads of a recording, which is padded with silence to the length that it was trained on.

    Args:
        audio: samples in [-1, 1] at 16 kHz, [sample]; or such an array and its rate, as vLLM has it.

    Raises:
        RequestError: it is something else, or too long.
        ConfigError: a package that this takes is not installed.
    """
    samples, rate = audio if isinstance(audio, tuple) and len(audio) == 2 else (audio, RATE)
    wave = _floats(samples, "audio", dimensions=1)
    if rate != RATE:
        wave = _resampled(wave, rate)
    longest = encoder.max_positions * 2 * _HOP
    if len(wave) > longest:
        raise RequestError(
            f"the audio has {len(wave) / RATE:.1f} seconds and the encoder reads at most {longest / RATE:.1f}; cut it.",
            "prompt",
        )
    read = _extractor(encoder)(wave, sampling_rate=RATE, padding="max_length", max_length=longest, return_tensors="np")
    return EncoderInput.of_features(read["input_features"][0])


def read_recording(data: bytes) -> tuple[NDArray[np.float32], int]:
    """Samples of a file's content (WAV, FLAC, Ogg, MP3), all channels mixed, and its rate.

    Raises:
        RequestError: it is no such file.
        ConfigError: the package that reads it is not installed.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise _missing("soundfile") from error
    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, ValueError) as error:
        raise RequestError("the file holds no audio that can be read; give WAV, FLAC, Ogg or MP3.", "file") from error
    mixed: NDArray[np.float32] = samples.mean(axis=1, dtype=np.float32)
    return mixed, int(rate)


def source_of_features(features: object, encoder: EncoderConfig) -> EncoderInput:
    """What an encoder reads where the features are given.

    Args:
        features: [mel bin, frame].

    Raises:
        RequestError: they are something else, or too many.
    """
    block = _floats(features, "features", dimensions=2)
    bins, frames = block.shape
    if bins != encoder.mel_bins or not 0 < frames <= 2 * encoder.max_positions:
        raise RequestError(
            f"the features have the shape {list(block.shape)}; give {encoder.mel_bins} mel bins of 1 to "
            f"{2 * encoder.max_positions} frames.",
            "prompt",
        )
    return EncoderInput.of_features(block)


def _floats(values: object, name: str, dimensions: int) -> NDArray[np.float32]:
    try:
        block = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError):
        block = np.zeros(0, np.float32)
    if block.ndim != dimensions or not block.size or not np.isfinite(block).all():
        raise RequestError(
            f"the {name} must be an array of {dimensions} {'dimension' if dimensions == 1 else 'dimensions'} of finite "
            "numbers.",
            "prompt",
        )
    return block


def _resampled(wave: NDArray[np.float32], rate: object) -> NDArray[np.float32]:
    if not isinstance(rate, int | float | np.number) or not MOST_RATE >= rate > 0:
        raise RequestError(f"the audio has {rate!r:.20} samples a second; give a rate up to {MOST_RATE}.", "prompt")
    try:
        import soxr
    except ImportError as error:
        raise _missing("soxr") from error
    resampled: NDArray[np.float32] = soxr.resample(wave, float(rate), RATE)
    return resampled


def _missing(package: str) -> ConfigError:
    return ConfigError(f"audio needs the package {package}; install it: pip install headstart[audio].")


def _extractor(encoder: EncoderConfig) -> Any:
    try:
        from transformers import WhisperFeatureExtractor
    except ImportError as error:
        raise _missing("transformers") from error
    made: Any = WhisperFeatureExtractor  # transformers does not say what it takes
    return made(feature_size=encoder.mel_bins, sampling_rate=RATE, hop_length=_HOP)
