"""Random heads on disk, and the target's states that drafters with a head are fed in the contract suite."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch
from mapped_heads import map_rows, output_rows
from toys import ToyBackend, hashed_logits

from headstart.backends.torch.kit import TorchKit
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.drafting.registry import create_drafter
from headstart.models.config import LayerConfig, ModelConfig, RopeConfig
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.multi_token_modules import MultiTokenModule, MultiTokenModules
from headstart.models.weights import AttentionWeights, LayerWeights, MlpWeights
from headstart.passes.batch import TapStates
from headstart.passes.draft_tree import DraftTree
from headstart.passes.runner import ModelRunner
from headstart_lab.methods.lookahead_embeddings.head import LookaheadEmbeddings
from headstart_lab.methods.medusa.head import ParallelConfig, ParallelHeads, ParallelKind
from headstart_train.files.heads import save_head
from headstart_train.first_steps.block import block_config
from headstart_train.first_steps.eagle import eagle_config

HIDDEN = 16
BLOCKS: Mapping[str, Mapping[str, object]] = {
    "dflash": {},
    "windows": {"windows": (3, 0), "causal_windows": True},
    "dflash 2": {"reduced": False, "conv_taps": 2, "conv_group": 4, "selector_rank": 3, "selector_top": 6},
}
"""Block heads that a drafter's option ``model`` may name -> what is special about them."""
BORROWING = "borrowing"
"""Likewise an EAGLE-3 head that says its tokens through the target's output rows."""
DRAFT_IDS = (0, 1, 2, 3, 4, 5, 7, 9, 11)
"""Tokens that the reduced heads can say."""


def head_target(vocab_size: int) -> ModelConfig:
    """A target that heads are made for; it never runs."""
    return ModelConfig(
        family="llama",
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        mlp_size=24,
        max_positions=4096,
        layers=(LayerConfig(),) * 6,
        ropes=(RopeConfig(10000.0, 4),),
    )


def shake(module: torch.nn.Module, seed: int, scale: float = 0.4) -> None:
    """Random parameters that tell every input apart."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale + (parameter.dim() == 1))


def random_tables(vocab_size: int) -> TargetTables:
    generator = torch.Generator().manual_seed(5)
    embedding = torch.randn(vocab_size, HIDDEN, generator=generator)
    return TargetTables(embedding, output_rows(vocab_size, HIDDEN, generator))


def random_eagle(vocab_size: int, variant: str = "eagle3", reduced: bool = True, **changes: object) -> EagleHead:
    config = eagle_config(head_target(vocab_size), variant, len(DRAFT_IDS) if reduced else None)  # type: ignore[arg-type]
    head = EagleHead(replace(config, **changes))  # type: ignore[arg-type]
    shake(head, 11)
    if head.config.reduced:
        head.d2t.copy_(torch.tensor(DRAFT_IDS) - torch.arange(len(DRAFT_IDS)))
        if not head.config.borrows_output:
            map_rows(head, random_tables(vocab_size).head, 0.4)
    return head


def random_parallel(
    vocab_size: int, kind: ParallelKind, reduced: bool = True, own_heads: bool = False
) -> ParallelHeads:
    draft_vocab = len(DRAFT_IDS) if reduced else vocab_size
    config = ParallelConfig(kind, HIDDEN, vocab_size, draft_vocab, slots=3, own_heads=own_heads)
    heads = ParallelHeads(replace(config, reads_token=kind == "medusa"))
    shake(heads, 12)
    if reduced:
        heads.d2t.copy_(torch.tensor(DRAFT_IDS) - torch.arange(len(DRAFT_IDS)))
    return heads


def random_block(vocab_size: int, reduced: bool = True, **changes: object) -> BlockHead:
    config = block_config(head_target(vocab_size), 4, 2, 8, len(DRAFT_IDS) if reduced else None)
    head = BlockHead(replace(config, **changes))  # type: ignore[arg-type]
    shake(head, 14)
    if reduced:
        head.d2t.copy_(torch.tensor(DRAFT_IDS) - torch.arange(len(DRAFT_IDS)))
    return head


def random_modules(vocab_size: int, count: int = 2, **changes: object) -> MultiTokenModules:
    """Multi-token modules of ``head_target``'s own layers."""
    config = head_target(vocab_size)
    generator = torch.Generator().manual_seed(15)

    def matrix(rows: int, columns: int) -> LinearWeights:
        return LinearWeights(torch.randn(rows, columns, generator=generator) * 0.4)

    def norm() -> NormWeights:
        return NormWeights(1 + 0.4 * torch.randn(HIDDEN, generator=generator))

    def module() -> MultiTokenModule:
        heads = config.num_heads * config.head_dim
        qkv = matrix(heads + 2 * config.num_kv_heads * config.head_dim, HIDDEN)
        mlp = MlpWeights(matrix(2 * config.mlp_size, HIDDEN), matrix(HIDDEN, config.mlp_size))
        layer = LayerWeights(AttentionWeights(qkv, matrix(HIDDEN, heads)), mlp, norm(), norm())
        return MultiTokenModule(norm(), norm(), norm(), matrix(HIDDEN, 2 * HIDDEN), layer)

    own = replace(config, layers=config.layers[:count])
    return MultiTokenModules(own, tuple(module() for _ in range(count)), **changes)  # type: ignore[arg-type]


@cache
def _directory(kind: str, vocab_size: int) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="headstart-head-"))
    if kind == "p-eagle":
        save_head(random_eagle(vocab_size, slots=4, mask_token_id=8), directory)
    elif kind == "pass":
        lookahead = LookaheadEmbeddings(3, HIDDEN)
        shake(lookahead, 13)
        save_head(lookahead, directory)
    elif kind in BLOCKS:
        save_head(random_block(vocab_size, **BLOCKS[kind]), directory)  # type: ignore[arg-type]
    elif kind == BORROWING:
        save_head(random_eagle(vocab_size, borrows_output=True), directory)
    elif kind in ("medusa", "blockwise"):
        save_head(random_parallel(vocab_size, kind), directory)  # type: ignore[arg-type]
    else:
        save_head(random_eagle(vocab_size, "eagle3" if kind == "eagle3" else "eagle"), directory)
    return directory


def state_after(context: Sequence[int], tap: int) -> torch.Tensor:
    """float32 [HIDDEN] what a layer shows after a context."""
    return _state_after(tuple(context[-3:]), tap)


@lru_cache(1 << 14)
def _state_after(seen: tuple[int, ...], tap: int) -> torch.Tensor:
    rng = np.random.default_rng([tap + 10, *seen])
    return torch.tensor(rng.normal(size=HIDDEN), dtype=torch.float32)


def with_states(outcome: RoundOutcome, taps: Sequence[int]) -> RoundOutcome:
    """An outcome with the states of its rows."""
    paths: list[list[int]] = []
    before = outcome.sequence.tokens[: outcome.first_position]
    for row, token in enumerate(outcome.row_tokens.tolist()):
        if not outcome.committed:
            above = paths[row - 1] if row else before
        else:
            above = before if row == 0 else paths[int(outcome.draft.parents[row - 1]) + 1]
        paths.append([*above, token])
    hidden = {tap: torch.stack([state_after(path, tap) for path in paths] or [torch.zeros(0)]) for tap in taps}
    return replace(outcome, hidden=TapStates.of(hidden))


def head_context(vocab_size: int, device: str = "cpu") -> DraftContext:
    backend = ToyBackend(vocab_size, hashed_logits(vocab_size))
    if device != "cpu":
        backend.kit = TorchKit(device)
    backend.config = head_target(vocab_size)
    return DraftContext(
        vocab_size=vocab_size,
        runner=ModelRunner(backend, cache_tokens=64, block_size=8),
        lend_tables=lambda: random_tables(vocab_size),
        lend_modules=lambda name: random_modules(vocab_size, {None: 2, "1": 1, "2": 2, "3": 3}[name]),
    )


def head_drafter(
    name: str, vocab_size: int, options: Mapping[str, object], directory: Path | None = None, device: str = "cpu"
) -> Drafter:
    """A drafter for the contract suite: its head is random, its target's states are made up for it."""
    precision = {} if name == "pass" else {"precision": "fp32"}
    of_target = {} if name == "mtp" else {"model": str(directory or _directory(name, vocab_size))}
    given = {**of_target, **precision, **options}
    if given.get("model") in (*BLOCKS, BORROWING):
        given["model"] = str(_directory(str(given["model"]), vocab_size))
    return WithTargetStates(create_drafter(name, head_context(vocab_size, device), **given))


class WithTargetStates:
    """A drafter with the states that the contract suite's toy target does not have."""

    def __init__(self, drafter: Drafter) -> None:
        self.needs = drafter.needs
        self.drafter = drafter

    def begin(self, sequence: SequenceView) -> None:
        self.drafter.begin(sequence)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return self.drafter.propose(sequences, budgets)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self.drafter.observe([with_states(outcome, self.needs.taps) for outcome in outcomes if len(outcome.row_tokens)])

    def end(self, sequence_id: int) -> None:
        self.drafter.end(sequence_id)
