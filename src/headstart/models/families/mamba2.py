"""Mamba-2 mixers as descriptions and files of several families have them.

Sources: the configuration and modelling files of transformers (models/bamba, granitemoehybrid, nemotron_h).
"""

from __future__ import annotations

import math

from headstart.models.families.fields import Fields
from headstart.models.state_config import Mamba2Config


def mamba2_of(fields: Fields, inner: int | None = None) -> Mamba2Config:
    """As Bamba, Granite and Falcon-H1 describe it; ``inner``: its size where that is an entry of its own."""
    heads = fields.integer("mamba_n_heads", 128)
    if inner is None:
        inner = fields.integer("ssm.inner_size", fields.integer("mamba_expand", 2) * fields.integer("hidden_size"))
    named = fields.get("mamba_d_head")
    head_dim = inner // heads if named in (None, "auto") else fields.integer("mamba_d_head")
    if heads * head_dim != inner:
        raise fields.bad("mamba_n_heads", heads, f"a number of heads of size {head_dim} that make up {inner}")
    groups = fields.integer("mamba_n_groups", 1)
    if heads % groups:
        raise fields.bad("mamba_n_groups", groups, f"a divisor of the {heads} heads")
    return Mamba2Config(
        heads,
        head_dim,
        fields.integer("mamba_d_state", 256),
        groups,
        fields.integer("mamba_d_conv", 4, minimum=2),
        fields.flag("mamba_conv_bias", True),
        fields.flag("mamba_proj_bias", False),
        *_step_limits(fields),
        fields.number("rms_norm_eps", 1e-6),
    )


def _step_limits(fields: Fields) -> tuple[float, float]:
    """Of a state's decay, the lower one first."""
    limits = fields.get("time_step_limit")
    if limits is None:
        return 0.0, math.inf
    numbers = [_number(each) for each in limits] if isinstance(limits, list) else []
    if len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1]:
        raise fields.bad("time_step_limit", limits, "two numbers, the lower one first")
    return numbers[0], numbers[1]


def _number(value: object) -> float:
    """JSON has no infinity; transformers writes an object for it, others a text. Not a number: nothing of the kind."""
    value = value.get("__float__") if isinstance(value, dict) else value
    if isinstance(value, str):
        return math.inf if value.lower() in ("inf", "infinity") else math.nan
    return float(value) if isinstance(value, int | float) else math.nan


def mamba2_layer(block: str) -> dict[str, str]:
    """Names of a mixer's tensors in a block of a layer."""
    return {
        "mamba_input": f"layers.{{i}}.{block}.in_proj",
        "convolution_kernel": f"layers.{{i}}.{block}.conv1d",
        "step_bias": f"layers.{{i}}.{block}.dt_bias",
        "log_decay": f"layers.{{i}}.{block}.A_log",
        "skip": f"layers.{{i}}.{block}.D",
        "state_norm": f"layers.{{i}}.{block}.norm",
        "mamba_output": f"layers.{{i}}.{block}.out_proj",
    }


MAMBA2_LAYER = mamba2_layer("mamba")
