"""How attention to compressed keys is put together: the part of ``assembly`` that is its own."""

from __future__ import annotations

from headstart.models.compressed_config import CompressedConfig
from headstart.models.compressed_weights import CompressedWeights, CompressorWeights
from headstart.models.config import LayerConfig
from headstart.models.layout_tensors import LayoutTensors
from headstart.models.linear_weights import NormWeights

_OF = ("compressor", "index_compressor")


def compressed_weights(
    tensors: LayoutTensors, index: int, layer: LayerConfig, compressed: CompressedConfig
) -> CompressedWeights:
    """Of the layer of this number."""
    config = tensors.config
    size, heads, compression = config.head_dim, config.num_heads, layer.compression
    made = compressed.made(compression, size)
    down = {"q_down": compressed.q_rank, "kv": size}
    for of, given in zip(_OF, made, strict=False):
        down |= {f"{of}_kv": given, f"{of}_gate": given}
    up = {"q_up": heads * size}
    if len(made) > 1:
        down["index_shares"] = compressed.index_heads
        up["index_q"] = compressed.index_heads * compressed.index_dim

    def norm(role: str, of: int) -> NormWeights:
        return tensors.norm(tensors.layout.layer[role].format(i=index), role, of)

    return CompressedWeights(
        down=tensors.linear(index, down, config.hidden_size, False),
        q_norm=norm("q_norm", compressed.q_rank),
        q_up=tensors.linear(index, up, compressed.q_rank, False),
        kv_norm=norm("kv_norm", size),
        compressors=tuple(
            CompressorWeights(
                tensors.vector(index, f"{of}_places", given, 0 if compression is None else compression.ratio),
                norm(f"{of}_norm", own),
            )
            for of, given, own in zip(_OF, made, (size, compressed.index_dim), strict=False)
        ),
        lower=tensors.linear(
            index,
            {"output_down": compressed.groups * compressed.output_rank},
            heads * size // compressed.groups,
            False,
        ),
        output=tensors.linear(index, {"output": config.hidden_size}, compressed.groups * compressed.output_rank, False),
        sinks=tensors.vector(index, "sinks", heads),
    )
