"""What a block head knows of the token before a guess: how it shifts logits, and how likely the guess is accepted."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.backends.torch.head_kit import Kit, LinearLayer
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.models.linear_weights import LinearWeights


class BlockFactors:
    """The Markov factor and the confidence of a head (DSpark, arXiv:2607.05147), or its selector of paths (DFlash 2).

    Args:
        head: weights, copied.
        kit: what they are computed with.
    """

    after: LinearLayer
    """[row, rank] -> [row, draft vocab] what a token adds to the logits of the next; of a head that is ``chained``."""

    @torch.inference_mode()
    def __init__(self, head: BlockHead, kit: Kit) -> None:
        config, self._kit = head.config, kit
        self.chained = config.chained
        self._reads_token = config.confidence_reads_token
        self.rank = config.selector_rank or config.markov_rank
        self.by_state: LinearLayer | None = None
        """[row, hidden] -> [row, rank] what a selector multiplies a token's row with."""
        if self.chained:
            known, following = _tables(head)
            # The row behind the last one is for tokens that the head lacks.
            rows = F.pad(known, (0, 0, 0, 1))
            self.before = rows.to(kit.device, kit.dtype).contiguous()
            """[draft vocab + 1, rank] what is known of a token."""
            self.draft_ids = head.draft_ids.to(kit.device)
            """int64 [vocab] row of each target id there, -1: the last."""
            self.after = kit.linear(LinearWeights(following))
        if config.selector_rank:
            self.by_state = kit.linear(LinearWeights(head.candidate_selector.hidden_projection.weight))
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
        by_state = 0 if self.by_state is None else self.by_state.nbytes
        return self.before.nbytes + self.after.nbytes + by_state if self.chained else 0

    @torch.inference_mode()
    def following(self, tokens: Tensor, states: Tensor) -> Tensor:
        """See ``BlockHeadPass``."""
        known = self._known(tokens)
        if self.by_state is not None:
            known = known * self.by_state(states.to(self._kit.dtype)).to(known.dtype)
        return self.after(known).float()

    @torch.inference_mode()
    def confidence(self, states: Tensor, tokens: Tensor) -> Tensor:
        """See ``BlockHeadPass``."""
        if self._reads_token:
            states = torch.cat((states, self._known(tokens).to(states.dtype)), dim=-1)
        return F.linear(states.float(), self.sureness.weight, self.sureness.bias)[:, 0].sigmoid()

    def _known(self, tokens: Tensor) -> Tensor:
        return self.before[self.draft_ids[tokens.to(self._kit.device)]]


def _tables(head: BlockHead) -> tuple[Tensor, Tensor]:
    """[draft vocab, rank] what is known of a token, and what that says of the next ones."""
    if head.config.selector_rank:
        return head.candidate_selector.predecessor_codebook.detach(), head.candidate_selector.successor_codebook
    return head.markov_head.markov_w1.weight.detach(), head.markov_head.markov_w2.weight
