"""What a block head knows of the token before a guess: how it shifts logits, and how likely the guess is accepted."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.backends.torch.parallel_pass import Kit, LinearLayer
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.models.linear_weights import LinearWeights


class BlockFactors:
    """The Markov factor and the confidence of a head, where it has them (DSpark, arXiv:2607.05147).

    Args:
        head: weights, copied.
        kit: what they are computed with.
    """

    after: LinearLayer
    """[row, rank] -> [row, draft vocab] what a token adds to the logits of the next; of a head that is ``chained``."""

    @torch.inference_mode()
    def __init__(self, head: BlockHead, kit: Kit) -> None:
        config, self._kit = head.config, kit
        self.chained = config.markov_rank > 0
        self._reads_token = config.confidence_reads_token
        if self.chained:
            # The row behind the last one is for tokens that the head lacks.
            rows = F.pad(head.markov_head.markov_w1.weight.detach(), (0, 0, 0, 1))
            self.before = rows.to(kit.device, kit.dtype).contiguous()
            """[draft vocab + 1, rank] what is known of a token."""
            self.draft_ids = head.draft_ids.to(kit.device)
            """int64 [vocab] row of each target id there, -1: the last."""
            self.after = kit.linear(LinearWeights(head.markov_head.markov_w2.weight))
        self.confident = config.confidence
        if self.confident:
            sureness = head.confidence_head.proj
            self.sureness = LinearWeights(
                sureness.weight.detach().to(kit.device, torch.float32).contiguous(),
                sureness.bias.detach().to(kit.device, torch.float32),
            )
            """float32 [1, hidden (+ rank)], and [1]."""

    @property
    def nbytes(self) -> int:
        """Of the factor."""
        return self.before.nbytes + self.after.nbytes if self.chained else 0

    @torch.inference_mode()
    def following(self, tokens: Tensor) -> Tensor:
        """See ``BlockHeadPass``."""
        return self.after(self._known(tokens)).float()

    @torch.inference_mode()
    def confidence(self, states: Tensor, tokens: Tensor) -> Tensor:
        """See ``BlockHeadPass``."""
        if self._reads_token:
            states = torch.cat((states, self._known(tokens).to(states.dtype)), dim=-1)
        return F.linear(states.float(), self.sureness.weight, self.sureness.bias)[:, 0].sigmoid()

    def _known(self, tokens: Tensor) -> Tensor:
        return self.before[self.draft_ids[tokens.to(self._kit.device)]]
