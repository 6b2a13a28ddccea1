"""How much what a decoder writes looks at each position of what its encoder read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.encoder_decoder import EncoderDecoderBackend
from headstart.passes.batch import EncoderInput


@torch.inference_mode()
def cross_weights(
    backend: EncoderDecoderBackend, source: EncoderInput, tokens: Sequence[int], heads: Sequence[tuple[int, int]]
) -> NDArray[np.float32]:
    """[head, row, position] of each row of a text, a row's sum to 1.

    Runs encoder and decoder once over all rows, beside any cache. Of decoders whose places are told by other means than
    relative biases.

    Args:
        source: what the encoder reads.
        tokens: [row] what the decoder reads.
        heads: (layer, head) of the cross attention that is shown.
    """
    assert not backend.relative
    config = backend.config
    states = backend.encoder.read(source)
    rows = torch.arange(len(tokens), device=backend.device)
    hidden = backend.embedder.tokens(torch.tensor(tokens, device=backend.device), rows)
    shown = dict[int, Tensor]()

    def look_before(heads: Tensor) -> Tensor:
        """Rows see themselves and those before them, without a cache."""
        q, k, v = heads.view(len(heads), 3, -1, config.head_dim).permute(1, 2, 0, 3)
        seen = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, scale=config.score_scale)
        return seen[0].transpose(0, 1).flatten(1)

    for index in range(1 + max(layer for layer, _ in heads)):
        parts, cross = backend.layers[index], backend.cross[index]
        hidden = backend.layer.attention(parts, hidden, look_before)
        memory = cross.kv(states).view(len(states), 2, config.num_kv_heads, config.head_dim)

        def look(queries: Tensor, memory: Tensor = memory, index: int = index) -> Tensor:
            keys, values = memory.transpose(0, 2).unbind(1)
            scores = queries.transpose(0, 1) @ keys.transpose(1, 2) * config.score_scale
            shown[index] = scores.softmax(-1, dtype=torch.float32)
            return (shown[index].to(values.dtype) @ values).transpose(0, 1).flatten(1)

        hidden = backend.layer.cross_attention(cross, hidden, look)
        hidden = backend.layer.channel(parts, hidden)
    return torch.stack([shown[layer][head] for layer, head in heads]).numpy(force=True)
