"""A head that drafts a whole block in one pass (DFlash, Chen et al. 2026, arXiv:2602.06036).

A few decoder layers read a block: the last token, then masks, through the target's own embedding. The rows of a block
see each other in both directions, and in every layer what the target saw before: the inputs of several of its layers,
fused, stand there as keys and values. What the masks become says the tokens in their places, through the target's own
output head or one that the head brings along.

Parameters bear the names of the DFlash checkpoints of z-lab and of vLLM's speculators, whose layers are Qwen 3's.

The state of position i stands at position i. A block after n states begins at position n with the token that no state
is known of yet, the root of a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.drafting.heads.formats import MOST_SLOTS, SpeakingHead
from headstart.drafting.heads.modules import Attention, HeadLayer, LayersConfig, RmsNorm, SiluMlp, begin_randomly
from headstart.drafting.methods.dflash.head_parts import BlockConvolution, CandidateSelector, ConfidenceHead, MarkovHead
from headstart.errors import ConfigError
from headstart.models.config import EVERYTHING
from headstart.models.layers.layer import run_head_layers

KIND = "dflash"
"""Layers of the target that are read (section 4.1)."""
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Layer, rotated queries [..., head, head_dim], keys and values [..., kv_head, head_dim] of a block's rows -> what each
query's head sees, side by side [..., head * head_dim]."""


@dataclass(frozen=True, kw_only=True)
class BlockConfig(LayersConfig):
    """A block head."""

    block_size: int
    """Rows of a block: the last token and the masks."""
    mask_token_id: int
    """The token whose embedding masks have."""
    norm_eps: float = 1e-6
    own_output: bool = False
    """It brings its output head along; else the target's rows serve."""
    root_speaks: bool = False
    """The row of the last token says the next one, and each mask the one after its own place; else the root says
    nothing and each mask its own place."""
    causal: bool = False
    """Rows of a block see those before them only (as in JetSpec, arXiv:2606.18394)."""
    causal_windows: bool = False
    """In layers that have a window rows of a block see those before them only, whatever they do in others."""
    markov_rank: int = 0
    """Rank of what the token before a guess adds to its logits (the Markov factor of DSpark, arXiv:2607.05147); 0: a
    guess does not depend on those before it."""
    selector_rank: int = 0
    """Rank of what DFlash 2's selector adds to the logits of a guess, by the token before it and its state; 0: none."""
    selector_top: int = 0
    """Best tokens of a slot that the selector chooses among."""
    conv_taps: int = 0
    """Rows of a block that DFlash 2's convolutions around each part of a layer read: a row and those before it; 0:
    there are none."""
    conv_group: int = 0
    """Channels whose convolutions change together."""
    sinks: bool = False
    """Every head has a score that no key has."""
    confidence: bool = False
    """It says how likely a guess in each place is accepted if those before it were (DSpark's confidence)."""
    confidence_reads_token: bool = False
    """By the token before the guess, too, as the Markov factor knows it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.confidence_reads_token and not self.markov_rank:
            raise ConfigError("the confidence reads what the Markov factor knows of a token, but there is none.")
        if self.conv_taps and (self.conv_group < 1 or self.hidden_size % self.conv_group):
            raise ConfigError(f"{self.hidden_size} elements are no groups of {self.conv_group} that convolve together.")
        if self.selector_rank and (self.markov_rank or self.reduced or self.selector_top < 1):
            raise ConfigError("a selector of paths needs candidates, every token, and no Markov factor beside it.")
        if not 1 <= self.slots <= MOST_SLOTS:
            raise ConfigError(f"a block guesses {self.slots} tokens; it must be 1 to {MOST_SLOTS}.")

    @property
    def slots(self) -> int:
        """Tokens that a block guesses."""
        return self.block_size - (not self.root_speaks)

    @property
    def reach(self) -> int | None:
        """How many positions back a block sees; None: all. Rows of the target's states do not see each other."""
        return max(self.windows) if self.windows and all(self.windows) else None

    def looks_back(self, layer: int) -> bool:
        """Whether rows of a block see none behind them in a layer."""
        return self.causal or (self.causal_windows and self.sight(layer) != EVERYTHING)

    @property
    def chained(self) -> bool:
        """Whether a guess depends on the one before it."""
        return self.markov_rank > 0 or self.selector_rank > 0

    @property
    def speaking(self) -> slice:
        """The rows of a block that guess, in order."""
        return slice(self.block_size - self.slots, None)


class BlockLayer(HeadLayer):
    """The parts of one layer (``HeadLayerParts``), Qwen 3's: queries and keys are normed."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        shape = (config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias, config.attention_bias)
        self.self_attn = Attention(config.hidden_size, config.hidden_size, *shape, head_norm_eps=config.norm_eps)
        if config.sinks:
            self.self_attn.attention_sink_bias = nn.Parameter(torch.zeros(config.num_heads))
        self.mlp = SiluMlp(config.hidden_size, config.mlp_size)
        self.input_layernorm = RmsNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.norm_eps)
        if config.conv_taps:
            self.attention_conv = BlockConvolution(config.hidden_size, config.conv_taps, config.conv_group)
            self.mlp_conv = BlockConvolution(config.hidden_size, config.conv_taps, config.conv_group)


class BlockHead(SpeakingHead):
    """The trained part of a block drafter.

    ``d2t`` int64 [draft vocab]: target id of draft id j is ``j + d2t[j]``, where the vocabulary is reduced. Initialised
    for training as ``begin_randomly`` does, draft id j target id j.
    """

    config: BlockConfig
    layers: Sequence[BlockLayer]

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding: Tensor | None = None
        """[vocab, hidden] where it has one of its own; None: the target's."""
        self.fc = nn.Linear(config.target_hidden_size * len(config.taps), config.hidden_size, bias=False)
        self.hidden_norm = RmsNorm(config.hidden_size, config.norm_eps)
        layers = nn.ModuleList(BlockLayer(config) for _ in range(config.num_layers))
        self.layers = layers  # type: ignore[assignment]
        self.norm = RmsNorm(config.hidden_size, config.norm_eps)
        if config.own_output:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        if config.reduced:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        if config.confidence:
            rank = config.markov_rank if config.confidence_reads_token else 0
            self.confidence_head = ConfidenceHead(config.hidden_size + rank)
        begin_randomly(self)
        if config.markov_rank:
            self.markov_head = MarkovHead(config.draft_vocab_size, config.markov_rank)
            self.markov_head.begin()
        if config.selector_rank:
            self.candidate_selector = CandidateSelector(
                config.draft_vocab_size, config.hidden_size, config.selector_rank
            )

    @property
    def kind(self) -> str:
        return KIND

    @property
    def num_layers(self) -> int:
        """See ``SpeakingHead``."""
        return len(self.layers)

    def may_begin_from(self, known: SpeakingHead) -> bool:
        """Whatever the vocabulary, the number of layers, the block's length and view; a Markov factor and a confidence
        may be new."""
        if not isinstance(known, BlockHead):
            return False
        mine, theirs = self._trunk, known._trunk
        return mine == theirs or replace(mine, markov_rank=0) == theirs

    @property
    def _trunk(self) -> BlockConfig:
        whole = self.config.vocab_size
        unsure = replace(self.config, confidence=False, confidence_reads_token=False)
        return replace(unsure, draft_vocab_size=whole, num_layers=1, block_size=2, causal=False, root_speaks=False)

    def context(self, features: Tensor) -> Tensor:
        """The target's states [..., taps * target hidden], fused: what keys and values are made of [..., hidden]."""
        fused_states: Tensor = self.hidden_norm(self.fc(features))
        return fused_states

    def context_heads(self, layer: int, context: Tensor, rotate: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values [..., kv_head, head_dim] that a layer makes of ``context`` [..., hidden].

        Args:
            rotate: rotary embedding of [..., head, head_dim] at the positions of the states.
        """
        attention = self.layers[layer].self_attn
        shape = (*context.shape[:-1], self.config.num_kv_heads, self.config.head_dim)
        keys, values = attention.k_proj(context).view(shape), attention.v_proj(context).view(shape)
        return rotate(attention.k_norm(keys)), values

    def forward(self, embeddings: Tensor, rotate: Callable[[Tensor], Tensor], attend: Attend) -> Tensor:
        """Blocks: [..., hidden] of the tokens and masks -> states after the last norm [..., hidden].

        Args:
            rotate: as in ``context_heads``, at the positions of the rows.
            attend: over the rows of the block, and the states before it.
        """
        config = self.config

        def attend_heads(index: int, heads: Tensor) -> Tensor:
            q, k, v = self.layers[index].self_attn.parts(heads)
            return attend(index, rotate(q), rotate(k), v)

        x = self.layers[0].input_norm(embeddings)
        around = None
        if config.conv_taps:
            around = [
                (
                    partial(each.attention_conv.around, block_size=config.block_size),
                    partial(each.mlp_conv.around, block_size=config.block_size),
                )
                for each in self.layers
            ]
        output = run_head_layers(self.layers, config.head_dim, x, embeddings, attend_heads, around)
        states: Tensor = self.norm(output)
        return states

    def said_before(self, tokens: Tensor) -> Tensor:
        """What ``markov_head`` knows of tokens: [..., rank] for int64 [...] target ids; 0 where the head lacks them."""
        places = self.draft_ids[tokens]
        known: Tensor = self.markov_head.markov_w1(places.clamp(min=0)) * (places >= 0)[..., None]
        return known

    def confidence(self, states: Tensor, before: Tensor | None = None) -> Tensor:
        """float32 [...] logits of how likely guesses are accepted if those before them were.

        Args:
            states: [..., hidden] that say them.
            before: [..., rank] of the tokens before them (``said_before``), where the Markov factor is there.
        """
        if self.config.confidence_reads_token and before is not None:
            states = torch.cat((states, before), dim=-1)
        logits: Tensor = self.confidence_head(states)
        return logits

    @property
    def draft_ids(self) -> Tensor:
        """int64 [vocab] draft id of each target id, -1 of those that the head lacks."""
        ids = self.target_ids
        places = torch.full((self.config.vocab_size,), -1, device=ids.device)
        places[ids] = torch.arange(len(ids), device=ids.device)
        return places

    def mapped_rows(self, table: Tensor) -> Tensor:
        """See ``TextHead``; its output rows, those of the target where it has none."""
        rows: Tensor = self.lm_head.weight if self.config.own_output else table[self.target_ids.to(table.device)]
        return rows

    def mapped_states(self, output: Tensor) -> Tensor:
        """See ``TextHead``."""
        return output

    def logits(self, states: Tensor, table: Tensor) -> Tensor:
        """[..., draft vocab] after states of ``forward``; ``table``: the target's output rows [vocab, hidden]."""
        rows = self.mapped_rows(table)
        return F.linear(states.to(rows.dtype), rows)
