"""Recordings of any length: what a file holds, and the windows of it that an encoder reads."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headstart.entrypoints.audio import RATE, SAMPLES_PER_FRAME, features_of, missing, resampler_of, wave_of
from headstart.errors import RequestError
from headstart.models.encoder_decoder import EncoderConfig
from headstart.passes.batch import EncoderInput

_BLOCK = 1 << 20
"""Samples that are read at a time, of all channels."""
_USUAL_SAMPLES = 192_000
"""A second, of all channels: twice what studios record. More is decoded as slowly as longer recordings are."""


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
        wave = wave_of(audio)
        window = encoder.max_positions * 2
        features = features_of(wave, encoder, max(len(wave), window * SAMPLES_PER_FRAME))
        return cls(features, max(len(wave) // SAMPLES_PER_FRAME, 1), window, len(wave) / RATE)

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
        raise missing("soundfile") from error
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
    resampler = None if file.samplerate == RATE else resampler_of(file.samplerate)
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


def file_content(path: str | Path) -> bytes:
    """What a recording's file holds.

    Raises:
        RequestError: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RequestError(f"the recording {path} cannot be read: {error.strerror}.", "file") from error
