"""What GGUF metadata say of single layers: windows, and layers that guess further tokens."""

from __future__ import annotations

from headstart.models.config import LayerConfig
from headstart.models.families.fields import MAX_POSITIONS, Fields

_WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"


def window_from_gguf(fields: Fields) -> int | None:
    """Of layers that have one; None: there are none."""
    return fields.integer(_WINDOW, 0, minimum=0, maximum=MAX_POSITIONS) or None


def slides_from_gguf(fields: Fields, num_layers: int, every: int) -> list[bool]:
    """[layer] whether it has a window: by an entry for each layer, or all but each so many-th, by default ``every``-th
    (0: none has one)."""
    pattern = fields.get(_PATTERN)
    if isinstance(pattern, list):
        if len(pattern) < num_layers or not all(each in (0, 1) for each in pattern):
            raise fields.bad(_PATTERN, pattern, f"{num_layers} entries, each true or false")
        return [bool(each) for each in pattern[:num_layers]]
    period = fields.integer(_PATTERN, every, minimum=0)
    return [period > 0 and (index + 1) % period != 0 for index in range(num_layers)]


def rotated_in_windows(window: int | None, slides: list[bool]) -> tuple[LayerConfig, ...]:
    """Layers that see everything have no positions beside others with a window (EXAONE 4, AFMoE)."""
    return tuple(LayerConfig(window, 0) if window is None or each else LayerConfig(None, None) for each in slides)


def without_guessing_layers(fields: Fields) -> Fields:
    """Layers that guess further tokens are counted among the others."""
    count = fields.integer("block_count", maximum=4096) - fields.integer("nextn_predict_layers", 0, minimum=0)
    if count < 1:
        raise fields.bad("nextn_predict_layers", fields.get("nextn_predict_layers"), "less than block_count")
    return fields.with_entries(block_count=count)
