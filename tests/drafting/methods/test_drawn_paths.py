"""Sampled trees of heads that guess several tokens in one pass: drawn by laws that are told, exact by every rule."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence
from head_toys import head_drafter, random_block
from test_dflash import BUDGET, PROMPT, VOCAB

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SpeculationParams
from headstart.drafting.head_trees.drawn_paths import drawn_tree, fitting_paths, law_of, laws_along
from headstart.errors import ConfigError
from headstart.passes.draft_tree import DraftTree, TreeLaw
from headstart.sampling.noise import SequenceNoise, Stream
from headstart.sampling.params import SamplingParams
from headstart_lab.audit.cases import random_model
from headstart_lab.audit.oracle import Propose, Tokens, largest_error, output_law, product_law
from headstart_train.files.heads import save_head

OPTIONS = {"text_vocabulary": 0, "draws": 3, "tree_nodes": 30}


def proposing(paths: int, depth: int, chained: bool) -> Propose:
    """Draws by made-up laws of each depth after a root, or of each depth and token before."""
    draft = random_model(3, 5, zeros=1)

    @cache
    def law_of_place(tokens: Tokens, slot: int, before: int) -> torch.Tensor:
        return draft((*tokens, slot, before) if chained else (*tokens, slot))

    def propose(noise: SequenceNoise, root_position: int, tokens: Tokens) -> DraftTree:
        law_after = laws_along(lambda slot, before: law_of_place(tokens, slot, before), 0, chained)
        return drawn_tree(noise, root_position, law_after, paths, depth)

    return propose


@pytest.mark.parametrize("rule", [VerifyRule.AUTO, VerifyRule.REJECTION, VerifyRule.BLOCK])
@pytest.mark.parametrize(("paths", "depth", "chained"), [(1, 3, False), (2, 2, False), (3, 1, False), (2, 2, True)])
def test_what_is_said_has_the_targets_law(paths: int, depth: int, chained: bool, rule: VerifyRule) -> None:
    """Enumerated: every draw of the drafter, every acceptance, every residual."""
    target = random_model(3, 31)
    law = output_law(target, proposing(paths, depth, chained), depth + 1, rounds=1, rule=rule)
    assert largest_error(law.probs, product_law(target, depth + 1)) < 1e-12


def test_rounds_in_a_row_have_it_too() -> None:
    target = random_model(3, 32)
    law = output_law(target, proposing(2, 1, False), 3, rounds=2, rule=VerifyRule.AUTO)
    assert largest_error(law.probs, product_law(target, 3)) < 1e-12


def test_depths_share_their_law_and_draws_that_agree_a_node() -> None:
    laws = [torch.tensor([0.6, 0.4, 0.0], dtype=torch.float64), torch.tensor([0.1, 0.0, 0.9], dtype=torch.float64)]
    tree = drawn_tree(SequenceNoise(3), 7, lambda path: laws[len(path)], 5, 2)
    assert tree.law is TreeLaw.SAMPLED
    assert tree.draws is not None
    assert tree.draft_probs is not None
    assert torch.equal(tree.draft_probs, torch.stack(laws))
    assert tree.draws.rows.tolist() == [0, 1] * 5
    assert len(tree) < 10
    drawn = [SequenceNoise(3).draw(Stream.DRAFT, 7, draw, laws[draw % 2]) for draw in range(10)]
    assert tree.tokens[tree.draws.nodes].tolist() == drawn
    assert all(parent == tree.parents[node] for parent, node in zip(tree.draws.parents, tree.draws.nodes, strict=True))


@pytest.mark.parametrize(
    ("wanted", "depth", "nodes", "fit"), [(3, 5, 30, (3, 5)), (3, 5, 7, (3, 2)), (4, 5, 2, (2, 1)), (2, 5, 0, (0, 0))]
)
def test_budgets_are_settled_before_anything_is_drawn(
    wanted: int, depth: int, nodes: int, fit: tuple[int, int]
) -> None:
    assert fitting_paths(wanted, depth, nodes) == fit


def test_a_heads_law_is_the_requests() -> None:
    params = SamplingParams(temperature=0.5, top_k=2)
    row = torch.tensor([1.0, 2.0, 3.0, -torch.inf, 9.0])
    law = law_of(row, torch.tensor([4, 0, 2, 0, 7]), params, 6)
    expected = torch.zeros(6, dtype=torch.float64)
    expected[[0, 2]] = torch.softmax(torch.tensor([4.0, 6.0], dtype=torch.float64), -1)
    torch.testing.assert_close(law, expected)
    nowhere = law_of(torch.full((5,), torch.nan), torch.arange(5), params, 6)
    torch.testing.assert_close(nowhere, torch.full((6,), 1 / 6, dtype=torch.float64))


def begin(drafter: Drafter, tokens: list[int], speculation: SpeculationParams, **params: float) -> ToySequence:
    asked = SamplingParams(**{"temperature": 0, **params})  # type: ignore[arg-type]
    sequence = ToySequence(1, list(tokens), params=asked, speculation=speculation, noise=SequenceNoise(11))
    drafter.begin(sequence)
    drafter.observe([RoundOutcome(sequence, 0, np.asarray(tokens[:-1], dtype=np.int32), DraftTree.empty())])
    return sequence


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("block")
    save_head(random_block(VOCAB), directory)
    return str(directory)


@pytest.mark.parametrize("rank", [0, 4])
def test_a_heads_draws_are_by_its_own_rows(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up logits of each slot; with a Markov factor what the token before adds to them, as well."""
    block = random_block(VOCAB, markov_rank=rank)
    save_head(block, tmp_path)
    drafter = head_drafter("dflash", VOCAB, OPTIONS, tmp_path)
    running = drafter.drafter.growth  # type: ignore[attr-defined]
    say, logits = running._say, 2 * torch.randn(1, 9, len(block.target_ids), generator=torch.Generator().manual_seed(4))
    monkeypatch.setattr(running, "_say", lambda drafted, slots: (say(drafted, slots)[0], logits[:, :slots]))
    sequence = begin(drafter, PROMPT, SpeculationParams(), temperature=0.8)
    (tree,) = drafter.propose([sequence], [BUDGET])
    assert tree.law is TreeLaw.SAMPLED
    assert tree.draft_probs is not None
    assert tree.draws is not None
    assert len(tree.draws.nodes) == 3 * block.config.slots
    befores = set()
    for parent, row in zip(tree.draws.parents.tolist(), tree.draws.rows.tolist(), strict=True):
        slot = len(tree.path_to(parent)) if parent >= 0 else 0
        before = int(tree.tokens[parent]) if parent >= 0 else PROMPT[-1]
        said = logits[0, slot]
        if rank:
            with torch.no_grad():
                said = said + block.markov_head.markov_w2(block.said_before(torch.tensor(before)))
        law = torch.zeros(VOCAB, dtype=torch.float64)
        law[block.target_ids] = torch.softmax(said.double() / 0.8, -1)
        torch.testing.assert_close(tree.draft_probs[row], law, atol=1e-6, rtol=1e-5)
        befores.add((slot, before))
    assert len(tree.draft_probs) == (len(befores) if rank else block.config.slots)


def test_masks_draw_too() -> None:
    drafter = head_drafter("p-eagle", VOCAB, {"draws": 2, "tree_nodes": 30})
    sequence = begin(drafter, PROMPT, SpeculationParams(), temperature=0.8)
    (tree,) = drafter.propose([sequence], [DraftBudget(30, 3)])
    assert tree.law is TreeLaw.SAMPLED
    assert tree.draws is not None
    assert len(tree.draws.nodes) == 6


def test_who_does_not_ask_for_draws_gets_point_masses(head: str) -> None:
    drafter = head_drafter("dflash", VOCAB, {"model": head, **OPTIONS})
    for speculation, params in (
        (SpeculationParams(), {"temperature": 0.0}),
        (SpeculationParams(verify=VerifyRule.COUPLED), {"temperature": 0.8}),
        (SpeculationParams(typical=0.1), {"temperature": 0.8}),
    ):
        sequence = begin(drafter, PROMPT, speculation, **params)
        (tree,) = drafter.propose([sequence], [BUDGET])
        assert tree.law is TreeLaw.POINT_MASS
        assert len(tree) > 0


def test_a_batch_may_hold_both(head: str) -> None:
    drafter = head_drafter("dflash", VOCAB, {"model": head, **OPTIONS})
    greedy = begin(drafter, PROMPT[:4], SpeculationParams())
    other = ToySequence(2, list(PROMPT), params=SamplingParams(temperature=0.8), noise=SequenceNoise(11))
    drafter.begin(other)
    drafter.observe([RoundOutcome(other, 0, np.asarray(PROMPT[:-1], dtype=np.int32), DraftTree.empty())])
    trees = drafter.propose([greedy, other], [DraftBudget(12, 4)] * 2)
    assert [tree.law for tree in trees] == [TreeLaw.POINT_MASS, TreeLaw.SAMPLED]
    assert len(trees[1].draws.nodes) == 12  # type: ignore[union-attr]


def test_too_many_draws_are_refused(head: str) -> None:
    with pytest.raises(ConfigError, match="draws is 65; it must be 0 to 64"):
        head_drafter("dflash", VOCAB, {"model": head, "draws": 65})
