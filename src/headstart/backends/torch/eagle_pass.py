"""An EAGLE head by PyTorch: fused matrices, a growing cache for each sequence, few operations a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.draft_cache import TorchDraftCache, attend
from headstart.backends.torch.linear import Linear
from headstart.backends.torch.parallel_pass import best_tokens
from headstart.heads.eagle import EagleHead, EagleLayer
from headstart.heads.head_pass import DraftRows
from headstart.heads.tables import TargetTables
from headstart.heads.text_vocabulary import TextTokens, TextVocabulary
from headstart.layers.layer import Operation, run_head_layers
from headstart.layers.rotary import RotaryTable
from headstart.models.weights import LinearWeights
from headstart.passes import IntArray


@dataclass(frozen=True)
class _LayerPass:
    """The fused matrices of one layer, and its norms (``HeadLayerParts``)."""

    qkv: Linear
    output: Linear
    up: Linear
    down: Linear
    input_norm: Operation
    mlp_norm: Operation

    @property
    def nbytes(self) -> int:
        return self.qkv.nbytes + self.output.nbytes + self.up.nbytes + self.down.nbytes


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

        def packed(index: int, layer: EagleLayer) -> _LayerPass:
            qkv, output, up, down = map(linear, layer.fused())
            norm = f"layers.{index}"
            input_norm = partial(self._norm, f"{norm}.input_layernorm")
            return _LayerPass(
                qkv, output, up, down, input_norm, partial(self._norm, f"{norm}.post_attention_layernorm")
            )

        self._layers = [packed(index, layer) for index, layer in enumerate(head.layers)]
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
        ends = (self._fc, self._head, self._embedding)
        return sum(layer.nbytes for layer in self._layers) + sum(group.nbytes for group in ends)

    @property
    def row_bytes(self) -> int:
        """See ``HeadPass``."""
        config = self.config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * self.dtype.itemsize

    def new_cache(self) -> TorchDraftCache:
        return TorchDraftCache(
            self.config.num_layers, self.config.num_kv_heads, self.config.head_dim, self.dtype, self.device
        )

    def read(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        output = self._run(tokens, self._fuse(features), groups)
        last = torch.tensor([group.count for group in groups]).cumsum(0) - 1
        return self._say(output[last.to(self.device)])

    def step(self, tokens: IntArray, states: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        return self._say(self._run(tokens, states, groups))

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
        """See ``best_tokens``."""
        return best_tokens(logits, ranks)

    def text_tokens(self, vocabulary: TextVocabulary, most: int) -> TextTokens:
        """See ``HeadPass``."""
        return TextTokens(vocabulary, most)

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
            groups = features.chunk(len(config.taps), dim=-1)
            features = torch.cat([self._norm(f"fc_norm.{i}", group) for i, group in enumerate(groups)], dim=-1)
        return self._fc(features.to(self.dtype))

    @torch.inference_mode()
    def _run(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> Tensor:
        """The last layer's output [row, hidden] for rows with features [row, hidden], fused or fed back."""
        config = self.config
        positions = torch.tensor([position for group in groups for position in group.positions], device=self.device)
        embeddings = F.embedding(torch.from_numpy(tokens).long().to(self.device), self._embedding)
        if config.variant == "eagle3":
            normed = self._norm("layers.0.hidden_norm", features)
            x = torch.cat((self._norm("layers.0.input_layernorm", embeddings), normed), dim=-1)
            residual = normed if config.norm_before_residual else features
        else:
            x = residual = self._fc(torch.cat((embeddings, features), dim=-1))
        turning = config.num_heads + config.num_kv_heads
        reach = max(group.positions[-1] for group in groups) + 1

        def attend_heads(index: int, heads: Tensor) -> Tensor:
            rotated = self._rotary.rotate(heads[:, :turning].float(), positions, reach).to(self.dtype)
            return self._attend(index, rotated, heads[:, turning:], groups)

        output = run_head_layers(self._layers, config.head_dim, x, residual, attend_heads)
        for group in groups:
            group.cache.rows += group.count
        return output

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

    def _attend(self, layer: int, rotated: Tensor, values: Tensor, groups: Sequence[DraftRows]) -> Tensor:
        config = self.config
        queries, keys = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
        outputs, first = [], 0
        for group in groups:
            rows = slice(first, first + group.count)
            first += group.count
            assert isinstance(group.cache, TorchDraftCache)
            all_keys, all_values = group.cache.write(layer, keys[rows], values[rows])
            causal = group.count > 1 or group.paths is not None
            mask = _mask(group, all_keys.shape[1]).to(self.device) if causal else None
            outputs.append(attend(queries[rows], all_keys, all_values, mask))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _mask(group: DraftRows, keys: int) -> Tensor:
    """bool [row, key]."""
    mask = torch.ones(group.count, keys, dtype=torch.bool)
    if group.paths is None:
        return mask.tril_(keys - group.count)
    mask[:, group.true_rows :] = False
    return mask.scatter_(1, torch.from_numpy(group.paths).long() + group.true_rows, True)
