"""Heads whose drafts are grown in one call, beside the same heads that are stepped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drafting_toys import ToySequence
from head_toys import head_target, shake
from mapped_heads import map_rows, output_rows
from toys import ToyBackend, hashed_logits

from headstart.drafting.base import DraftBudget, RoundOutcome
from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.growing import CalledGrowth
from headstart.drafting.head_trees.head_drafter import HeadDrafter
from headstart.drafting.head_trees.one_pass import OnePassGrowth
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.drafting.registry import create_drafter
from headstart.models.config import RopeConfig
from headstart.passes.backend import BackendKit
from headstart.passes.batch import TapStates
from headstart.passes.draft_tree import DraftTree
from headstart.passes.runner import ModelRunner
from headstart.sampling.params import SamplingParams
from headstart_train.files.heads import save_head
from headstart_train.first_steps.block import block_config
from headstart_train.first_steps.eagle import eagle_config

VOCAB, DRAFT_VOCAB, HIDDEN, ROUNDS, SLOTS = 77, 45, 96, 4, 6
BLOCKS: Mapping[str, Mapping[str, object]] = {
    "dflash": {},
    "jetspec": {"causal": True, "confidence": True, "own_output": True},
    "dspark": {"root_speaks": True, "markov_rank": 5, "confidence": True, "confidence_reads_token": True},
    "a factor without a confidence": {"markov_rank": 70, "attention_bias": True},
    "windows": {"windows": (7, 0), "causal_windows": True},
    "dflash 2": {"conv_taps": 2, "conv_group": 8, "selector_rank": 5, "selector_top": 11, "draft_vocab_size": VOCAB},
    "dflash 2 that looks back": {
        "conv_taps": 3,
        "conv_group": 3,
        "selector_rank": 70,
        "selector_top": 6,
        "draft_vocab_size": VOCAB,
        "causal": True,
        "confidence": True,
    },
}
EAGLES: Mapping[str, Mapping[str, object]] = {
    "eagle3 of Qwen 3's layers": {"head_norms": True, "fc_norm": False, "norm_before_fc": True},
    "eagle3 with a window": {"windows": (5,), "norm_output": False},
}
VARIANTS = ("eagle3", "eagle2", "p-eagle", *EAGLES, *BLOCKS)
SPEAKING = [variant for variant in VARIANTS if variant != "eagle2"]
REDUCED = [variant for variant in SPEAKING if "draft_vocab_size" not in BLOCKS.get(variant, {})]
TARGET = replace(head_target(VOCAB), hidden_size=HIDDEN, head_dim=32, ropes=(RopeConfig(1000.0, 32),))
GREEDY = SamplingParams(temperature=0)
CASES: Mapping[str, Mapping[str, object]] = {
    "defaults": {},
    "all nodes": {"min_probability": 0.0},
    "narrow and deep": {"min_probability": 0.001, "width": 1, "draft_tokens": 8},
    "odd": {"min_probability": 0.002, "width": 3, "draft_tokens": 7, "tree_nodes": 11},
    "one level": {"min_probability": 0.0, "draft_tokens": 1, "tree_nodes": 2},
    "fewer nodes than a level": {"min_probability": 0.0, "width": 5, "tree_nodes": 3},
    "wider than the vocabulary": {"min_probability": 0.0, "width": 50, "draft_tokens": 2, "tree_nodes": 64},
}


def random_head(variant: str, num_layers: int = 1) -> EagleHead | BlockHead:
    """EAGLE-3's cannot say every token, and says some in another order; P-EAGLE's is such a head, as are blocks'."""
    if variant in BLOCKS:
        changes: dict[str, Any] = dict(BLOCKS[variant])
        if "windows" in changes:
            changes["windows"] = changes["windows"][:num_layers]
        block = BlockHead(replace(block_config(TARGET, SLOTS, num_layers, 6, DRAFT_VOCAB), **changes))
        shake(block, 3, 0.15)
        with torch.no_grad():
            if block.config.markov_rank:
                block.markov_head.markov_w2.weight.mul_(40 / block.config.markov_rank)
            if block.config.confidence:
                block.confidence_head.proj.weight.mul_(0.6)
                block.confidence_head.proj.bias.fill_(-3 if block.config.markov_rank else -1.5)
            if block.config.selector_rank:
                block.candidate_selector.successor_codebook.mul_(60 / block.config.selector_rank)
        if block.config.reduced:
            block.d2t.copy_(draft_ids() - torch.arange(DRAFT_VOCAB))
        if block.config.own_output:
            block.lm_head.weight.data.copy_(tables().head[draft_ids()])
        return block
    reduced = None if variant == "eagle" else DRAFT_VOCAB
    fused = "eagle" if variant == "eagle" else "eagle3"
    masks = {"slots": SLOTS, "mask_token_id": 6} if variant == "p-eagle" else {}
    config = eagle_config(TARGET, fused, reduced, num_layers, **masks)  # type: ignore[arg-type]
    own = dict(EAGLES.get(variant, {}))
    if "windows" in own:
        own["windows"] = (*own["windows"], 0)[:num_layers]  # type: ignore[misc]
    head = EagleHead(replace(config, **own))  # type: ignore[arg-type]
    shake(head, 3, 0.15)
    if head.config.reduced:
        head.d2t.copy_(draft_ids() - torch.arange(DRAFT_VOCAB))
        map_rows(head, tables().head, 0.15)
    return head


def draft_ids() -> torch.Tensor:
    return torch.randperm(VOCAB, generator=torch.Generator().manual_seed(4))[:DRAFT_VOCAB]


def tables() -> TargetTables:
    generator = torch.Generator().manual_seed(2)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    return TargetTables(embedding, output_rows(VOCAB, HIDDEN, generator) * 0.3)


def drafter_of(
    directory: Path,
    variant: str,
    options: Mapping[str, object],
    vocab: int = VOCAB,
    num_layers: int = 1,
    kit: BackendKit | Stepping | None = None,
) -> HeadDrafter:
    """``kit``: what runs its head, None: the native one."""
    save_head(random_head("eagle" if variant == "eagle2" else variant, num_layers), directory)
    backend = ToyBackend(VOCAB, hashed_logits(VOCAB))
    backend.config = TARGET
    if isinstance(kit, Stepping):
        kit.kit = kit.kit or backend.kit
    backend.kit = kit or backend.kit  # type: ignore[assignment]
    context = DraftContext(
        vocab_size=vocab,
        runner=ModelRunner(backend, cache_tokens=64, block_size=8),
        lend_tables=tables,
    )
    name = "dflash" if variant in BLOCKS else "eagle3" if variant in EAGLES else variant
    drafter = create_drafter(name, context, model=str(directory), **options)
    assert isinstance(drafter, HeadDrafter)
    return drafter


class Stepping:
    """A kit whose passes of heads leave whole drafts to the drafter; None: the native kit's."""

    def __init__(self, kit: BackendKit | None) -> None:
        self.kit = kit

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.kit, name)
        if name != "run":
            return found

        def opened(*arguments: object, **wishes: object) -> object:
            running = found(*arguments, **wishes)
            running.growth = lambda *_: None
            return running

        return opened


def called(drafter: HeadDrafter) -> Any:
    """What makes its whole drafts in one call; None: nothing does."""
    growth = drafter.growth.called if isinstance(drafter.growth, OnePassGrowth) else drafter.growth
    return growth.called if isinstance(growth, CalledGrowth) else None


def drafters(
    directory: Path,
    variant: str,
    options: Mapping[str, object],
    vocab: int = VOCAB,
    num_layers: int = 1,
    kit: BackendKit | None = None,
) -> list[HeadDrafter]:
    """One that grows trees in one call, and the same that grows them step by step."""
    both = [drafter_of(directory, variant, options, vocab, num_layers, each) for each in (kit, Stepping(kit))]
    assert called(both[0]) is not None
    assert called(both[1]) is None
    return both


def states(rows: int, drafter: HeadDrafter, seed: Sequence[int]) -> TapStates:
    rng = np.random.default_rng([*seed])
    return TapStates.of({tap: torch.from_numpy(rng.normal(size=(rows, HIDDEN))).float() for tap in drafter.needs.taps})


def rounds(drafter: HeadDrafter, params: Sequence[SamplingParams], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
    """Every tree of a few rounds of several sequences, in which a path made up beforehand is accepted."""
    sequences = []
    for place, own in enumerate(params):
        length = (70, 3, 33)[place % 3]
        tokens = np.random.default_rng(place).integers(0, VOCAB, length).tolist()
        sequences.append(sequence := ToySequence(place, tokens, params=own))
        drafter.begin(sequence)
        chunk = np.array(tokens[:-1], np.int32)
        hidden = states(length - 1, drafter, [place])
        drafter.observe([RoundOutcome(sequence, 0, chunk, DraftTree.empty(), hidden=hidden)])
    found = []
    for turn in range(ROUNDS):
        trees = drafter.propose(sequences, budgets)
        outcomes = []
        for sequence, tree in zip(sequences, trees, strict=True):
            path = tree.path_to(len(tree) // (turn + 1) - 1) if len(tree) >= turn + 1 else []
            root = len(sequence.tokens) - 1
            rows = np.array([sequence.tokens[-1], *tree.tokens], np.int32)
            committed = (*tree.tokens[path].tolist(), turn)
            sequence.tokens.extend(committed)
            hidden = states(len(rows), drafter, [sequence.id, turn])
            outcomes.append(RoundOutcome(sequence, root, rows, tree, tuple(path), committed, hidden=hidden))
        drafter.observe(outcomes)
        found += trees
    return found


def assert_alike(both: Sequence[HeadDrafter], params: Sequence[SamplingParams], budgets: Sequence[DraftBudget]) -> int:
    """The nodes that were compared."""
    grown, stepped = (rounds(drafter, params, budgets) for drafter in both)
    for tree, wanted in zip(grown, stepped, strict=True):
        for part in ("tokens", "parents", "grades"):
            np.testing.assert_array_equal(getattr(tree, part), getattr(wanted, part))
    rows = [[reading.cache.rows for reading in drafter.reader.readings.values()] for drafter in both]
    assert rows[0] == rows[1]
    return sum(map(len, grown))
