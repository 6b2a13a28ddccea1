"""Whole drafts of an EAGLE head on its device: a level's best tokens are found, sorted and gone on from with no word to
the processor, and recorded where the device can."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.draft_pool import PooledDraftCache
from headstart.backends.torch.eagle_rows import EagleRows
from headstart.backends.torch.recorder import Recorder, Recordings, Run
from headstart.backends.torch.static_layout import coarsely_padded, padded
from headstart.backends.torch.text_rows import TextRows
from headstart.drafting.heads.head_pass import DraftRoot, GrownTree, PathBounds, RowScores
from headstart.drafting.heads.path_trees import IMPOSSIBLE, cut_tree
from headstart.drafting.heads.text_vocabulary import TextVocabulary
from headstart.models.config import EVERYTHING
from headstart.passes.batch import IntArray
from headstart.passes.draft_tree import ROOT

if TYPE_CHECKING:
    from headstart.backends.torch.eagle_pass import EaglePass

FEWEST_ROWS, FEWEST_KEYS = 4, 128
_FEWEST_TOKENS = 128
_FIRST_LEVELS = 2
"""Levels after which a look is taken whether a draft goes on; from then on whenever there are twice as many."""


class DraftShape(NamedTuple):
    """What two drafts have in common that one recording serves."""

    sequences: int
    rows: int
    """True rows of each sequence that are read."""
    keys: int
    """Rows of each sequence, those of the draft included."""
    tokens: int
    """Of each sequence's text that the head may say beyond its vocabulary."""
    depth: int
    scored: bool
    """Tokens are ranked by scores that are made between the levels."""

    @property
    def stages(self) -> list[tuple[int, int]]:
        """First and last level of what is done at once; level 0 is the reading of true rows."""
        if self.scored:
            return [(0, 0), *((level, level) for level in range(1, self.depth + 1))]
        ends, end = [0], _FIRST_LEVELS
        while ends[-1] < self.depth:
            ends.append(min(end, self.depth))
            end *= 2
        firsts = [0, *(before + 1 for before in ends[1:-1])]
        return list(zip(firsts, ends[1:], strict=True))


class _Said(NamedTuple):
    """Rows that have been run, [sequence, beam] each."""

    logits: Tensor
    """float32 [.., column] of the draft vocabulary, and of the text's tokens behind it."""
    states: Tensor
    """[.., hidden] that are fed back."""
    sees: Tensor
    """bool [.., draft row]."""
    scores: Tensor
    """float32 [..] of the paths to the nodes that the rows read."""
    nodes: Tensor
    """int64 [..] those nodes."""


class _Beams(NamedTuple):
    """Nodes whose children come next, [sequence, beam] each."""

    tokens: Tensor
    """int64 [..] target ids."""
    parents: Tensor
    """int64 [..] beam of the level before."""
    states: Tensor
    """[sequence, beam of the level before, hidden]."""
    sees: Tensor
    """bool [sequence, beam of the level before, draft row]."""
    scores: Tensor
    nodes: Tensor


class EagleGrowth:
    """Whole drafts (``Growth``).

    Args:
        running: the head's pass.
        width: nodes of a level that get children, and children of each of them.
        ids: int32 [draft vocab] target id of each draft id, -1 where the target has none.
        recorder: of the head's device.
    """

    def __init__(self, running: EaglePass, width: int, ids: IntArray, recorder: Recorder) -> None:
        self._running, self._width = running, width
        self._ids = torch.from_numpy(ids).long().to(running.device)
        self._text_rows = TextRows(running.config.hidden_size, running.dtype, running.device)
        self.recordings: Recordings[_Drafting] = Recordings(recorder)

    @torch.inference_mode()
    def grow(self, roots: Sequence[DraftRoot], bounds: PathBounds, scores: RowScores | None) -> list[GrownTree]:
        """See ``Growth``."""
        shape = self._shape(roots, scores is not None)
        slots = [None if root.text_tokens is None else self._text_rows.slots(root.text_tokens) for root in roots]
        for root in roots:
            _cache(root).reserve(root.cache.rows + len(root.tokens) + shape.depth * self._width)
        self.recordings.of_memory((self._running.pool.moves, self._text_rows.moves))
        drafting = self.recordings.of(shape, lambda: self._drafting(shape, roots, slots, bounds, record=True))
        if drafting is None:
            drafting = self._drafting(shape, roots, slots, bounds, record=False)
        else:
            drafting.fill(roots, slots, bounds)
        deepest, further = max(root.depth for root in roots), max(map(len, [root.text_tokens or () for root in roots]))
        levels: list[NDArray[np.int32]] = []
        sizes: list[int] = []
        for (_, last), stage in zip(shape.stages, drafting.stages, strict=True):
            *left, nodes = stage()
            if last:
                levels.append(nodes.cpu().numpy())
                sizes = self._level_sizes(shape, last)
                latest = levels[-1][2, :, -sizes[-1] :].view(np.float32)
                if last >= deepest or not (latest >= np.float32(bounds.min_parent_log_prob)).any():
                    break
            if scores is not None:
                logits = left[0]
                columns = len(self._ids) + further
                for place in range(len(roots)):
                    logits[place, :, :columns] = scores(place, logits[place, :, :columns], last + 1)
        for root in roots:
            root.cache.rows += len(root.tokens)
        tokens, parents, path_scores = np.concatenate(levels, axis=2)
        depths = np.repeat(np.arange(1, len(sizes) + 1), sizes)
        return [
            cut_tree(tokens[place], parents[place], path_scores[place].view(np.float32), depths, root.nodes, root.depth)
            for place, root in enumerate(roots)
        ]

    def _shape(self, roots: Sequence[DraftRoot], scored: bool) -> DraftShape:
        depth = max(root.depth for root in roots)
        rows = max(len(root.tokens) for root in roots)
        keys = max(root.cache.rows + len(root.tokens) for root in roots) + depth * self._width
        tokens = max(map(len, [root.text_tokens or () for root in roots]))
        return DraftShape(
            padded(len(roots)),
            coarsely_padded(rows, FEWEST_ROWS),
            padded(keys, FEWEST_KEYS),
            padded(tokens, _FEWEST_TOKENS) if tokens else 0,
            depth,
            scored,
        )

    def _drafting(
        self,
        shape: DraftShape,
        roots: Sequence[DraftRoot],
        slots: Sequence[NDArray[np.int64] | None],
        bounds: PathBounds,
        record: bool,
    ) -> _Drafting:
        """Of a shape, whose tables are filled."""
        drafting = _Drafting(self._running, shape, roots[0].features.shape[1])
        drafting.fill(roots, slots, bounds)
        before: list[Tensor] = []
        for first, last in shape.stages:
            run = partial(self._stage, drafting, first, last, tuple(before) if record else before)
            if record:
                replay = self.recordings.recorder.record(run)
                before = list(replay())
                drafting.stages.append(replay)
            else:
                drafting.stages.append(partial(_kept_in, before, run))
        return drafting

    def _stage(self, drafting: _Drafting, first: int, last: int, before: Sequence[Tensor]) -> Sequence[Tensor]:
        """Levels ``first`` to ``last`` after what an earlier stage left, then what they leave, and their nodes: int32
        [token, parent or score, sequence, node]."""
        shape, nodes, text = drafting.shape, [], self._text(drafting)
        said: _Said | None = None
        beams: _Beams | None = None
        if not first:
            said = self._read(drafting, text)
        elif shape.scored:
            said = _Said(*before[:-1])
        else:
            beams = _Beams(*before[:-1])
        for level in range(max(first, 1), last + 1):
            if beams is not None:
                said = self._step(drafting, beams, level, text)
            assert said is not None
            beams, found = self._best(drafting, said, level)
            nodes.append(found)
        if shape.scored and beams is not None and last < shape.depth:
            said, beams = self._step(drafting, beams, last + 1, text), None
        left = said if beams is None else beams
        assert left is not None
        return [*left, torch.cat(nodes, dim=2) if nodes else self._ids.new_zeros(0)]

    def _read(self, drafting: _Drafting, text: Tensor) -> _Said:
        """Run the true rows."""
        running, shape, rows = self._running, drafting.shape, drafting.rows
        states, logits = running.say(rows.run().index_select(0, rows.last(1)))
        one, device = (shape.sequences, 1), running.device
        return _Said(
            self._with_text(drafting, logits[:, None], states[:, None], text),
            states[:, None],
            torch.zeros(*one, 0, dtype=torch.bool, device=device),
            torch.zeros(one, device=device),
            torch.full(one, ROOT, dtype=torch.int64, device=device),
        )

    def _best(self, drafting: _Drafting, said: _Said, level: int) -> tuple[_Beams, Tensor]:
        """Children of each beam, of which the best are gone on from; and all of them as nodes."""
        shape, tables = drafting.shape, drafting.rows.tables
        sequences, beams, columns = said.logits.shape
        best = said.logits.topk(min(self._width, columns))
        ranks = best.values.shape[2]
        log_probs = best.values - said.logits.logsumexp(-1, keepdim=True)
        vocab = len(self._ids)
        tokens = self._ids[best.indices.clamp(max=vocab - 1)]
        if shape.tokens:
            texts = tables["text_ids"][:, None].expand(-1, beams, -1)
            own = texts.gather(2, (best.indices - vocab).clamp(min=0))
            tokens = torch.where(best.indices < vocab, tokens, own)
        # Rounding must not lift a child above its parent, nor something that is not a number break the order.
        possible = (log_probs > float(IMPOSSIBLE)) & (tokens >= 0)
        steps = torch.where(possible, log_probs.clamp(max=0), float(IMPOSSIBLE))
        least, least_of_parents = tables["bounds"].view(torch.float64).float().unbind()
        scores = (said.scores[:, :, None] + steps).view(sequences, -1)
        scores = torch.where(scores >= least, scores, float(IMPOSSIBLE))
        tokens = tokens.clamp(min=0).view(sequences, -1)
        if sequences > 2:
            # Padding goes the way of the sequence that it repeats, whatever its own last bits or scores are: it writes
            # to the same rows.
            scores, tokens = (each.index_select(0, tables["members"]) for each in (scores, tokens))
        parents = said.nodes.repeat_interleave(ranks, dim=1)
        nodes = torch.stack((tokens.int(), parents.int(), scores.view(torch.int32)))

        going = torch.where(scores >= least_of_parents, scores, float(IMPOSSIBLE))
        chosen = going.sort(dim=1, descending=True, stable=True)
        places = chosen.indices[:, : self._width]
        return _Beams(
            tokens.gather(1, places),
            places // ranks,
            said.states,
            said.sees,
            chosen.values[:, : self._width],
            places + sum(self._level_sizes(shape, level - 1)),
        ), nodes

    def _step(self, drafting: _Drafting, beams: _Beams, level: int, text: Tensor) -> _Said:
        """Run the nodes of the level before ``level``. A beam reads the state of the row that guessed it, and sees what
        that row saw, that row, and itself."""
        running, tables = self._running, drafting.rows.tables
        sequences, width = beams.tokens.shape
        device, above = running.device, beams.parents[:, :, None]
        states = beams.states.gather(1, above.expand(-1, -1, beams.states.shape[2]))
        seen = beams.sees.gather(1, above.expand(-1, -1, beams.sees.shape[2]))
        itself = torch.eye(width, dtype=torch.bool, device=device).expand(sequences, -1, -1)
        sees = torch.cat((seen, itself), dim=2)
        true_rows = tables["cached"] + tables["counts"]
        positions = (tables["firsts"] + true_rows + (level - 2))[:, None].expand(-1, width)
        layout = drafting.rows.layout(true_rows, torch.full_like(true_rows, sees.shape[2]), sees)
        output = running.rows(beams.tokens.flatten(), states.flatten(0, 1), positions.flatten(), {EVERYTHING: layout})
        states, logits = running.say(output)
        states, logits = states.view(sequences, width, -1), logits.view(sequences, width, -1)
        logits = self._with_text(drafting, logits, states, text)
        return _Said(logits, states, sees, beams.scores, beams.nodes)

    def _text(self, drafting: _Drafting) -> Tensor:
        """[sequence, token, hidden] output rows of the texts' tokens."""
        shape = drafting.shape
        rows = self._text_rows.table.index_select(0, drafting.rows.tables["text_slots"].flatten())
        return rows.view(shape.sequences, shape.tokens, self._running.config.hidden_size)

    def _with_text(self, drafting: _Drafting, logits: Tensor, states: Tensor, text: Tensor) -> Tensor:
        """Logits [sequence, beam, column], those of the text's tokens behind the others (``TextTokens.logits``)."""
        shape, config = drafting.shape, self._running.config
        if not shape.tokens:
            return logits
        if not config.norm_output:
            rows = states.float()
            rows = rows * (rows.square().mean(-1, keepdim=True) + config.norm_eps).rsqrt()
            states = rows.to(text.dtype)
        own = torch.bmm(states, text.transpose(1, 2)).float() + TextVocabulary.bias
        absent = torch.arange(shape.tokens, device=own.device) >= drafting.rows.tables["text_counts"][:, None]
        return torch.cat((logits, own.masked_fill(absent[:, None], -torch.inf)), dim=-1)

    def _level_sizes(self, shape: DraftShape, levels: int) -> list[int]:
        """Nodes of each level."""
        ranks, beams, sizes = min(self._width, len(self._ids) + shape.tokens), 1, []
        for _ in range(levels):
            sizes.append(beams * ranks)
            beams = min(self._width, beams * ranks)
        return sizes


class _Drafting:
    """What drafts of one shape read, and how they are made.

    Args:
        features: numbers of a row.
    """

    def __init__(self, running: EaglePass, shape: DraftShape, features: int) -> None:
        self.shape = shape
        texts = (shape.sequences, shape.tokens)
        more = {"bounds": (2,), "text_ids": texts, "text_slots": texts, "text_counts": (shape.sequences,)}
        self.rows = EagleRows(running, shape.sequences, shape.rows, shape.keys, features, more)
        self.stages: list[Run] = []

    def fill(self, roots: Sequence[DraftRoot], slots: Sequence[NDArray[np.int64] | None], bounds: PathBounds) -> None:
        """Write what a draft begins with; ``slots``: of the texts' rows."""
        features = [root.features for root in roots]
        self.rows.fill([root.cache for root in roots], [root.tokens for root in roots], features)
        tables = self.rows.staging.host
        tables["bounds"].view(np.float64)[:] = bounds
        for place, member in enumerate(tables["members"].tolist()):
            text, known = roots[member].text_tokens, slots[member]
            count = 0 if text is None or known is None else len(known)
            tables["text_counts"][place] = count
            if text is not None and known is not None:
                tables["text_ids"][place, :count], tables["text_slots"][place, :count] = text.tokens, known
        self.rows.staging.send()


def _kept_in(before: list[Tensor], run: Run) -> Sequence[Tensor]:
    """Run, and remember the results for the next stage."""
    before[:] = run()
    return before


def _cache(root: DraftRoot) -> PooledDraftCache:
    assert isinstance(root.cache, PooledDraftCache)
    return root.cache
