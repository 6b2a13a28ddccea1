"""Which models the native pass can run."""

from __future__ import annotations

from headstart.models.config import HeadNorms, LatentConfig, ModelConfig
from headstart.models.state_config import DeltaConfig, Mamba2Config

_MOST_STREAMS = 8
_MOST_LENGTH = 16
"""Rows that a convolution may see."""


def supports(config: ModelConfig) -> str | None:
    """None if the native pass can run such a model, else the reason in a few words."""
    if lacking := _lacks(config):
        return f"PyTorch alone has {lacking}"
    if unfit := _unfit_states(config):
        return unfit
    if config.latent is not None:
        return _unfit_latent(config.latent)
    if (of := config.compressed) and (odd := [each for each in (of.q_rank, of.output_rank, of.index_dim) if each % 32]):
        return f"a size of attention to compressed keys, {odd[0]}, is no multiple of 32"
    for layer in config.layers:
        if not layer.attends:
            continue
        size, heads, kv_heads = config.head_dim_of(layer), config.heads_of(layer), config.kv_heads_of(layer)
        if size % 32 or size > 512:
            return f"head_dim {size} is no multiple of 32 up to 512"
        if config.value_dim_of(layer) % 32:
            return f"values of size {config.value_dim_of(layer)}, no multiple of 32"
        if heads % kv_heads:
            return f"{heads} heads do not share {kv_heads} kv heads evenly"
    return None


def _lacks(config: ModelConfig) -> str | None:
    """What such a model needs that the native pass does not have."""
    norms = config.attention.qk_norm
    needs = {
        "layers of one part beside each other": config.residual.parallel
        and any("none" in (layer.mixer, layer.channel) for layer in config.layers),
        "gates, sinks or post norms of two mixers": any(layer.mixer == "attention+mamba2" for layer in config.layers)
        and (config.attention.gate or config.attention.sinks or config.norms.post or config.residual.parallel),
        f"more than {_MOST_STREAMS} residual streams": config.residual.streams is not None
        and config.residual.streams.count > _MOST_STREAMS,
        "a second path beside attention of this kind": config.residual.side_rank is not None
        and (config.residual.parallel or any(layer.mixer != "attention" for layer in config.layers)),
        "gates of this kind that are cut off": any(layer.sparsity for layer in config.layers) and not config.mlp.gated,
        "experts and an MLP beside attention": config.residual.parallel
        and any(layer.channel == "mlp+experts" for layer in config.layers),
        "attention of several kinds": len({layer.mixer for layer in config.layers if layer.attends}) > 1,
        "a limit of heads that are normed one by one": config.attention.qkv_clip is not None
        and norms is not None
        and norms.reach == "head"
        and not norms.rotated,
        "norms of heads of this kind": norms is not None
        and norms.reach == "all"
        and norms != HeadNorms(reach="all", learnt=norms.learnt),
    }
    return next((need for need, is_so in needs.items() if is_so), None)


def _unfit_states(config: ModelConfig) -> str | None:
    """Why the sizes of a mixer with a state do not fit, in a few words; those of a model's modules may have none."""
    mixers, mamba = {layer.mixer for layer in config.layers}, config.mamba
    unfit = None
    if config.convolution is not None and "convolution" in mixers:
        unfit = _unfit_convolution(config.convolution.length, config.hidden_size)
    if config.delta is not None and "delta" in mixers:
        unfit = unfit or _unfit_delta(config.delta)
    if mamba is not None and "mamba" in mixers:
        unfit = unfit or _unfit_convolution(mamba.length, mamba.inner)
    if config.mamba2 is not None and mixers & {"mamba2", "attention+mamba2"}:
        unfit = unfit or _unfit_mamba2(config.mamba2)
    return unfit


def _unfit_convolution(length: int, channels: int) -> str | None:
    """Why the sizes of a convolution do not fit, in a few words."""
    if length > _MOST_LENGTH:
        return f"convolutions see {length} rows, more than {_MOST_LENGTH}"
    return f"a convolution of {channels} channels, no multiple of 16" if channels % 16 else None


def _unfit_mamba2(config: Mamba2Config) -> str | None:
    """Why the sizes of Mamba-2 do not fit, in a few words."""
    size = config.inner // config.groups
    return f"groups of {size} channels, no multiple of 16" if size % 16 else _unfit_convolution(config.length, 16)


def _unfit_delta(config: DeltaConfig) -> str | None:
    """The same of the delta rule."""
    if odd := [size for size in (config.key_dim, config.value_dim) if size % 32]:
        return f"heads of the delta rule of {odd[0]} numbers, no multiple of 32"
    return _unfit_convolution(config.length, config.convolved)


def _unfit_latent(config: LatentConfig) -> str | None:
    """Why the sizes of latent attention do not fit, in a few words."""
    index = 0 if config.indexer is None else config.indexer.dim
    sizes = (config.kv_rank, config.plain_dim, config.rope_dim, config.value_dim, config.q_rank or 0, index)
    if odd := [size for size in sizes if size % 32]:
        return f"a size of latent attention, {odd[0]}, is no multiple of 32"
    kept = config.kv_rank + config.rope_dim
    return f"latent attention keeps {kept} numbers of a token, more than 1024" if kept > 1024 else None
