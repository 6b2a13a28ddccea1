"""A target in fewer bits than it is computed in, to guess for itself in its own cache."""

from __future__ import annotations

import logging
from typing import cast

from headstart.backends.native import precision as native_precision
from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.few_bits import BITS_TAKEN, in_fewer_bits
from headstart.common.enumerations import Precision
from headstart.errors import ConfigError
from headstart.loading.model import Model, weights_dtype
from headstart.models.layer_selection import select_layers
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights

logger = logging.getLogger(__name__)

SAVES = 0.9
"""Of the target's bytes, what its layers may take at most in fewer bits: more would be a draft as dear as a pass."""
_TAKEN = {
    Precision.BF16: 16.0,
    Precision.INT8: 8.0,
    Precision.INT8_FAST: 8.0,
    Precision.INT4: BITS_TAKEN[4],
    Precision.INT4_FAST: BITS_TAKEN[4],
}
"""Bits that a weight takes, units included; in its file's own blocks it depends on the file."""


def lend_itself(model: Model, bits: int | str, layers: int | None = None) -> NativeBackend:
    """The target in so many ``bits`` a weight or another precision, whose passes take the target's cache.

    Args:
        layers: first ones that it has; None: all.

    Raises:
        ConfigError: the native pass does not compute the target, its cache holds float32, it has an encoder, it takes
            no more bits as it is, it has fewer layers, or memory is short.
    """
    target = _computed_natively(model)
    available = model.config.num_layers
    if layers is not None and layers > available:
        raise ConfigError(f"layers is {layers}; the target has {available}.")
    asked = Precision.INT4 if isinstance(bits, int) else Precision(bits)
    config, weights = load_decoder(model.checkpoint, weights_dtype(asked))
    taken = BITS_TAKEN[bits] if isinstance(bits, int) else _TAKEN.get(asked, _stored_bits(weights))
    if layers == available or layers is None:
        _require_fewer(target, taken, f"bits={bits}")
    else:
        config, weights = select_layers(config, weights, range(layers))
    precision = cast(native_precision.Precision, asked.value)
    if isinstance(bits, int) and bits < 4:
        precision, weights = "blocks", in_fewer_bits(weights, bits)
    if isinstance(bits, int) and bits < 4 and not target.multiplies_bytes:
        logger.warning(
            "bits=%d: this processor has no dot product of bytes, without which such blocks take longer than bf16; use "
            "bits=4, or another drafter.",
            bits,
        )
    own = NativeBackend(config, weights, precision, threads=target.threads, small_head=True)
    own.take_cache_of(target)
    return own


def _computed_natively(model: Model) -> NativeBackend:
    """The target's backend, where a second set of weights can run on its cache.

    Raises:
        ConfigError: it cannot.
    """
    target, sentence = model.backend, "; use another drafter, or a draft model with a cache of its own."
    if not isinstance(target, NativeBackend):
        raise ConfigError(
            f"{model.name} is computed by {target.name}, and only the native pass runs a target's own weights in fewer "
            f"bits on its cache{sentence}"
        )
    if model.config.encoder is not None:
        raise ConfigError(
            f"{model.name} has an encoder, and only decoders without one guess for themselves in fewer bits{sentence}"
        )
    if target.keeps_floats:
        raise ConfigError(
            f"{model.name} is computed in fp32, whose cache holds float32, and weights in fewer bits write bf16; use "
            "precision bf16 or int8, or another drafter."
        )
    return target


def _require_fewer(target: NativeBackend, taken: float, asked: str) -> None:
    if taken > SAVES * target.layer_bits:
        raise ConfigError(
            f"the target's weights take {target.layer_bits:.1f} bits each as it is ({target.name}), and with {asked} "
            f"they would take {taken:.1f}, so that a draft would cost as much as a pass; give fewer bits, or use "
            "another drafter."
        )


def _stored_bits(weights: DecoderWeights) -> float:
    """What a weight of the layers takes in the file, on average."""
    sizes = [each.matrix.shape[0] * each.matrix.shape[1] for each in weights.linears]
    bits = [each.stored_bits for each in weights.linears]
    return sum(size * each for size, each in zip(sizes, bits, strict=True)) / sum(sizes)
