"""Many sequences decoded side by side in tables of a fixed size: what writes much text on an accelerator.

No sequence joins or leaves before all are done, so that a step is the same kernels on the same memory every time: on
CUDA it is recorded once and replayed, for which a processor need not be fast. Engines serve; this writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import ConfigError
from headstart.models.config import ModelConfig
from headstart.models.weights import DecoderWeights
from headstart_train.decoder.trainable import TrainableDecoder

_PREFILL_TOKENS = 32768
"""Tokens of prompts that are read at once."""
_STEPS = 16
"""Steps between two looks at whether all are done."""


class StaticDecoder:
    """One decoder of a kind that ``trainable.require_trainable`` takes, without windows and softcaps; its products are
    in bfloat16, softmax and draws in float32.

    Args:
        config: of the model.
        weights: its weights.
        device: where it runs.

    Raises:
        ConfigError: it is of another kind.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights, device: torch.device) -> None:
        if config.attention.softcap is not None or any(layer.window is not None for layer in config.layers):
            raise ConfigError(
                f"{config.name or config.family} has windows or softcaps, which are not decoded in tables of a fixed "
                "size; let the engine write its text."
            )
        self._config, self._device = config, device
        self._decoder = TrainableDecoder(config, weights, frozen=True, device=device).to(torch.bfloat16)
        self._head = weights.head.weight.to(device, torch.bfloat16)

    @torch.no_grad()
    def decode(
        self, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], max_tokens: int, ends: Sequence[int]
    ) -> list[NDArray[np.int32]]:
        """What the model says to each prompt, the token that ends it included.

        Args:
            prompts: token ids, at least one each.
            temperatures: one a prompt; 0 is greedy.
            max_tokens: of an answer.
            ends: tokens after which an answer is over.
        """
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        longest = int(lengths.max())
        tables = _Tables(self._config, len(prompts), _rounded(longest + max_tokens), self._device)
        tables.temperatures.copy_(torch.tensor(temperatures, device=self._device)[:, None])
        padded = np.zeros((len(prompts), longest), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = prompt
        together = max(_PREFILL_TOKENS // longest, 1)
        text = torch.from_numpy(padded).to(self._device)
        for first in range(0, len(prompts), together):
            self._read(tables, text, lengths, slice(first, first + together))
        tables.positions.copy_(lengths)
        over = torch.tensor(list(ends), device=self._device)
        step = partial(self._step, tables, over)
        tables.say(over)
        replay = _recorded(step, self._device)
        for done in range(1, max_tokens):
            replay()
            if done % _STEPS == 0 and bool(tables.finished.all()):
                break
        said = tables.said[:, : int(tables.count)].cpu().numpy()
        is_end = np.isin(said, list(ends))
        counts = np.where(is_end.any(1), is_end.argmax(1) + 1, said.shape[1])
        return [row[: min(count, max_tokens)].astype(np.int32) for row, count in zip(said, counts, strict=True)]

    def _read(self, tables: _Tables, text: Tensor, lengths: Tensor, rows: slice) -> None:
        """Some of the prompts, and what is said first."""
        tokens = text[rows]
        positions = torch.arange(tokens.shape[1], device=self._device).expand(len(tokens), -1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (heads.to(torch.bfloat16).transpose(1, 2) for heads in (q, k, v))
            tables.keys[layer, rows, :, : tokens.shape[1]] = k
            tables.values[layer, rows, :, : tokens.shape[1]] = v
            # What stands behind a prompt is padding, which only padding sees.
            mixed = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=self._config.score_scale, enable_gqa=True
            )
            return mixed.transpose(1, 2).flatten(2)

        last = (lengths[rows] - 1)[:, None, None].expand(-1, -1, self._config.hidden_size)
        with torch.autocast(self._device.type, torch.bfloat16, cache_enabled=False):
            states = self._decoder(self._decoder.embed(tokens), positions, attend, tables.length)
            tables.logits[rows] = self._logits(states.gather(1, last)[:, 0])

    def _step(self, tables: _Tables, ends: Tensor) -> None:
        """One token more of every sequence."""
        hidden = (tables.places > tables.positions[:, None])[:, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = tables.keys[layer], tables.values[layer]
            place = tables.rows[:, None], tables.kv_heads, tables.positions[:, None]
            keys[place] = k[:, 0].to(torch.bfloat16)
            values[place] = v[:, 0].to(torch.bfloat16)
            # The heads that share keys stand as rows of one product: kernels of attention take many rows at a time, and
            # there are few.
            queries = (q[:, 0] * self._config.score_scale).to(torch.bfloat16)
            queries = queries.view(-1, queries.shape[1] // self._config.num_kv_heads, queries.shape[2])
            scores = torch.bmm(queries, keys.flatten(0, 1).transpose(1, 2)).view(len(q), -1, tables.length)
            shares = scores.float().masked_fill(hidden, -torch.inf).softmax(-1).to(torch.bfloat16)
            return torch.bmm(shares.view(len(queries), -1, tables.length), values.flatten(0, 1)).view(len(q), 1, -1)

        with torch.autocast(self._device.type, torch.bfloat16, cache_enabled=False):
            inputs = self._decoder.embed(tables.tokens[:, None])
            states = self._decoder(inputs, tables.positions[:, None], attend, tables.length)
            tables.logits.copy_(self._logits(states[:, 0]))
        tables.positions.add_(1).clamp_(max=tables.length - 1)
        tables.say(ends)

    def _logits(self, states: Tensor) -> Tensor:
        return F.linear(states.to(torch.bfloat16), self._head).float()


class _Tables:
    """What stays where it is from step to step; ``length``: places of a sequence."""

    def __init__(self, config: ModelConfig, rows: int, length: int, device: torch.device) -> None:
        self.length = length
        shape = (config.num_layers, rows, config.num_kv_heads, length, config.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
        self.tokens, self.positions = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2))
        self.rows, self.places = torch.arange(rows, device=device), torch.arange(length, device=device)
        self.kv_heads = torch.arange(config.num_kv_heads, device=device)
        self.logits = torch.zeros(rows, config.vocab_size, device=device)
        self.temperatures = torch.zeros(rows, 1, device=device)
        self.finished = torch.zeros(rows, dtype=torch.bool, device=device)
        self.said = torch.zeros(rows, length, dtype=torch.int64, device=device)
        self.count = torch.zeros(1, dtype=torch.int64, device=device)
        """Tokens said so far, of each sequence."""

    def say(self, ends: Tensor) -> None:
        """The next token of each sequence, by its logits: the best one, or a draw by Gumbel's noise."""
        noise = -torch.empty_like(self.logits).exponential_().log_()
        drawn = (self.logits / self.temperatures.clamp(min=1e-4) + noise).argmax(-1)
        self.tokens.copy_(torch.where(self.temperatures[:, 0] > 0, drawn, self.logits.argmax(-1)))
        self.said.index_copy_(1, self.count, self.tokens[:, None])
        self.count.add_(1)
        self.finished |= torch.isin(self.tokens, ends)


def _recorded(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step itself; on CUDA, its recording. Then the first steps are run to warm up, and count."""
    if device.type != "cuda":
        return step
    warm = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    warm.wait_stream(torch.cuda.current_stream(device))
    graph = torch.cuda.CUDAGraph()
    calls = 0

    def replay() -> None:
        nonlocal calls
        if calls < 2:
            with torch.cuda.stream(warm):
                step()
            torch.cuda.current_stream(device).wait_stream(warm)
        else:
            if calls == 2:
                # Recording runs nothing.
                with torch.cuda.graph(graph):
                    step()
            graph.replay()
        calls += 1

    return replay


def _rounded(length: int) -> int:
    """Masks are read in vectors of so many."""
    return -(-length // 64) * 64
