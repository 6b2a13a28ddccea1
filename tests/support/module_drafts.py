"""Drafts of multi-token modules, pass by pass, whoever computes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headstart.backends.native.module_chain import NativeModuleChain
from headstart.backends.native.module_pass import NativeModulePass
from headstart.backends.native.precision import Precision
from headstart.drafting.heads.head_pass import DraftCache, DraftRows, ModulesPass
from headstart.drafting.heads.tables import TargetTables
from headstart.models.multi_token_modules import MultiTokenModules

LENGTHS = (70, 5)
"""Of the texts."""


def native_pass(
    modules: MultiTokenModules, tables: TargetTables, precision: Precision, isa: str, threads: int = 1
) -> NativeModulePass | NativeModuleChain:
    kind = NativeModulePass if len(modules.modules) == 1 else NativeModuleChain
    return kind(modules, tables, precision, threads=threads, isa=isa)


def whole_draft(running: ModulesPass, hidden: int, which: Sequence[int] = (0, 1), chunks: int = 1) -> list[Tensor]:
    """What modules answer of some texts side by side, [text] states and logits of all passes: prompts in chunks, three
    levels of three beams that go on from what was said, a rejection, and another draft."""
    caches: list[DraftCache] = [running.new_cache() for _ in which]
    answers: list[list[Tensor]] = [[] for _ in which]
    for chunk in range(chunks):
        tokens, features, parts = [], [], []
        for cache, i in zip(caches, which, strict=True):
            rng, rows = np.random.default_rng(i), np.array_split(np.arange(LENGTHS[i]), chunks)[chunk]
            tokens.append(rng.integers(0, 90, LENGTHS[i]).astype(np.int32)[rows])
            features.append(torch.from_numpy(rng.normal(size=(LENGTHS[i], hidden))[rows]).float())
            parts.append(DraftRows(cache, len(rows)))
        states, logits = running.read(np.concatenate(tokens), torch.cat(features), parts)
    for _ in range(2):
        before = [state[None] for state in states]
        for own, *said in zip(answers, states, logits, strict=True):
            own += said
        for level in range(3):
            parents = [0, 0, 0] if level == 0 else [0, 0, 1]
            paths = [_path(level, beam) for beam in range(3)]
            groups = [DraftRows(cache, 3, np.array(paths, dtype=np.int32)) for cache in caches]
            tokens = [np.random.default_rng([i, level]).integers(0, 90, 3).astype(np.int32) for i in which]
            made, said_of = running.step(np.concatenate(tokens), torch.cat([own[parents] for own in before]), groups)
            before = list(made.split(3))
            for own, state, said in zip(answers, before, said_of.split(3), strict=True):
                own += [state, said]
        for cache, i in zip(caches, which, strict=True):
            cache.truncate(LENGTHS[i])
    return [torch.cat([part.float().flatten() for part in own]) for own in answers]


def _path(level: int, beam: int) -> list[int]:
    above = [] if level == 0 else _path(level - 1, [0, 0, 1][beam])
    return [*above, 3 * level + beam]


def distance(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    return max(float((g - w).norm() / w.norm()) for g, w in zip(got, wanted, strict=True))
