"""Audio in prompts, for encoders that read it: the logarithm of a mel spectrogram, as Whisper was trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.errors import ConfigError, RequestError
from headstart.models.encoder_decoder import EncoderConfig
from headstart.passes.batch import EncoderInput

RATE = 16_000
"""Samples a second that the models were trained on."""
LEAST_RATE, MOST_RATE = 1000, 1_000_000
_SPECTRUM = 400
"""Samples that a frame's spectrum is made of."""
_FRAMES = 1 << 13
"""Whose spectra are made at a time; more than a window has."""
SAMPLES_PER_FRAME = 160
"""Two frames become a position of the encoder."""


def source_of_audio(audio: object, encoder: EncoderConfig) -> EncoderInput:
    """What an encoder reads of a recording, which is padded with silence to the length that it was trained on.

    Args:
        audio: samples in [-1, 1] at 16 kHz, [sample]; or such an array and its rate, as vLLM has it.

    Raises:
        RequestError: it is something else, or too long.
        ConfigError: a package that this takes is not installed.
    """
    wave = wave_of(audio)
    longest = encoder.max_positions * 2 * SAMPLES_PER_FRAME
    if len(wave) > longest:
        raise RequestError(
            f"the audio has {len(wave) / RATE:.1f} seconds and the encoder reads at most {longest / RATE:.1f}; cut it, "
            "or have it transcribed (LLM.transcribe, POST /v1/audio/transcriptions), which reads window after window.",
            "prompt",
        )
    return EncoderInput.of_features(features_of(wave, encoder, longest))


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


def wave_of(audio: object) -> NDArray[np.float32]:
    """float32 [sample] at 16 kHz of what ``source_of_audio`` takes.

    Raises:
        RequestError: it is something else.
        ConfigError: the package that resamples is not installed.
    """
    samples, rate = audio if isinstance(audio, tuple) and len(audio) == 2 else (audio, RATE)
    if isinstance(samples, np.ndarray | list) and not len(samples):
        raise RequestError("the recording is empty; give one that has samples.", "file")
    wave = _floats(samples, "audio", dimensions=1)
    return wave if rate == RATE else _resampled(wave, rate)


def features_of(wave: NDArray[np.float32], encoder: EncoderConfig, length: int) -> NDArray[np.float32]:
    """float32 [mel bin, frame] of samples that are padded with silence to ``length``, at least theirs. As transformers'
    feature extractor makes them, but piece by piece: a spectrum takes ten times as much memory as its samples.

    Raises:
        ConfigError: transformers is not installed.
    """
    filters = torch.from_numpy(_filters(encoder)).float().T
    window, half = torch.hann_window(_SPECTRUM), _SPECTRUM // 2
    features = np.empty((encoder.mel_bins or 0, length // SAMPLES_PER_FRAME), np.float32)
    frames = features.shape[1]
    for first in range(0, frames, _FRAMES):
        last = min(first + _FRAMES, frames)
        begin, end = first * SAMPLES_PER_FRAME - half, (last - 1) * SAMPLES_PER_FRAME + half
        piece = torch.from_numpy(_mirrored(wave, length, begin, end))
        spectrum = torch.stft(piece, _SPECTRUM, SAMPLES_PER_FRAME, window=window, center=False, return_complex=True)
        energies = filters @ (spectrum.abs() ** 2)
        features[:, first:last] = torch.clamp(energies, min=1e-10).log10().numpy()
    np.maximum(features, features.max() - 8, out=features)
    features += 4
    features /= 4
    return features


def _mirrored(wave: NDArray[np.float32], length: int, begin: int, end: int) -> NDArray[np.float32]:
    """Samples ``begin`` to ``end`` of what is silent from its end to ``length``, and mirrored beyond that and before
    its beginning."""
    places = np.abs(np.arange(begin, end))
    places = np.where(places < length, places, 2 * (length - 1) - places)
    heard = places < len(wave)
    return np.where(heard, wave[np.where(heard, places, 0)], np.float32(0))


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
    resampler = resampler_of(rate)
    resampled: NDArray[np.float32] = resampler.resample_chunk(wave, last=True)
    return resampled


def resampler_of(rate: object) -> Any:
    """What makes 16 kHz of samples at another rate, piece by piece.

    Raises:
        RequestError: no recording has such a rate.
        ConfigError: the package that resamples is not installed.
    """
    if not isinstance(rate, int | float | np.number) or not MOST_RATE >= rate >= LEAST_RATE:
        raise RequestError(
            f"the audio has {rate!r:.20} samples a second; give a rate from {LEAST_RATE} to {MOST_RATE}.", "prompt"
        )
    try:
        import soxr
    except ImportError as error:
        raise missing("soxr") from error
    return soxr.ResampleStream(float(rate), RATE, 1, dtype="float32")


def missing(package: str) -> ConfigError:
    """Says that a package which reads audio is not installed."""
    return ConfigError(f"audio needs the package {package}; install it: pip install headstart[audio].")


def _filters(encoder: EncoderConfig) -> NDArray[np.float64]:
    """[frequency, mel bin]."""
    try:
        from transformers import WhisperFeatureExtractor
    except ImportError as error:
        raise missing("transformers") from error
    extractor: Any = WhisperFeatureExtractor  # transformers does not say what it takes
    made = extractor(feature_size=encoder.mel_bins, sampling_rate=RATE, hop_length=SAMPLES_PER_FRAME)
    filters: NDArray[np.float64] = made.mel_filters
    return filters
