"""How attention to compressed keys is put together: the part of ``assembly`` that is its own."""

from __future__ import annotations

from headstart.models.compressed_config import CompressedConfig
from headstart.models.compressed_weights import CompressedWeights, CompressorWeights
from headstart.models.config import LayerConfig
from headstart.models.layout_tensors import LayoutTensors
from headstart.models.linear_weights import LinearWeights, NormWeights

_OF = ("compressor", "index_compressor")


def compressed_weights(
    tensors: LayoutTensors, index: int, layer: LayerConfig, compressed: CompressedConfig
) -> CompressedWeights:
    """Of the layer of this number."""
    config, compression = tensors.config, layer.compression
    size, heads, groups = config.head_dim, config.num_heads, compressed.groups
    made, ratio = compressed.made(compression, size), 0 if compression is None else compression.ratio
    down, up = {"q_down": compressed.q_rank, "kv": size}, {"q_up": heads * size}
    for of, given in zip(_OF, made, strict=False):
        down |= {f"{of}_kv": given, f"{of}_gate": given}
    if len(made) > 1:
        down["index_shares"] = compressed.index_heads
        up["index_q"] = compressed.index_heads * compressed.index_dim

    def norm(role: str, of: int) -> NormWeights:
        return tensors.norm(tensors.layout.layer[role].format(i=index), role, of)

    def linear(parts: dict[str, int], inputs: int) -> LinearWeights:
        return tensors.linear(index, parts, inputs, False)

    return CompressedWeights(
        down=linear(down, config.hidden_size),
        q_norm=norm("q_norm", compressed.q_rank),
        q_up=linear(up, compressed.q_rank),
        kv_norm=norm("kv_norm", size),
        compressors=tuple(
            CompressorWeights(tensors.vector(index, f"{of}_places", given, ratio), norm(f"{of}_norm", own))
            for of, given, own in zip(_OF, made, (size, compressed.index_dim), strict=False)
        ),
        lower=linear({"output_down": groups * compressed.output_rank}, heads * size // groups),
        output=linear({"output": config.hidden_size}, groups * compressed.output_rank),
        sinks=tensors.vector(index, "sinks", heads),
    )
