"""The EAGLE heads as one module: a decoder layer, or a few, that guess the target's next state, and from it a token.

EAGLE-1 and EAGLE-2 (Li et al. 2024, arXiv:2401.15077, 2406.16858) share one net: the target's state after its final
norm and the embedding of the token after it, fused, through a layer without input norm. EAGLE-3 (arXiv:2503.01840)
reads the inputs of several layers, attends over embedding and feature side by side, and has a head of its own over a
reduced vocabulary. Further layers, if there are any, are plain decoder layers on the output of the one below.
Parameters bear the names of the SafeAILab checkpoints (EAGLE-1's; EAGLE-3's call ``layers.0`` ``midlayer``).

Row i reads (feature of position i, token i + 1) at position i; its output imitates what position i + 1 will show and
says token i + 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.drafting.heads.formats import MOST_SLOTS, SpeakingHead
from headstart.drafting.heads.modules import Attention, HeadLayer, LayersConfig, RmsNorm, SiluMlp, begin_randomly
from headstart.errors import ConfigError
from headstart.models.layers.layer import run_head_layers
from headstart.passes.batch import FINAL_TAP

Variant = Literal["eagle", "eagle3"]
FIRST: Variant = "eagle"
THIRD: Variant = "eagle3"
PARALLEL_KIND = "p-eagle"
"""What an EAGLE-3 head is called that guesses several tokens in one pass."""
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Layer, rotated queries [..., head, head_dim], keys and values [..., kv_head, head_dim] -> [..., head * head_dim]."""


@dataclass(frozen=True, kw_only=True)
class EagleConfig(LayersConfig):
    """An EAGLE head; EAGLE-1's says all of the target's tokens."""

    variant: Variant
    num_layers: int = 1
    taps: tuple[int, ...] = (FINAL_TAP,)
    """EAGLE-1: the state after the final norm."""
    norm_eps: float = 1e-5
    borrows_output: bool = False
    """An EAGLE-3 head that says its tokens through the target's output rows."""
    fc_bias: bool = False
    norm_before_residual: bool = False
    """The residual carries the normed feature (EAGLE-3)."""
    norm_before_fc: bool = False
    """One norm over the features side by side (EAGLE-3)."""
    fc_norm: bool = False
    """A norm for each feature (EAGLE-3.1)."""
    norm_output: bool = False
    """The state fed back is the normed one (EAGLE-3.1)."""
    head_norms: bool = False
    """Queries and keys are normed, as in Qwen 3's layers (EAGLE-3)."""
    slots: int = 0
    """Tokens that one pass guesses (P-EAGLE, arXiv:2602.01469); 0: one, and a step for each further one."""
    mask_token_id: int = 0
    """The token that rows of further guesses read, with ``slots``."""

    def __post_init__(self) -> None:
        if self.slots and (self.variant == "eagle" or not 1 <= self.slots <= MOST_SLOTS):
            raise ConfigError(
                f"a {self.variant} head guesses {self.slots} tokens in one pass; EAGLE-3's guess 1 to 64."
            )
        if self.variant == "eagle" and (
            self.taps != (FINAL_TAP,) or self.target_hidden_size != self.hidden_size or self.own_head
        ):
            raise ConfigError("an EAGLE-1 head reads the final state alone and says it through the target's head.")
        super().__post_init__()

    @property
    def reach(self) -> int | None:
        """How many positions back a draft depends on through all layers; None: on all."""
        return sum(self.windows) if self.windows and all(self.windows) else None

    @property
    def kind(self) -> str:
        """What ``headstart train`` calls such a head."""
        return PARALLEL_KIND if self.slots else self.variant

    @property
    def eps_of_said(self) -> float | None:
        """Of the last norm, where states that say tokens are handed on without it."""
        return None if self.norm_output else self.norm_eps

    @property
    def side_by_side(self) -> bool:
        """Embedding and feature enter the first layer side by side (EAGLE-3), not fused (EAGLE-1)."""
        return self.variant == THIRD

    @property
    def own_head(self) -> bool:
        """Whether it reduces the vocabulary or has a head besides the target's."""
        return self.variant == "eagle3" or self.reduced


def eagle3_taps(num_layers: int) -> tuple[int, ...]:
    """The layers of the paper's reference code whose inputs are read: an early, the middle and a late one."""
    return tuple(sorted({min(2, num_layers - 1), num_layers // 2, max(num_layers - 3, 0)}))


class EagleLayer(HeadLayer):
    """The parts of one of a head's layers, as ``HeadLayerParts`` too.

    ``input_layernorm`` is of the embedding in EAGLE-3's first layer, of the layer's input in further ones; EAGLE-1's
    first layer has none.
    """

    def __init__(self, config: EagleConfig, index: int) -> None:
        super().__init__()
        norm_of = (config.hidden_size, config.norm_eps)
        reads_both = index == 0 and config.variant == "eagle3"
        if reads_both:
            self.hidden_norm = RmsNorm(*norm_of)
        if reads_both or index > 0:
            self.input_layernorm = RmsNorm(*norm_of)
        width = config.hidden_size * (2 if reads_both else 1)
        shape = (config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias)
        norm_eps = config.norm_eps if config.head_norms else None
        self.self_attn = Attention(width, config.hidden_size, *shape, head_norm_eps=norm_eps)
        self.post_attention_layernorm = RmsNorm(*norm_of)
        self.mlp = SiluMlp(config.hidden_size, config.mlp_size)


class EagleHead(SpeakingHead):
    """The trained part of an EAGLE drafter.

    ``d2t`` int64 [draft vocab]: target id of draft id j is ``j + d2t[j]`` (EAGLE-3). ``mask_hidden`` [1, 1, taps *
    target hidden], with ``slots``: stands for the target's states where there are none yet. Initialised for training:
    norms 1, matrices normal with standard deviation 0.02, draft id j target id j.
    """

    config: EagleConfig
    layers: Sequence[EagleLayer]

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding: Tensor | None = None
        """[vocab, hidden] where it has one of its own; None: the target's."""
        fused = config.variant == "eagle3"
        hidden, inputs = config.hidden_size, config.target_hidden_size * len(config.taps)
        if config.norm_before_fc:
            self.input_norm = RmsNorm(inputs, config.norm_eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RmsNorm(config.target_hidden_size, config.norm_eps) for _ in config.taps)
        self.fc = nn.Linear(inputs if fused else 2 * hidden, hidden, bias=config.fc_bias)
        layers = nn.ModuleList(EagleLayer(config, index) for index in range(config.num_layers))
        self.layers = layers  # type: ignore[assignment]
        if fused:
            self.norm = RmsNorm(hidden, config.norm_eps)
            if not config.borrows_output:
                self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        if config.reduced:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        begin_randomly(self)
        if config.slots:
            self.mask_hidden = nn.Parameter(torch.randn(1, 1, inputs))

    @property
    def kind(self) -> str:
        return self.config.kind

    @property
    def num_layers(self) -> int:
        """See ``SpeakingHead``."""
        return len(self.layers)

    def may_begin_from(self, known: SpeakingHead) -> bool:
        """Whatever the vocabulary, the number of layers and their windows; in one pass or in steps."""
        return isinstance(known, EagleHead) and self._trunk == known._trunk

    @property
    def _trunk(self) -> EagleConfig:
        whole = self.config.vocab_size
        return replace(self.config, draft_vocab_size=whole, num_layers=1, windows=(), slots=0, mask_token_id=0)

    def fuse(self, features: Tensor) -> Tensor:
        """True features [..., taps * target hidden] -> what the layer reads beside the token [..., hidden].

        States that the head made itself are read as they are.
        """
        config = self.config
        if config.variant == "eagle":
            return features
        if config.norm_before_fc:
            features = self.input_norm(features)
        if config.fc_norm:
            parts = features.chunk(len(config.taps), dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(features)
        return fused

    def forward(
        self, embeddings: Tensor, features: Tensor, rotate: Callable[[Tensor], Tensor], attend: Attend
    ) -> Tensor:
        """One step: the last layer's output [..., hidden], before any norm.

        Args:
            embeddings: [..., hidden] of the tokens after the features.
            features: [..., hidden], fused true ones or the state fed back.
            rotate: rotary embedding of [..., head, head_dim] at the rows' positions.
            attend: over the rows, and whatever stands before them.
        """
        config, first = self.config, self.layers[0]
        if config.variant == "eagle3":
            normed = first.hidden_norm(features)
            x = torch.cat((first.input_layernorm(embeddings), normed), dim=-1)
            residual = normed if config.norm_before_residual else features
        else:
            x = residual = self.fc(torch.cat((embeddings, features), dim=-1))

        def attend_heads(index: int, heads: Tensor) -> Tensor:
            q, k, v = self.layers[index].self_attn.parts(heads)
            return attend(index, rotate(q), rotate(k), v)

        return run_head_layers(self.layers, config.head_dim, x, residual, attend_heads)

    def feed_back(self, output: Tensor) -> Tensor:
        """A step's output as the next step's feature."""
        fed: Tensor = self.norm(output) if self.config.norm_output else output
        return fed

    def output_rows(self, table: Tensor | None) -> Tensor:
        """[draft vocab, hidden] that say tokens; of the target's ``table`` [vocab, hidden] where it has none."""
        if self.config.variant == THIRD and not self.config.borrows_output:
            own: Tensor = self.lm_head.weight
            return own
        assert table is not None
        return table[self.target_ids.to(table.device)] if self.config.reduced else table

    def logits(self, output: Tensor, target_head: Tensor | None = None) -> Tensor:
        """[..., draft vocab] of a step's output; ``target_head``: as of ``output_rows``."""
        said = self.norm(output) if self.config.variant == THIRD else output
        return F.linear(said, self.output_rows(target_head).to(said.dtype))

    def mapped_rows(self, table: Tensor) -> Tensor:
        """See ``TextHead``."""
        rows = self.output_rows(table)
        return rows if self.config.norm_output else rows * self.norm.weight

    def mapped_states(self, output: Tensor) -> Tensor:
        """See ``TextHead``."""
        if self.config.norm_output:
            normed: Tensor = self.norm(output)
            return normed
        return F.rms_norm(output.float(), output.shape[-1:], None, self.norm.eps).to(output.dtype)
