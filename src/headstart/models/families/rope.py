"""Reading rotary settings: the several spellings of Hugging Face, and GGUF's."""

from __future__ import annotations

from headstart.errors import CheckpointError
from headstart.models.config import RopeConfig
from headstart.models.families.fields import MAX_POSITIONS, Fields


def rope_from_hf(
    fields: Fields,
    dim: int,
    default_theta: float = 10_000.0,
    layer_type: str | None = None,
    theta_key: str = "rope_theta",
    whole_heads: bool = True,
) -> RopeConfig:
    """The rotation of all layers, or of those of one ``layer_type``; ``whole_heads``: the family rotates nothing less.

    Reads ``rope_parameters`` (transformers 5, by layer type or for all) and ``rope_theta`` with ``rope_scaling``
    (before); scaling in the older form wins where both are there, as in transformers.
    """
    parameters = fields.within("rope_parameters")
    if parameters is not None and layer_type is not None:
        parameters = parameters.within(layer_type)
    older = fields.within("rope_scaling") if theta_key == "rope_theta" else None
    for place in (fields, parameters, older) if whole_heads else ():
        # transformers ignores the entry or fails, vLLM follows it: there are no numbers to agree with.
        if place is not None and place.number("partial_rotary_factor", 1.0) != 1:
            raise place.bad("partial_rotary_factor", place.get("partial_rotary_factor"), "1 in this family")
    theta = fields.number(theta_key, default_theta)
    if parameters is not None:
        theta = parameters.number("rope_theta", theta)
    scaling = older or parameters
    if scaling is None:
        return RopeConfig(theta, dim)
    return RopeConfig(scaling.number("rope_theta", theta), dim, _scaling(scaling, fields))


def _scaling(scaling: Fields, fields: Fields) -> dict[str, float | int | str] | None:
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return {"rope_type": "linear", "factor": scaling.number("factor")}
        case "llama3":
            trained = fields.optional_integer("max_position_embeddings", maximum=MAX_POSITIONS)
            low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
            if high <= low:
                raise scaling.bad("high_freq_factor", high, f"more than low_freq_factor, {low}")
            return {
                "rope_type": "llama3",
                "factor": scaling.number("factor"),
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": scaling.integer(
                    "original_max_position_embeddings", trained, maximum=MAX_POSITIONS
                ),
            }
    raise CheckpointError(
        f"{scaling.source}: rope_type is {kind!r}, but only default, linear and llama3 are supported; "
        "use another model, or remove the scaling if its longer context is not needed."
    )


def rope_from_gguf(fields: Fields, dim: int, default_theta: float = 10_000.0) -> RopeConfig:
    """The rotation of all layers. (Llama 3's scaling is a tensor, see ``DecoderWeights.rope_factors``.)"""
    theta = fields.number("rope.freq_base", default_theta)
    before = fields.optional_number("rope.scale_linear")  # what files older than the scaling's type have
    kind = fields.text("rope.scaling.type", "none" if before is None else "linear")
    if kind == "none":
        return RopeConfig(theta, dim)
    if kind == "linear":
        factor = fields.number("rope.scaling.factor", before)
        return RopeConfig(theta, dim, {"rope_type": "linear", "factor": factor})
    raise CheckpointError(
        f"{fields.source}: {fields.prefix}rope.scaling.type is {kind!r}, but only none and linear are supported; "
        "use another model."
    )
