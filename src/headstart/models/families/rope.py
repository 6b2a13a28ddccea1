"""Reading rotary settings: the several spellings of Hugging Face, and GGUF's."""

from __future__ import annotations

import math

from headstart.errors import CheckpointError, UnsupportedModelError
from headstart.models.config import RopeConfig
from headstart.models.families.fields import MAX_POSITIONS, Fields


def rope_of(
    fields: Fields,
    dim: int,
    default_theta: float = 10_000.0,
    layer_type: str | None = None,
    theta_key: str = "rope_theta",
    whole_heads: bool = True,
) -> RopeConfig:
    """The rotation of all layers, or of those of one ``layer_type``; ``whole_heads``: the family rotates nothing less.

    Of a ``config.json`` it reads ``rope_parameters`` (transformers 5, by layer type or for all) and ``rope_theta`` with
    ``rope_scaling`` (before); scaling in the older form wins where both are there, as in transformers.
    """
    if fields.of_gguf:
        return _rope_from_gguf(fields, dim, default_theta, layer_type, whole_heads)
    parameters = fields.within("rope_parameters")
    if parameters is not None and layer_type is not None:
        parameters = parameters.within(layer_type)
    older = fields.within("rope_scaling") if theta_key == "rope_theta" else None
    scaling = older or parameters
    kind = "default" if scaling is None else scaling.text("rope_type", scaling.text("type", "default"))
    for place in (fields, parameters, older) if whole_heads and kind != "default" else ():
        # transformers, whose models these are, passes over the entry in a plain rotation and fails in others.
        if place is not None and place.number("partial_rotary_factor", 1.0) != 1:
            raise place.unsupported("partial_rotary_factor", place.get("partial_rotary_factor"), "1 in this family")
    theta = fields.number(theta_key, default_theta)
    if parameters is not None:
        theta = parameters.number("rope_theta", theta)
    if scaling is None:
        return RopeConfig(theta, dim)
    theta = scaling.number("rope_theta", theta)
    if kind == "proportional":
        return _proportional(scaling, dim, theta)
    return RopeConfig(theta, dim, _scaling(scaling, fields, theta))


def _proportional(scaling: Fields, dim: int, theta: float) -> RopeConfig:
    """The first pairs of a head turn, as fast as where all do; the others not at all (transformers,
    modeling_rope_utils.py)."""
    share, factor = scaling.number("partial_rotary_factor", 1.0), scaling.number("factor", 1.0)
    turning = int(share * dim // 2)
    if not 0 <= turning <= dim // 2:
        raise scaling.bad("partial_rotary_factor", share, "a number from 0 to 1")
    return RopeConfig(theta, dim, factors=(factor,) * turning + (math.inf,) * (dim // 2 - turning))


def partial_rope_of(fields: Fields, head_dim: int, default_share: float, default_theta: float = 10_000.0) -> RopeConfig:
    """The rotation of all layers of a family that rotates a share of each head, ``partial_rotary_factor``."""
    return rope_of(fields, rotated_dim(fields, head_dim, default_share), default_theta, whole_heads=False)


def rotated_dim(fields: Fields, head_dim: int, default_share: float, key: str = "partial_rotary_factor") -> int:
    """How many of a head's dimensions are rotated; ``key``: what older descriptions call their share."""
    if fields.of_gguf:
        return fields.integer("rope.dimension_count", head_dim)
    share = fields.number(key, default_share)
    for nested in (fields.within("rope_parameters"), fields.within("rope_scaling")):
        if nested is not None:
            share = nested.number("partial_rotary_factor", share)
    return int(head_dim * share)


def _scaling(scaling: Fields, fields: Fields, theta: float) -> dict[str, float | int | str] | None:
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    match kind:
        case "default" | "dynamic" | "mrope":
            # "dynamic" turns otherwise beyond the trained context alone, which is what the model reaches; "mrope" tells
            # rows of an image apart.
            return None
        case "linear":
            return {"rope_type": "linear", "factor": scaling.number("factor")}
        case "yarn":
            return _yarn(scaling, fields, theta)
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
    raise UnsupportedModelError(
        f"{scaling.source}: rope_type is {kind!r:.60}, but only default, dynamic, linear, llama3, yarn and "
        "proportional are supported; use another model, or remove the scaling if its longer context is not needed."
    )


def _yarn(scaling: Fields, fields: Fields, theta: float) -> dict[str, float | int | str]:
    """Defaults as in transformers (modeling_rope_utils.py)."""
    trained = fields.optional_integer("max_position_embeddings", maximum=MAX_POSITIONS)
    factor = scaling.number("factor")
    scale, of_all = scaling.optional_number("mscale"), scaling.optional_number("mscale_all_dim")
    grown = growth(factor)
    if scale is not None and of_all is not None:
        grown = growth(factor, scale) / growth(factor, of_all)
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": scaling.integer(
            "original_max_position_embeddings", trained, maximum=MAX_POSITIONS
        ),
        "attention_factor": scaling.number("attention_factor", grown),
        **_betas(scaling, "", theta),
        "truncate": scaling.flag("truncate", True),
    }


def growth(factor: float, weight: float = 1.0) -> float:
    """What queries and keys together grow by (YaRN, section 3.4), for each of them."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _betas(fields: Fields, prefix: str, theta: float) -> dict[str, float]:
    if theta <= 1:
        raise CheckpointError(f"{fields.source}: yarn needs a rotary base of more than 1, not {theta}; fetch it again.")
    fast, slow = fields.number(f"{prefix}beta_fast", 32.0), fields.number(f"{prefix}beta_slow", 1.0)
    if fast <= slow:
        raise fields.bad(f"{prefix}beta_fast", fast, f"more than beta_slow, {slow}")
    return {"beta_fast": fast, "beta_slow": slow}


def longrope_if_any(fields: Fields, dim: int) -> RopeConfig | None:
    """LongRoPE's short factors, where the description has them (Ding et al. 2024; "su" in older files); else None.

    The long factors belong to texts beyond the trained context. A row must not change when its text grows, so the
    trained context is what the model reaches.
    """
    if fields.of_gguf:
        return _longrope_from_gguf(fields, dim)
    scaling = fields.within("rope_scaling") or fields.within("rope_parameters")
    if scaling is None or scaling.text("rope_type", scaling.text("type", "default")) not in ("longrope", "su"):
        return None
    # Beside the scaling in released files, and where transformers looks first.
    beside = fields if fields.has("original_max_position_embeddings") else scaling
    trained = beside.integer("original_max_position_embeddings", maximum=MAX_POSITIONS)
    reached = fields.integer("max_position_embeddings", maximum=MAX_POSITIONS)
    factor = scaling.number("factor", reached / trained)
    grown = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 and trained > 1 else 1.0
    theta = scaling.number("rope_theta", fields.number("rope_theta", 10_000.0))
    described = longrope(trained, scaling.number("attention_factor", grown))
    return RopeConfig(theta, dim, described, scaling.numbers("short_factor", dim // 2))


def longrope(trained: int, attention_factor: float) -> dict[str, float | int | str]:
    """How ``RopeConfig`` describes a rotation of this kind."""
    return {"rope_type": "longrope", "attention_factor": attention_factor, "original_max_position_embeddings": trained}


def reach(rope: RopeConfig, positions: int) -> int:
    """How many of a model's ``positions`` it has with this rope.

    "yarn" stretches the trained ones, and is often added without changing what else says how far a model reaches
    (vLLM counts so, too); "longrope" is read for the trained ones alone.
    """
    scaling = rope.scaling
    if scaling is None or "original_max_position_embeddings" not in scaling:
        return positions
    trained = int(scaling["original_max_position_embeddings"])
    if scaling["rope_type"] == "yarn":
        return max(positions, int(min(float(scaling["factor"]) * trained, MAX_POSITIONS)))
    return min(positions, trained) if scaling["rope_type"] == "longrope" else positions


def _longrope_from_gguf(fields: Fields, dim: int) -> RopeConfig | None:
    """Its short factors are a tensor, see ``DecoderWeights.rope_factors``."""
    trained = fields.optional_integer("rope.scaling.original_context_length", maximum=MAX_POSITIONS)
    if trained is None:
        return None
    described = longrope(trained, fields.number("rope.scaling.attn_factor", 1.0))
    return RopeConfig(fields.number("rope_theta", 10_000.0), dim, described)


def _rope_from_gguf(
    fields: Fields, dim: int, default_theta: float, layer_type: str | None, whole_heads: bool
) -> RopeConfig:
    """Llama 3's scaling is a tensor, see ``DecoderWeights.rope_factors``; layers with a window have none at all."""
    if whole_heads and fields.integer("rope.dimension_count", dim) != dim:
        raise fields.bad("rope.dimension_count", fields.get("rope.dimension_count"), f"the head's size, {dim}")
    theta = fields.number("rope_theta", default_theta)
    if layer_type == "sliding_attention":
        return RopeConfig(fields.number("rope.freq_base_swa", theta), dim)
    before = fields.optional_number("rope.scale_linear")  # what files older than the scaling's type have
    kind = fields.text("rope.scaling.type", "none" if before is None else "linear")
    if kind == "none":
        return RopeConfig(theta, dim)
    if kind == "linear":
        factor = fields.number("rope.scaling.factor", before)
        return RopeConfig(theta, dim, {"rope_type": "linear", "factor": factor})
    if kind == "yarn":
        for key in ("rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"):
            if fields.number(key, 1.0) != 1:
                raise fields.bad(key, fields.get(key), "1, or left out")
        factor = fields.number("rope.scaling.factor")
        # What queries and keys grow by as if they did without "yarn" is counted elsewhere.
        grown = growth(factor) / growth(factor, fields.number("growth_elsewhere", 0.0))
        scaling: dict[str, float | int | str] = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": fields.integer(
                "rope.scaling.original_context_length", maximum=MAX_POSITIONS
            ),
            "attention_factor": fields.number("rope.scaling.attn_factor", 1.0) * grown,
            **_betas(fields, "rope.scaling.yarn_", theta),
            "truncate": fields.flag("rope.scaling.truncate", True),
        }
        return RopeConfig(theta, dim, scaling)
    raise CheckpointError(
        f"{fields.source}: {fields.prefix}rope.scaling.type is {kind!r:.60}, but only none, linear and yarn are "
        "supported; use another model."
    )
