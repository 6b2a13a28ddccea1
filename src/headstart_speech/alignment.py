"""When each token of a window was said: what the decoder looked at while it wrote.

Some heads of a Whisper's cross attention follow the speech. Their weights, smoothed, say how well each token suits each
position of the encoder; the path that suits best is found by dynamic time warping (openai/whisper, ``timing.py``;
transformers, ``_extract_token_timestamps``, whose times these are).
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from headstart.backends.torch.encoder_decoder import EncoderDecoderBackend
from headstart.common.phases import phase
from headstart.errors import ConfigError
from headstart.loading.model import Model, torch_encoder_decoder, weights_dtype
from headstart.models.encoder_decoder import EncoderConfig
from headstart.models.encoder_decoder_loading import load_encoder_decoder
from headstart.passes.batch import EncoderInput
from headstart_speech.cross_weights import cross_weights
from headstart_speech.segments import FRAMES_PER_TIME, SECONDS_PER_TIME

_ASIDE, _DOWN, _ALONG = 0, 1, 2
"""Steps of a path: to the next token and position, to the next token, to the next position."""


class Aligner:
    """Says when tokens were said, by one more pass of encoder and decoder over what a window says.

    The pass is PyTorch's, so that decoding keeps no attention weights. Where another backend decodes, the weights are
    read once more when times are first asked for. Several threads may ask.

    Args:
        model: with an encoder of audio.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._lock = Lock()
        self._backend = model.backend if isinstance(model.backend, EncoderDecoderBackend) else None

    def times(
        self, source: EncoderInput, begun: Sequence[int], said: Sequence[int], frames: int
    ) -> NDArray[np.float64]:
        """[token of ``said``] when each was over, in seconds from the window's beginning.

        The last token, which nothing follows (usually the one that ends outputs), is over when the one before it is.

        Args:
            source: the window.
            begun: what its output begins with.
            said: the output, with the token that ends it.
            frames: of the window that are of the recording.

        Raises:
            ConfigError: memory is short.
        """
        encoder = self._model.config.encoder
        assert encoder is not None
        if len(said) < 2:
            return np.zeros(len(said))
        heads = alignment_heads(encoder, self._model.config.num_layers, self._model.config.num_heads)
        weights = cross_weights(self._computing(), source, [*begun, *said[:-1]], heads)
        positions = max(frames // FRAMES_PER_TIME, 1)
        first = first_positions(weights[:, len(begun) :, :positions], encoder.smoothed_over)
        return np.append(first, first[-1]) * SECONDS_PER_TIME

    def _computing(self) -> EncoderDecoderBackend:
        with self._lock:
            if self._backend is None:
                with phase("Reading the weights for times of words"):
                    dtype = weights_dtype(self._model.precision)
                    self._backend = torch_encoder_decoder(*load_encoder_decoder(self._model.checkpoint, dtype), dtype)
            return self._backend


def alignment_heads(encoder: EncoderConfig, layers: int, heads: int) -> Sequence[tuple[int, int]]:
    """(layer, head) of the decoder's heads that follow the speech; where the model's files do not say, those of the
    last half of the layers, as in openai/whisper.

    Raises:
        ConfigError: the files name heads that the model does not have.
    """
    if not encoder.alignment_heads:
        return [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]
    for layer, head in encoder.alignment_heads:
        if layer >= layers or head >= heads:
            raise ConfigError(
                f"the model's files name the alignment head [{layer}, {head}], but its decoder has {layers} layers of "
                f"{heads} heads; mend alignment_heads in generation_config.json."
            )
    return encoder.alignment_heads


def first_positions(weights: NDArray[np.float32], width: int) -> NDArray[np.int64]:
    """[token] the position at which the best path comes to each.

    Args:
        weights: [head, token, position], at least one of each.
        width: positions that the median is taken over, odd.
    """
    mean, spread = weights.mean(axis=1, keepdims=True), weights.std(axis=1, keepdims=True)
    # Where all tokens look at a position alike it tells nothing.
    told = np.divide(weights - mean, spread, out=np.zeros_like(weights), where=spread > 0)
    # Head by head: all at once would take width times the weights' memory.
    return _warped(-np.mean([_smoothed(head, width) for head in told], axis=0).astype(np.float64))


def _smoothed(values: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """The median over ``width`` neighbours along the last axis, mirrored at its ends."""
    beside = width // 2
    if values.shape[-1] <= beside:
        return values
    padded = np.pad(values, ((0, 0), (beside, beside)), mode="reflect")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1), axis=-1)


def _warped(costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """[token] the first position of each token on the cheapest path through ``costs`` [token, position].

    Places whose token and position have one sum depend on earlier sums alone, so they are computed together. Sums are
    rounded to float32, and of equal steps the one along the positions is taken, as transformers has it.
    """
    tokens, positions = costs.shape
    steps = np.full((tokens, positions), _ALONG, dtype=np.uint8)
    # [token + 1] the cheapest way to the places of a sum; the first entry stands before all tokens.
    before, last = (np.full(tokens + 1, np.inf, dtype=np.float32) for _ in range(2))
    before[0] = 0
    for place in range(tokens + positions - 1):
        row = np.arange(max(0, place - positions + 1), min(tokens, place + 1))
        aside, down, along = before[row], last[row], last[row + 1]
        step = np.where(
            (aside < down) & (aside < along), _ASIDE, np.where((down < aside) & (down < along), _DOWN, _ALONG)
        )
        cheapest = np.choose(step, (aside, down, along))
        reached = np.full(tokens + 1, np.inf, dtype=np.float32)
        reached[row + 1] = costs[row, place - row] + cheapest
        steps[row, place - row] = step
        before, last = last, reached
    first = np.zeros(tokens, dtype=np.int64)
    token, position = tokens - 1, positions - 1
    while token >= 0:
        first[token] = position
        step = steps[token, position]
        token, position = token - (step != _ALONG), position - (step != _DOWN)
    return first
