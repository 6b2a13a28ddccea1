"""Learning to say tokens of the text that a head's vocabulary lacks, with the output rows that drafting will make for
them (docs/decisions/0037)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.heads.text_vocabulary import RowMap, TextHead, TextVocabulary
from headstart_train.states import Batch


class TextLessons:
    """For one head with a reduced vocabulary. The map that makes rows follows the head's own as they are learnt.

    Args:
        head: that learns.
        tables: the target's.
        ids: int64 [draft vocab] target ids of the tokens that it has.
    """

    def __init__(self, head: TextHead, tables: TargetTables, ids: Tensor) -> None:
        self._head, self._table = head, tables.head
        self._map = RowMap(tables.head[ids].float())
        self._lacks = torch.ones(len(tables.head), dtype=torch.bool, device=ids.device)
        self._lacks[ids] = False

    def of(self, batch: Batch) -> BatchTextTokens:
        return BatchTextTokens(self._head, self._table, self._map, self._lacks, batch)


class BatchTextTokens:
    """The tokens of a batch's documents that a head lacks.

    Attributes:
        ids: int64 [token], ascending.
        seen: bool [pack, position, token] whether its document holds the token there or before.
        target_rows: [token, target hidden] the target's output rows.
        made_rows: float32 [token, hidden] the head's, made of those that it has.
        rows: the same as a leaf of its own, whose gradient ``made_rows`` is to be given.
    """

    def __init__(self, head: TextHead, table: Tensor, row_map: RowMap, lacks: Tensor, batch: Batch) -> None:
        self._head = head
        lacking = (batch.documents >= 0) & lacks[batch.tokens]
        self.ids = torch.unique(batch.tokens[lacking])
        pack, place = lacking.nonzero(as_tuple=True)
        counts = torch.zeros(*batch.tokens.shape, len(self.ids), dtype=torch.int32, device=batch.tokens.device)
        counts[pack, place, torch.searchsorted(self.ids, batch.tokens[pack, place])] = 1
        up_to = counts.cumsum(1, dtype=torch.int32)
        starts = torch.arange(batch.tokens.shape[1], device=batch.tokens.device) - batch.positions
        before = (up_to - counts).gather(1, starts[:, :, None].expand_as(counts))
        self.seen = up_to > before
        self.target_rows = table[self.ids]
        with torch.autocast(table.device.type, enabled=False):
            self.made_rows = self.target_rows.float() @ row_map(head.mapped_rows(table).float())
        self.rows = self.made_rows.detach().requires_grad_()

    def holds(self, tokens: Tensor, places: Tensor) -> Tensor:
        """bool [place] which of ``tokens``, int64 [place] ids for the true ``places`` [pack, position], are among those
        that a guess may be there."""
        if not len(self.ids):
            return torch.zeros_like(tokens, dtype=torch.bool)
        at = torch.searchsorted(self.ids, tokens).clamp(max=len(self.ids) - 1)
        found: Tensor = self.seen[places].gather(1, at[:, None]).squeeze(1) & (self.ids[at] == tokens)
        return found

    def logits(self, output: Tensor) -> Tensor:
        """[..., token] of a step's output, as ``TextTokens.logits``."""
        states = self._head.mapped_states(output)
        return F.linear(states, self.rows) + TextVocabulary.bias
