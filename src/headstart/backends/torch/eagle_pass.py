"""An EAGLE head by PyTorch: fused matrices, a growing cache for each sequence, few operations a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.attention import Layout, attend
from headstart.backends.torch.draft_pool import FEWEST_BLOCKS, RECORDED_BLOCKS, DraftLayout, DraftPool, PooledDraftCache
from headstart.backends.torch.eagle_growth import EagleGrowth
from headstart.backends.torch.head_kit import Kit, best_tokens
from headstart.backends.torch.linear import Linear
from headstart.backends.torch.recorder import Recorder
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.heads.text_vocabulary import TextRowSource, TextTokens
from headstart.drafting.methods.eagle.head import EagleConfig, EagleHead, EagleLayer
from headstart.models.config import EVERYTHING, Sight
from headstart.models.layers.layer import Operation, run_head_layers
from headstart.models.layers.rotary import Rotation
from headstart.models.linear_weights import LinearWeights
from headstart.models.rope_frequencies import amplitude, inverse_frequencies
from headstart.passes.batch import IntArray


@dataclass(frozen=True)
class _LayerPass:
    """The fused matrices of one layer, and its norms (``HeadLayerParts``)."""

    qkv: Linear
    output: Linear
    up: Linear
    down: Linear
    input_norm: Operation
    mlp_norm: Operation
    head_norms: Tensor | None
    """float32 [head + kv_head, head_dim] the weights of the norms of queries and keys."""

    @property
    def nbytes(self) -> int:
        return self.qkv.nbytes + self.output.nbytes + self.up.nbytes + self.down.nbytes


class EaglePass:
    """Steps of a head over rows of several sequences (``HeadPass``).

    Args:
        head: weights, copied.
        tables: the target's; used where the head has none of its own.
        dtype: of weights and cache; norms and logits are float32.
        recorder: of the device, records whole drafts; None: they are grown step by step.
    """

    @torch.inference_mode()
    def __init__(
        self,
        head: EagleHead,
        tables: TargetTables,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        recorder: Recorder | None = None,
    ) -> None:
        self.config = config = head.config
        self.dtype, self.device = dtype, torch.device(device)
        # Recordings do not know how far keys are apart, and see what is kept of windows that all layers have.
        self._recorder = recorder = recorder if config.reach is not None or not any(config.windows) else None
        self._sights = [
            EVERYTHING if recorder is not None else config.sight(index) for index in range(config.num_layers)
        ]
        linear = partial(Linear, dtype=dtype, device=self.device)

        def packed(index: int, layer: EagleLayer) -> _LayerPass:
            qkv, output, up, down = map(linear, layer.fused())
            norm = f"layers.{index}"
            before, between = (
                partial(self._norm, f"{norm}.{each}") for each in ("input_layernorm", "post_attention_layernorm")
            )
            return _LayerPass(qkv, output, up, down, before, between, _head_norms(layer, config, self.device))

        self._layers = [packed(index, layer) for index, layer in enumerate(head.layers)]
        self._fc = linear(LinearWeights(head.fc.weight, head.fc.bias))
        self._head = linear(LinearWeights(head.output_rows(tables.head)))
        embedding = tables.embedding if head.embedding is None else head.embedding
        self._embedding = embedding.to(self.device, dtype)
        self._norms = {
            name: parameter.detach().to(self.device, torch.float32)
            for name, parameter in head.named_parameters()
            if "norm" in name
        }
        self._frequencies, self._scale = inverse_frequencies(config.rope).to(self.device), amplitude(config.rope)
        row = (2, config.num_kv_heads, config.head_dim)
        blocks = FEWEST_BLOCKS if recorder is None else RECORDED_BLOCKS
        self.pool = DraftPool([row] * config.num_layers, dtype, self.device, blocks)
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

    def new_cache(self) -> PooledDraftCache:
        return PooledDraftCache(self.pool, [0] * self.config.num_layers)

    def read(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        output = self._run(tokens, self.fuse(features), groups)
        last = torch.tensor([group.count for group in groups]).cumsum(0) - 1
        return self.say(output[last.to(self.device)])

    def step(self, tokens: IntArray, states: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        return self.say(self._run(tokens, states, groups))

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
        """See ``best_tokens``."""
        return best_tokens(logits, ranks)

    def text_tokens(self, vocabulary: TextRowSource, most: int) -> TextTokens:
        """See ``HeadPass``."""
        return TextTokens(vocabulary, most)

    def growth(self, width: int, ids: IntArray) -> EagleGrowth | None:
        """See ``HeadPass``."""
        return None if self._recorder is None else EagleGrowth(self, width, ids, self._recorder)

    @torch.inference_mode()
    def fuse(self, features: Tensor) -> Tensor:
        """True features [row, taps * target hidden] -> [row, hidden] (``EagleHead.fuse``)."""
        config = self.config
        features = features.to(self.device)
        if not config.side_by_side:
            return features.to(self.dtype)
        if config.norm_before_fc:
            features = self._norm("input_norm", features)
        if config.fc_norm:
            groups = features.chunk(len(config.taps), dim=-1)
            features = torch.cat([self._norm(f"fc_norm.{i}", group) for i, group in enumerate(groups)], dim=-1)
        return self._fc(features.to(self.dtype))

    def _run(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> Tensor:
        """The last layer's output [row, hidden] for rows with features [row, hidden], fused or fed back."""
        config = self.config
        for group in groups:
            assert isinstance(group.cache, PooledDraftCache)
            group.cache.reserve(group.cache.rows + group.count)
        positions = torch.tensor([position for group in groups for position in group.positions], device=self.device)
        shared = config.num_heads // config.num_kv_heads
        # Every layer has every row.
        counts = [group.count for group in groups]
        layouts: dict[Sight, Layout] = {
            sight: DraftLayout(groups, counts, 0, sight, shared, self.dtype, self.device) for sight in set(self._sights)
        }
        output = self.rows(torch.from_numpy(tokens).long().to(self.device), features, positions, layouts)
        for group in groups:
            group.cache.rows += group.count
        return output

    @torch.inference_mode()
    def rows(self, tokens: Tensor, features: Tensor, positions: Tensor, layouts: Mapping[Sight, Layout]) -> Tensor:
        """The same for int64 tokens and positions [row] on the device, whose caches have room for them; ``layouts``: of
        each sight that a layer has."""
        config = self.config
        embeddings = F.embedding(tokens, self._embedding)
        if config.side_by_side:
            normed = self._norm("layers.0.hidden_norm", features)
            x = torch.cat((self._norm("layers.0.input_layernorm", embeddings), normed), dim=-1)
            residual = normed if config.norm_before_residual else features
        else:
            x = residual = self._fc(torch.cat((embeddings, features), dim=-1))
        turning = config.num_heads + config.num_kv_heads
        rotation = Rotation(positions, self._frequencies, torch.float32, self._scale)

        def attend_heads(index: int, heads: Tensor) -> Tensor:
            turned, norms = heads[:, :turning].float(), self._layers[index].head_norms
            if norms is not None:
                turned = F.rms_norm(turned, turned.shape[-1:], None, config.norm_eps) * norms
            rotation.apply_(turned)
            turned = turned.to(self.dtype)
            queries, keys = turned[:, : config.num_heads], turned[:, config.num_heads :]
            cache, sight = self.pool.tensors[index], self._sights[index]
            layout = layouts[sight]
            cache.index_copy_(0, layout.new_slots, torch.stack((keys, heads[:, turning:]), dim=1))
            return attend(queries, cache, layout, sight, config.head_dim**-0.5)

        return run_head_layers(self._layers, config.head_dim, x, residual, attend_heads)

    @torch.inference_mode()
    def say(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """A step's output -> (state to feed back [row, hidden], float32 logits [row, draft vocab])."""
        config = self.config
        if not config.side_by_side:
            return output, self._head(output).float()
        normed = self._norm("norm", output)
        return normed if config.norm_output else output, self._head(normed).float()

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self._norms[name + ".weight"]
        return F.rms_norm(x.float(), weight.shape, weight, self.config.norm_eps).to(self.dtype)


def _head_norms(layer: EagleLayer, config: EagleConfig, device: torch.device) -> Tensor | None:
    """[head + kv_head, head_dim], None where queries and keys are not normed."""
    if not config.head_norms:
        return None
    attention = layer.self_attn
    of_heads = ((attention.q_norm, config.num_heads), (attention.k_norm, config.num_kv_heads))
    return torch.cat([norm.weight.detach().float().expand(count, -1) for norm, count in of_heads]).to(device)


def eagle_pass(head: EagleHead, tables: TargetTables, kit: Kit) -> EaglePass:
    """As ``HeadPasses.torch`` has it."""
    return EaglePass(head, tables, kit.dtype, kit.device, kit.recorder)
