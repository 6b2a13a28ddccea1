"""An EAGLE head by PyTorch: fused matrices, a growing cache for each sequence, few operations a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headstart.models.backend import IntArray
from headstart.models.heads.eagle import EagleHead, RotaryTable
from headstart.models.heads.head_pass import DraftCache, DraftRows, best_tokens
from headstart.models.heads.tables import TargetTables
from headstart.models.linear import Linear
from headstart.models.weights import LinearWeights


class TorchDraftCache(DraftCache):
    """Rows in one tensor that grows."""

    def __init__(self, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.data = torch.zeros(2, num_kv_heads, 0, head_dim, dtype=dtype, device=device)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows [row, kv_head, head_dim]; all keys and values so far, [kv_head, row, head_dim]."""
        first, self.rows = self.rows, self.rows + len(keys)
        if self.rows > self.data.shape[2]:
            room = max(self.rows, 2 * self.data.shape[2]) - self.data.shape[2]
            self.data = F.pad(self.data, (0, 0, 0, room))
        self.data[0, :, first : self.rows] = keys.transpose(0, 1)
        self.data[1, :, first : self.rows] = values.transpose(0, 1)
        return self.data[0, :, : self.rows], self.data[1, :, : self.rows]

    @torch.inference_mode()
    def extend(self, other: DraftCache, first: int, count: int) -> None:
        """See ``DraftCache``."""
        assert isinstance(other, TorchDraftCache)
        keys, values = other.data[:, :, first : first + count].transpose(1, 2)
        self.append(keys, values)

    def release(self) -> None:
        self.rows, self.data = 0, self.data[:, :, :0]


class EaglePass:
    """Steps of a head over rows of several sequences (``HeadPass``).

    Args:
        head: weights, copied.
        tables: the target's; used where the head has none of its own.
        dtype: of weights and cache; norms and logits are float32.
    """

    @torch.inference_mode()
    def __init__(
        self, head: EagleHead, tables: TargetTables, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config = head.config
        self.dtype, self.device = dtype, torch.device(device)
        linear = partial(Linear, dtype=dtype, device=self.device)
        attention, mlp = head.midlayer.self_attn, head.midlayer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        bias = torch.cat([projection.bias for projection in projections]) if config.attention_bias else None
        self._qkv = linear(LinearWeights(torch.cat([projection.weight for projection in projections]), bias))
        self._output = linear(LinearWeights(attention.o_proj.weight))
        self._up = linear(LinearWeights(torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))))
        self._down = linear(LinearWeights(mlp.down_proj.weight))
        self._fc = linear(LinearWeights(head.fc.weight, head.fc.bias))
        self._head = linear(LinearWeights(head.lm_head.weight if config.variant == "eagle3" else tables.head))
        embedding = tables.embedding if head.embedding is None else head.embedding
        self._embedding = embedding.to(self.device, dtype)
        self._norms = {
            name: parameter.detach().to(self.device, torch.float32)
            for name, parameter in head.named_parameters()
            if "norm" in name
        }
        self._rotary = RotaryTable(config.rope, torch.float32, self.device)
        self.target_ids = head.target_ids.cpu()

    @property
    def nbytes(self) -> int:
        """Of its matrices and its copy of the embedding."""
        parts = (self._qkv, self._output, self._up, self._down, self._fc, self._head, self._embedding)
        return sum(part.nbytes for part in parts)

    @property
    def row_bytes(self) -> int:
        """See ``HeadPass``."""
        return 2 * self.config.num_kv_heads * self.config.head_dim * self.dtype.itemsize

    def new_cache(self) -> TorchDraftCache:
        return TorchDraftCache(self.config.num_kv_heads, self.config.head_dim, self.dtype, self.device)

    def read(self, tokens: IntArray, features: Tensor, parts: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        output = self._run(tokens, self._fuse(features), parts)
        last = torch.tensor([part.count for part in parts]).cumsum(0) - 1
        return self._say(output[last.to(self.device)])

    def step(self, tokens: IntArray, states: Tensor, parts: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        return self._say(self._run(tokens, states, parts))

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
        """See ``best_tokens``."""
        return best_tokens(logits, ranks)

    def growth(self, width: int, ids: IntArray) -> None:
        """Step by step."""

    @torch.inference_mode()
    def _fuse(self, features: Tensor) -> Tensor:
        """True features [row, taps * target hidden] -> [row, hidden] (``EagleHead.fuse``)."""
        config = self.config
        features = features.to(self.device)
        if config.variant == "eagle":
            return features.to(self.dtype)
        if config.norm_before_fc:
            features = self._norm("input_norm", features)
        if config.fc_norm:
            parts = features.chunk(len(config.taps), dim=-1)
            features = torch.cat([self._norm(f"fc_norm.{i}", part) for i, part in enumerate(parts)], dim=-1)
        return self._fc(features.to(self.dtype))

    @torch.inference_mode()
    def _run(self, tokens: IntArray, features: Tensor, parts: Sequence[DraftRows]) -> Tensor:
        """The layer's output [row, hidden] for rows with features [row, hidden], fused or fed back."""
        config = self.config
        positions = torch.tensor([position for part in parts for position in part.positions], device=self.device)
        embeddings = F.embedding(torch.from_numpy(tokens).long().to(self.device), self._embedding)
        if config.variant == "eagle3":
            normed = self._norm("midlayer.hidden_norm", features)
            x = torch.cat((self._norm("midlayer.input_layernorm", embeddings), normed), dim=-1)
            residual = normed if config.norm_before_residual else features
        else:
            x = residual = self._fc(torch.cat((embeddings, features), dim=-1))
        heads = self._qkv(x).view(len(x), -1, config.head_dim)
        turning = config.num_heads + config.num_kv_heads
        reach = max(part.positions[-1] for part in parts) + 1
        rotated = self._rotary.rotate(heads[:, :turning].float(), positions, reach).to(self.dtype)
        mixed = self._attend(rotated, heads[:, turning:], parts)
        hidden = residual + self._output(mixed)
        gate, up = self._up(self._norm("midlayer.post_attention_layernorm", hidden)).chunk(2, dim=-1)
        return hidden + self._down(F.silu(gate).mul_(up))

    @torch.inference_mode()
    def _say(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """A step's output -> (state to feed back [row, hidden], float32 logits [row, draft vocab])."""
        config = self.config
        if config.variant == "eagle":
            return output, self._head(output).float()
        normed = self._norm("norm", output)
        return normed if config.norm_output else output, self._head(normed).float()

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self._norms[name + ".weight"]
        return F.rms_norm(x.float(), weight.shape, weight, self.config.norm_eps).to(self.dtype)

    def _attend(self, rotated: Tensor, values: Tensor, parts: Sequence[DraftRows]) -> Tensor:
        config = self.config
        queries, keys = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
        shared = config.num_heads // config.num_kv_heads
        outputs, first = [], 0
        for part in parts:
            rows = slice(first, first + part.count)
            first += part.count
            assert isinstance(part.cache, TorchDraftCache)
            true_rows = part.true_rows
            all_keys, all_values = part.cache.append(keys[rows], values[rows])
            # The heads that share a key-value head stand side by side as rows of one product.
            grid = queries[rows].view(part.count, config.num_kv_heads, shared, -1).permute(1, 2, 0, 3)
            grid = grid.reshape(1, config.num_kv_heads, shared * part.count, config.head_dim)
            mask = None
            if part.count > 1 or part.paths is not None:
                mask = _mask(part, true_rows, all_keys.shape[1]).repeat(shared, 1).to(self.device)
            mixed = F.scaled_dot_product_attention(grid, all_keys[None], all_values[None], mask)
            mixed = mixed.view(config.num_kv_heads, shared, part.count, -1).permute(2, 0, 1, 3)
            outputs.append(mixed.reshape(part.count, -1))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _mask(part: DraftRows, true_rows: int, keys: int) -> Tensor:
    """bool [row, key]."""
    mask = torch.ones(part.count, keys, dtype=torch.bool)
    if part.paths is None:
        return mask.tril_(keys - part.count)
    mask[:, true_rows:] = False
    return mask.scatter_(1, torch.from_numpy(part.paths).long() + true_rows, True)
