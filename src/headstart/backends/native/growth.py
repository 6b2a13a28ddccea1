"""Whole drafts of a head in one native call (``src/rounds/draft.h``)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native import library as c
from headstart.backends.native.draft_cache import NativeDraftCache, PagePool
from headstart.backends.native.library import Draft, Drafted, Head, Library
from headstart.backends.native.packing import RopeTables, address, as_int32
from headstart.backends.native.stored_rows import StoredRows
from headstart.drafting.heads.head_pass import DraftRoot, GrownTree, PathBounds, RowScores
from headstart.drafting.heads.text_vocabulary import TextRowSource, TextTokens, TextVocabulary
from headstart.passes.batch import IntArray


class OnePass(NamedTuple):
    """What a head reads behind the true rows that guesses several tokens in one pass."""

    slots: int
    """Tokens that a pass guesses."""
    rows: int
    """Masks, or rows of a block."""
    mask_token: int
    mask_features: Tensor | None = None
    """float32 [features], in place of the target's states; None: masks are those of a block."""
    block: c.Block | None = None

    @property
    def says_paths(self) -> bool:
        """Whether the pass says all paths, not only what is the same in all of them."""
        return self.block is None or not self.block.following


class NativeHeadGrower:
    """Grows a head's trees in a stretch for one sequence, or records what it would read, and the memory that the
    library reads and writes for it; ``alive`` lives as long."""

    def __init__(self, isa: str, compiled: Head, features: NDArray[np.float32], *alive: object) -> None:
        self.isa = isa
        self.compiled = compiled
        self._features, self._alive = features, alive

    @property
    def known(self) -> int:
        """Positions whose true states have come."""
        return int(self.compiled.cached + self.compiled.unread)

    @property
    def read(self) -> int:
        """True rows in the cache."""
        return int(self.compiled.cached)

    @property
    def features(self) -> NDArray[np.float32]:
        """[row, features] of the last known positions, as many as are held."""
        return self._features[: self.compiled.held]


class NativeGrowth:
    """Grows drafts from the likeliest paths (``Growth``).

    Args:
        model: the packed head.
        features: of a true row.
        state_tap: of the state that is fed back, -1 behind the last norm.
        pages: of its caches.
        ropes: its tables.
        width, ids: see ``HeadPass.growth``.
        one_pass: of a head that guesses several tokens in one; what it names has to live as long as this.
    """

    def __init__(
        self,
        library: Library,
        model: int,
        features: int,
        state_tap: int,
        pages: PagePool,
        ropes: RopeTables,
        width: int,
        ids: IntArray,
        one_pass: OnePass | None = None,
    ) -> None:
        self._library = library
        self._model = model
        self._features = features
        self._pages = pages
        self._ropes = ropes
        self._width = width
        self._ids = as_int32(ids)
        self._vocab = len(self._ids)
        self._one_pass = one_pass
        self._at_once = one_pass is not None and one_pass.says_paths
        self._rows = one_pass.slots if one_pass is not None and self._at_once else width
        """Of logits that are held of a sequence at most."""
        self._logits = torch.empty(0)
        self._draft = Draft(width=width, state_tap=state_tap, target_ids=address(self._ids))
        if one_pass is not None:
            self._draft.slots, self._draft.mask_token = one_pass.slots, one_pass.mask_token
            if one_pass.mask_features is not None:
                self._draft.mask_features = one_pass.mask_features.data_ptr()
            if one_pass.block is not None:
                self._draft.block = ctypes.pointer(one_pass.block)
        self._drafted = (Drafted * 0)()

    def grow(self, roots: Sequence[DraftRoot], bounds: PathBounds, scores: RowScores | None) -> list[GrownTree]:
        """See ``Growth``."""
        self._reserve(len(roots), max(map(len, _all_text_tokens(roots)), default=0))
        self._draft.min_log_prob, self._draft.min_parent_log_prob = bounds
        trees = [self._enter(*each) for each in enumerate(roots)]
        if scores is None:
            self._run(0, max(root.depth for root in roots))
        else:
            self._run(0, 0)
            level = 0
            while self._rescore(len(roots), scores, level := level + 1):
                self._run(level, level)
                if self._at_once:
                    break
        grown = []
        for drafted, root, tree in zip(self._drafted, roots, trees, strict=False):
            root.cache.rows = drafted.cached + drafted.unread
            tokens, parents, path_scores = tree[:, : drafted.found]
            grown.append(GrownTree(tokens, parents, path_scores.view(np.float32)))
        return grown

    def growers(
        self,
        roots: Sequence[DraftRoot],
        bounds: PathBounds,
        grades: Sequence[float],
        room: Sequence[int],
    ) -> list[NativeHeadGrower]:
        """See ``Growth``."""
        further = [
            root.text_tokens.reserve(more)
            for root, more in zip(roots, room, strict=True)
            if root.text_tokens is not None
        ]
        self._reserve(len(roots), max(further, default=0))
        draft = Draft.from_buffer_copy(self._draft)
        draft.min_log_prob, draft.min_parent_log_prob = bounds
        bound = np.array(grades, np.float64)
        # All room first: where the pages' memory grows, it moves.
        for root, positions in zip(roots, room, strict=True):
            rows = root.cache.rows + len(root.tokens) + positions
            self._make_room(root, rows)
        return [self._grower(draft, bound, *each) for each in zip(roots, room, strict=True)]

    def recorder(self, known: int, room: int) -> NativeHeadGrower:
        """See ``StretchGrowth``."""
        features = np.empty((room, self._features), np.float32)
        compiled = Head(
            model=self._model,
            cache=self._pages.storage.handle,
            draft=None,
            asked=False,
            depth=0,
            nodes=0,
            cached=known,
            unread=0,
            pages=0,
            page_table=None,
            held=0,
            room=room,
            features=address(features),
            tokens=None,
            bounds=0,
            bound=None,
        )
        return NativeHeadGrower(self._library.isa, compiled, features)

    def _grower(self, draft: Draft, bound: NDArray[np.float64], root: DraftRoot, room: int) -> NativeHeadGrower:
        cache, unread = _cache_of(root), len(root.tokens)
        features = np.empty((unread + room, self._features), np.float32)
        features[:unread] = root.features
        compiled = Head(
            model=self._model,
            cache=self._pages.storage.handle,
            draft=ctypes.pointer(draft),
            asked=True,
            depth=root.depth,
            nodes=root.nodes,
            first=cache.first,
            cached=cache.rows,
            unread=unread,
            pages=len(cache.pages),
            page_table=address(cache.pages),
            text_tokens=_text_tokens_of(root),
            held=unread,
            room=unread + room,
            features=address(features),
            tokens=address(root.tokens),
            bounds=len(bound),
            bound=address(bound),
        )
        return NativeHeadGrower(self._library.isa, compiled, features, bound, root)

    def _reserve(self, count: int, further: int) -> None:
        """Make room for drafts of this many sequences, and for the logits of so many text tokens of each."""
        columns = self._vocab + further
        if count > len(self._drafted):
            self._drafted = (Drafted * count)()
            self._draft.drafted = self._drafted
        if count * self._rows * columns > len(self._logits):
            self._logits = torch.empty(count * self._rows * columns)
            self._draft.logits = self._logits.data_ptr()
        self._draft.sequences, self._draft.columns = count, columns

    def _enter(self, place: int, root: DraftRoot) -> IntArray:
        """Tell the library of one sequence; where its tree will be written, scores as the bits of floats."""
        cache, tokens, features = _cache_of(root), root.tokens, root.features
        if features.shape != (len(tokens), self._features) or features.dtype != np.float32 or not len(tokens):
            raise ValueError(f"features are {features.dtype} {features.shape}; float32 rows x features is needed")
        rows = cache.rows + len(tokens)
        self._make_room(root, rows)
        tree = np.empty((3, root.nodes), np.int32)
        first, size = address(tree), tree.strides[0]
        self._drafted[place] = Drafted(
            first=cache.first,
            cached=cache.rows,
            unread=len(tokens),
            depth=root.depth,
            nodes=root.nodes,
            pages=len(cache.pages),
            text_tokens=_text_tokens_of(root),
            page_table=address(cache.pages),
            tokens=address(tokens),
            features=address(features),
            node_tokens=first,
            node_parents=first + size,
            node_scores=first + 2 * size,
        )
        return tree

    def _make_room(self, root: DraftRoot, rows: int) -> None:
        """For a draft behind so many true rows."""
        more = root.depth * self._width if self._one_pass is None else self._one_pass.rows
        _cache_of(root).reserve(rows + more)
        self._ropes.reach(root.cache.first + rows + max(root.depth, more))

    def _rescore(self, count: int, scores: RowScores, level: int) -> bool:
        """Put scores in the place of the logits that the level grows from, or all do; False where no tree goes on."""
        first, columns = 0, self._draft.columns
        logits = self._logits[: len(self._logits) // columns * columns].view(-1, columns)
        for place in range(count):
            rows = logits[first : (first := first + self._drafted[place].beams)]
            levels = [rows[slot : slot + 1] for slot in range(len(rows))] if self._at_once else [rows]
            for depth, own in enumerate(levels, level):
                if len(own):
                    own.copy_(scores(place, own, depth))
        return first > 0

    def _run(self, first: int, last: int) -> None:
        error = self._library.draft(self._model, self._pages.storage.handle, ctypes.byref(self._draft), first, last)
        if error is not None:
            raise ValueError(f"the head cannot draft: {error.decode()}")


def _cache_of(root: DraftRoot) -> NativeDraftCache:
    assert isinstance(root.cache, NativeDraftCache)
    return root.cache


def told_of(vocabulary: TextRowSource) -> c.TextVocabulary:
    """What the library is told of a vocabulary, which the caller keeps alive."""
    if isinstance(vocabulary, StoredRows):
        return c.TextVocabulary(
            inputs=vocabulary.width,
            bias=vocabulary.bias,
            lacks=address(vocabulary.lacks),
            stored=ctypes.pointer(vocabulary.table.rows[0]),
            factors=None if vocabulary.factors is None else vocabulary.factors.data_ptr(),
        )
    assert isinstance(vocabulary, TextVocabulary)
    return c.TextVocabulary(
        inputs=vocabulary.map.shape[1],
        bias=vocabulary.bias,
        lacks=address(vocabulary.lacks),
        table=vocabulary.table.data_ptr(),
        map=vocabulary.map.data_ptr(),
    )


def _text_tokens_of(root: DraftRoot) -> ctypes._Pointer[c.TextTokens] | None:
    """What the library is told of a root's text tokens; the root keeps them alive."""
    if root.text_tokens is None:
        return None
    tokens, rows = root.text_tokens.buffers
    return ctypes.pointer(
        c.TextTokens(
            vocabulary=ctypes.pointer(told_of(root.text_tokens.vocabulary)),
            count=len(root.text_tokens),
            room=len(tokens),
            tokens=address(tokens),
            rows=rows.data_ptr(),
        )
    )


def _all_text_tokens(roots: Sequence[DraftRoot]) -> list[TextTokens]:
    return [root.text_tokens for root in roots if root.text_tokens is not None]
