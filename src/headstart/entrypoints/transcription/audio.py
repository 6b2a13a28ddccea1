"""Features of audio, for encoders that read it: the logarithm of a mel spectrogram, as Whisper was trained on."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.errors import ConfigError, RequestError
from headstart.models.encoder_decoder import EncoderConfig
from headstart.passes.batch import EncoderInput

RATE = 16_000
"""Samples a second that the models were trained on."""
LEAST_RATE, MOST_RATE = 1000, 1_000_000
_BLOCK = 1 << 20
"""Samples that are read at a time, of all channels."""
_USUAL_SAMPLES = 192_000
"""A second, of all channels: twice what studios record. More is decoded as slowly as longer recordings are."""
_SPECTRUM = 400
"""Samples that a frame's spectrum is made of."""
_FRAMES = 1 << 13
"""Whose spectra are made at a time; more than a window has."""
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
    wave = _wave(audio)
    longest = encoder.max_positions * 2 * _HOP
    if len(wave) > longest:
        raise RequestError(
            f"the audio has {len(wave) / RATE:.1f} seconds and the encoder reads at most {longest / RATE:.1f}; cut it, "
            "or have it transcribed (LLM.transcribe, POST /v1/audio/transcriptions), which reads window after window.",
            "prompt",
        )
    return EncoderInput.of_features(_features(wave, encoder, longest))


@dataclass(frozen=True)
class Recording:
    """The features of a recording of any length; an encoder reads windows of it."""

    features: NDArray[np.float32]
    """[mel bin, frame], of 10 ms each. Padded with silence to a window, where it is shorter."""
    frames: int
    """Of the recording itself."""
    window: int
    """Frames that the encoder reads."""
    seconds: float

    @classmethod
    def of(cls, audio: object, encoder: EncoderConfig) -> Self:
        """As ``source_of_audio``, however long.

        Raises:
            RequestError: it is no recording.
            ConfigError: a package that this takes is not installed.
        """
        wave = _wave(audio)
        window = encoder.max_positions * 2
        features = _features(wave, encoder, max(len(wave), window * _HOP))
        return cls(features, max(len(wave) // _HOP, 1), window, len(wave) / RATE)

    @property
    def length(self) -> int:
        """Frames that there are, the silence behind a short recording included."""
        return int(self.features.shape[1])

    def source(self, first: int) -> EncoderInput:
        """The window from frame ``first`` on, padded with zeros, as openai/whisper and transformers pad it."""
        read = self.features[:, first : first + self.window]
        return EncoderInput.of_features(np.pad(read, ((0, 0), (0, self.window - read.shape[1]))))


def read_recording(data: bytes, most_seconds: float | None = None) -> tuple[NDArray[np.float32], int]:
    """Samples of a file's content (WAV, FLAC, Ogg, MP3), all channels mixed, at 16 kHz; and that rate.

    Args:
        data: the content.
        most_seconds: what is longer is refused; None: nothing is.

    Raises:
        RequestError: it is no such file, or too long.
        ConfigError: the package that reads it is not installed.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise _missing("soundfile") from error
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            return _decoded(file, most_seconds), RATE
    except (soundfile.SoundFileError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError("the file holds no audio that can be read; give WAV, FLAC, Ogg or MP3.", "file") from error


def _decoded(file: Any, most_seconds: float | None) -> NDArray[np.float32]:
    """A file's samples at 16 kHz. Piece by piece: it says what it likes of its length, and unpacks to many times its
    size."""
    resampler = None if file.samplerate == RATE else _resampler(file.samplerate)
    frames = max(_BLOCK // file.channels, 1)
    most_samples = None if most_seconds is None else most_seconds * _USUAL_SAMPLES
    pieces, count = list[NDArray[np.float32]](), 0
    while len(block := file.read(frames, dtype="float32", always_2d=True)):
        count += len(block)
        if most_seconds is not None and count > most_seconds * file.samplerate:
            raise RequestError(
                f"the recording has more than the {most_seconds:g} seconds that are read; cut it.", "file"
            )
        if most_samples is not None and count * file.channels > most_samples:
            raise RequestError(
                f"the recording has more than the {most_samples:.0f} samples that are read; give one of fewer "
                "channels, or of fewer samples a second.",
                "file",
            )
        mixed: NDArray[np.float32] = block.mean(axis=1, dtype=np.float32)
        if not np.isfinite(mixed).all():
            raise RequestError("the file holds samples that are no finite numbers; mend it.", "file")
        pieces.append(mixed if resampler is None else resampler.resample_chunk(mixed))
    if resampler is not None and count:
        pieces.append(resampler.resample_chunk(np.zeros(0, np.float32), last=True))
    samples = np.empty(sum(map(len, pieces)), np.float32)
    place = len(samples)
    while pieces:  # each is freed as soon as it is copied
        piece = pieces.pop()
        samples[place - len(piece) : place] = piece
        place -= len(piece)
    return samples


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


def _wave(audio: object) -> NDArray[np.float32]:
    """Samples at 16 kHz."""
    samples, rate = audio if isinstance(audio, tuple) and len(audio) == 2 else (audio, RATE)
    if isinstance(samples, np.ndarray | list) and not len(samples):
        raise RequestError("the recording is empty; give one that has samples.", "file")
    wave = _floats(samples, "audio", dimensions=1)
    return wave if rate == RATE else _resampled(wave, rate)


def _features(wave: NDArray[np.float32], encoder: EncoderConfig, length: int) -> NDArray[np.float32]:
    """[mel bin, frame] of samples that are padded with silence to ``length``, at least theirs. As transformers'
    feature extractor makes them, but piece by piece: a spectrum takes ten times as much memory as its samples."""
    filters = torch.from_numpy(_filters(encoder)).float().T
    window, half = torch.hann_window(_SPECTRUM), _SPECTRUM // 2
    features = np.empty((encoder.mel_bins or 0, length // _HOP), np.float32)
    frames = features.shape[1]
    for first in range(0, frames, _FRAMES):
        last = min(first + _FRAMES, frames)
        piece = torch.from_numpy(_mirrored(wave, length, first * _HOP - half, (last - 1) * _HOP + half))
        spectrum = torch.stft(piece, _SPECTRUM, _HOP, window=window, center=False, return_complex=True)
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
    resampler = _resampler(rate)
    resampled: NDArray[np.float32] = resampler.resample_chunk(wave, last=True)
    return resampled


def _resampler(rate: object) -> Any:
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
        raise _missing("soxr") from error
    return soxr.ResampleStream(float(rate), RATE, 1, dtype="float32")


def _missing(package: str) -> ConfigError:
    return ConfigError(f"audio needs the package {package}; install it: pip install headstart[audio].")


def _filters(encoder: EncoderConfig) -> NDArray[np.float64]:
    """[frequency, mel bin]."""
    try:
        from transformers import WhisperFeatureExtractor
    except ImportError as error:
        raise _missing("transformers") from error
    made: Any = WhisperFeatureExtractor  # transformers does not say what it takes
    filters: NDArray[np.float64] = made(feature_size=encoder.mel_bins, sampling_rate=RATE, hop_length=_HOP).mel_filters
    return filters
