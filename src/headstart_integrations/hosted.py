"""A drafter as the guest of another engine, which verifies its guesses and tells it the tokens that came of them.

An engine's requests become sequences: ``begin``, then ``propose`` and ``extend`` in turn, then ``end``. What a drafter
would be told of the target's passes beyond tokens is not there, so that only some drafters can be hosted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import count

import numpy as np

from headstart.drafting.base import DraftBudget, RoundOutcome, SpeculationParams
from headstart.drafting.context import DraftContext, TextEncoder
from headstart.drafting.options import parse_drafter
from headstart.drafting.registry import (
    checked_options,
    create_drafter,
    default_for,
    drafter_options,
    hosted_drafters,
    is_drafter,
)
from headstart.engine.pool import DrafterPool
from headstart.errors import ConfigError, meant
from headstart.passes.batch import EncoderInput
from headstart.passes.draft_tree import ROOT, DraftTree, TreeLaw
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams

VARIABLE = "HEADSTART_DRAFTER"
"""Environment variable that names the drafter where the engine's own configuration does not."""
SHARED_TOKENS = 100_000
"""Output tokens of earlier requests that a drafter keeps, if it can and nobody says how many (some 70 MB)."""
MOST_TOKENS = 1_000_000
"""Tokens of all sequences that are followed at once (0.7 GB with the hungriest drafter)."""

_GREEDY = SamplingParams(temperature=0)
_WITHOUT = SpeculationParams(enabled=False)
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class HostedSequence:
    """A request of the engine, as a drafter sees it (``SequenceView``)."""

    id: int
    tokens: list[int]
    """Prompt and output so far. The last one is the root of the next draft."""
    prompt_length: int
    speculation: SpeculationParams
    draft: DraftTree = field(default_factory=DraftTree.empty)
    """The last one that was proposed."""
    params: SamplingParams = _GREEDY
    """Guesses are the likeliest tokens, whatever the engine samples with: it verifies them as point masses."""
    noise: SequenceNoise = field(default_factory=lambda: SequenceNoise(0))
    source: EncoderInput | None = None
    """Engines show nothing of what an encoder reads."""


def drafter_of(given: object) -> tuple[str, dict[str, object]]:
    """Name and options of the drafter that an engine's configuration asks for.

    Args:
        given: ``name`` or ``name:option=value``, or ``{"drafter": name, option: value}``; None: the environment
            variable ``HEADSTART_DRAFTER``, or the default.

    Raises:
        ConfigError: it is neither.
    """
    if given is None:
        given = os.environ.get(VARIABLE) or default_for("engine")
    if isinstance(given, Mapping):
        options = {str(key): value for key, value in given.items()}
        name = options.pop("drafter", default_for("engine"))
        if isinstance(name, str):
            return name, options
    elif isinstance(given, str):
        return parse_drafter(given)
    raise ConfigError(
        f'headstart is {given!r:.60}; give "name:option=value" or {{"drafter": "name", "option": value}}.'
    )


class HostedDrafter:
    """One of Headstart's drafters, for an engine that verifies.

    A fault of the drafter ends its guesses for the sequences that met it, and after three of them for all; the engine
    goes on without. Calls come from one thread.

    Args:
        name: of the drafter.
        options: its own. ``draft_tokens`` is the engine's where it is left out; earlier requests' outputs are kept
            (``SHARED_TOKENS``) by drafters that can, unless they are told otherwise.
        vocab_size: of the target.
        draft_tokens: of a path at most.
        tree_nodes: of a tree at most.
        tokenizer: the target's, for a drafter that reads texts.

    Raises:
        ConfigError: there is no such drafter, it needs more than tokens, or it refuses an option.
        CheckpointError: a file that an option names is missing or damaged.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, object],
        *,
        vocab_size: int,
        draft_tokens: int,
        tree_nodes: int,
        tokenizer: TextEncoder | None = None,
    ) -> None:
        if name not in hosted_drafters():
            why = "cannot guess inside another engine, which hands out tokens alone"
            fault = f"drafter {name!r} {why}" if is_drafter(name) else f"there is no drafter {name!r:.60}"
            raise ConfigError(f"{fault}; {meant(name, hosted_drafters())}")
        known = {field.name for field in fields(drafter_options(name))}
        usual = {"draft_tokens": draft_tokens, "shared_tokens": SHARED_TOKENS}
        wanted = {key: value for key, value in usual.items() if key in known} | dict(options)
        context = DraftContext(vocab_size, tokenizer=tokenizer)
        drafter = create_drafter(name, context, **checked_options(name, more=wanted))
        self.name = name
        self._budget = DraftBudget(tree_nodes, draft_tokens)
        self._wants_top_ids = drafter.needs.top_ids > 0
        self._pool = DrafterPool({name: drafter}, name, tolerant=True)
        self._ids = count()
        self._held = 0
        self._told: set[str] = set()

    def begin(self, prompt: Sequence[int]) -> HostedSequence:
        """A request has read its prompt."""
        full = self._held + len(prompt) > MOST_TOKENS
        if full:
            self._tell_once(f"over {MOST_TOKENS} tokens are being followed: further requests are not guessed for.")
        wishes = _WITHOUT if full else SpeculationParams()
        sequence = HostedSequence(next(self._ids), list(prompt), len(prompt), wishes)
        self._held += len(prompt)
        self._pool.begin(sequence)
        return sequence

    def extend(self, sequence: HostedSequence, committed: Sequence[int]) -> None:
        """The engine has made tokens final: guesses that it accepted, then its own."""
        draft, path, node = sequence.draft, [], ROOT
        for token in committed[:-1]:
            child = draft.child_with(node, token)
            if child is None:
                break
            path.append(token)
            node = child
        root, first = sequence.tokens[-1], len(sequence.tokens) - 1
        sequence.tokens.extend(committed)
        sequence.draft = DraftTree.empty()
        self._held += len(committed)
        # Of rejected guesses nothing is known but that they were; the rows that stay say what came after each.
        after = np.array(committed[: len(path) + 1], dtype=np.int64)[:, None] if self._wants_top_ids else None
        self._pool.observe(
            [
                RoundOutcome(
                    sequence,
                    first_position=first,
                    row_tokens=np.array([root, *path], dtype=np.int32),
                    draft=DraftTree.chain(path),
                    accepted=tuple(range(len(path))),
                    committed=tuple(committed),
                    top_ids=after,
                )
            ]
        )

    def propose(self, sequences: Sequence[HostedSequence], depths: Sequence[int]) -> list[DraftTree]:
        """Guesses after the last token of each, all of them point masses.

        Args:
            depths: tokens of a path that each has room for; 0 asks for none.
        """
        most = self._budget
        budgets = [DraftBudget(most.nodes if depth > 0 else 0, max(0, min(depth, most.depth))) for depth in depths]
        trees = self._pool.propose(sequences, budgets)
        for place, tree in enumerate(trees):
            if tree.law is not TreeLaw.POINT_MASS:
                self._tell_once(f"drafter {self.name} draws its guesses, and the engine takes none that are drawn.")
                trees[place] = DraftTree.empty()
            sequences[place].draft = trees[place]
        return trees

    def end(self, sequence: HostedSequence) -> None:
        """The request has left: done, aborted or put off."""
        self._held -= len(sequence.tokens)
        self._pool.end(sequence.id)

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            _log.warning("%s", sentence)


def best_path(tree: DraftTree) -> list[int]:
    """The chain of a tree for an engine that verifies chains: the first, likeliest child of each node."""
    path, node = [], ROOT
    while children := tree.children.get(node):
        node = children[0]
        path.append(tree.token_list[node])
    return path
