"""Which rule serves which tree, both sides of every threshold, and what is never touched."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from law_checks import PROMPT, committed_model, path_model, random_logits

from headstart.common.enumerations import VerifyRule
from headstart.errors import ConfigError
from headstart.passes.draft_tree import ROOT, DraftTree, Draws, TreeLaw
from headstart.sampling.history import TokenHistory
from headstart.sampling.noise import SequenceNoise, Stream
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms
from headstart.verification.base import Verdict
from headstart.verification.draws import draws_by_parent, single_draws
from headstart.verification.verify import verify
from headstart_lab.audit.cases import (
    constant_model,
    draft_chain,
    draft_chains,
    draft_guesses,
    draft_tree,
    random_model,
)
from headstart_lab.audit.oracle import ModelLaws, run_round

TARGET, DRAFT = random_model(4, 61), random_model(4, 62)


class GivenNoise(SequenceNoise):
    """Uniforms and draws written down by hand; what is asked for is kept."""

    def __init__(self, uniforms=(), token: int = 0) -> None:
        super().__init__(0)
        self.uniforms = list(uniforms)
        self.token = token
        self.weights: list[float] | None = None
        self.stream: Stream | None = None

    def uniform(self, stream, root, index):
        assert stream is Stream.ACCEPT
        return self.uniforms.pop(0)

    def draw(self, stream, root, index, weights):
        self.stream, self.weights = stream, weights.tolist()
        return self.token


def chain_of(tokens, rows) -> DraftTree:
    return DraftTree.chain(tokens, torch.tensor(rows, dtype=torch.float64))


def judge(tree, target, noise, rule=VerifyRule.REJECTION, lenience=None, greedy=False) -> Verdict:
    return verify(tree, ModelLaws(target, tree, noise, 0, (), greedy), noise, 0, rule, lenience)


@pytest.mark.parametrize("rule", [VerifyRule.REJECTION, VerifyRule.BLOCK])
def test_one_draw_is_kept_below_its_threshold_and_corrected_from_there_on(rule):
    target, tree = constant_model(0.25, 0.75), chain_of([0], [[0.5, 0.5]])
    below = GivenNoise([math.nextafter(0.5, 0)])
    assert judge(tree, target, below, rule).path == (0,)
    assert (below.stream, below.weights) == (Stream.BONUS, [0.25, 0.75])
    at = GivenNoise([0.5], token=1)
    assert judge(tree, target, at, rule) == Verdict((), 1)
    assert (at.stream, at.weights) == (Stream.RESIDUAL, [0.0, 1.0])


@pytest.mark.parametrize("rule", list(VerifyRule))
def test_an_impossible_token_never_passes_even_at_zero(rule):
    target = constant_model(0.0, 1.0)
    for tree in (chain_of([0], [[0.5, 0.5]]), draft_tree(constant_model(1, 0), [2])(SequenceNoise(0), 0, ())):
        assert judge(tree, target, ZeroNoise(), rule) == Verdict((), 1)
        assert judge(tree, target, ZeroNoise(), rule, lenience=0.1) == Verdict((), 1)


class ZeroNoise(SequenceNoise):
    """The smallest uniform there could be, and a little below it."""

    def __init__(self) -> None:
        super().__init__(0)

    def uniform(self, stream, root, index):
        return 0.0


def test_block_verification_looks_past_a_failed_prefix():
    target, draft = constant_model(0.6, 0.4), [[0.5, 0.5], [0.5, 0.5]]
    tree = chain_of([1, 0], draft)
    # w_1 = 0.8, S_1 = [0.48 - 0.5]+ + [0.32 - 0.5]+ = 0, so h_1 = 0; w_2 = 0.8 * 1.2 = 0.96 = h_2.
    kept = GivenNoise([0.9, 0.95])
    assert judge(tree, target, kept, VerifyRule.BLOCK).path == (0, 1)
    dropped = GivenNoise([0.9, 0.97])
    assert judge(tree, target, dropped, VerifyRule.BLOCK).path == ()
    assert dropped.weights == pytest.approx([1.0, 0.0])
    assert judge(tree, target, GivenNoise([0.9, 0.0]), VerifyRule.REJECTION).path == ()


def test_without_replacement_each_draw_is_judged_by_what_was_left():
    target = constant_model(0.1, 0.2, 0.7)
    row = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    draws = Draws(*np.array([[ROOT, ROOT], [0, 1], [0, 0]], dtype=np.int32))
    tree = DraftTree(
        np.array([0, 1], dtype=np.int32), np.array([ROOT, ROOT], dtype=np.int32),
        TreeLaw.WITHOUT_REPLACEMENT, draws, row,
    )  # fmt: skip
    # After the first rejection p = (0, 0, 1) and q = (0, 0.6, 0.4): token 1 fails at any u, and p stays.
    noise = GivenNoise([0.2, 0.0], token=2)
    assert judge(tree, target, noise) == Verdict((), 2)
    assert noise.weights == pytest.approx([0.0, 0.0, 1.0])


@pytest.mark.parametrize("rule", list(VerifyRule))
def test_the_empty_tree_is_plain_decoding(rule):
    model = committed_model(random_logits(8, 1), 8, SamplingParams())
    for seed in range(20):
        noise = SequenceNoise(seed)
        law = model(())
        said = run_round(model, draft_guesses(), noise, (), rule=rule)
        assert said == (noise.draw_at(1, 8, law.numpy()),)


PROPOSERS = {
    "guesses": draft_guesses((0, 1, 2), (3, 1), (0, 2)),
    "chain": draft_chain(DRAFT, 3),
    "tree": draft_tree(DRAFT, [2, 2]),
    "distinct": draft_tree(DRAFT, [2, 1], replaced=False, extras=[0]),
}


@pytest.mark.parametrize("propose", PROPOSERS.values(), ids=PROPOSERS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_coupled_rule_says_what_plain_decoding_says_token_for_token(propose, temperature):
    banned = ((0, 1), (1, 2, 0), (3, 3))
    params = SamplingParams(temperature=temperature, presence_penalty=0.5, top_k=3, banned_sequences=banned)
    logits = random_logits(4, 5)
    target, plain_target = path_model(logits, 4, params), committed_model(logits, 4, params)
    for seed in range(30):
        noise = SequenceNoise(seed, sample=2)
        plain, fast = (), ()
        while len(plain) < 6:
            plain += run_round(plain_target, draft_guesses(), noise, plain)
        while len(fast) < 6:
            fast += run_round(target, propose, noise, fast, rule=VerifyRule.COUPLED)
        assert fast[:6] == plain


def test_a_gumbel_coupled_drafter_is_accepted_more_than_an_uncoupled_one():
    p, q = constant_model(0.4, 0.3, 0.2, 0.1), constant_model(0.3, 0.4, 0.1, 0.2)

    def coupled(noise, root_position, tokens):
        return DraftTree.chain([noise.draw_at(root_position + 1 + i, 4, q(()).numpy()) for i in range(3)])

    def lengths(propose):
        return sum(len(run_round(p, propose, SequenceNoise(seed), (), rule=VerifyRule.COUPLED)) for seed in range(400))

    assert lengths(coupled) > 1.3 * lengths(draft_chain(q, 3))


def test_walking_reads_only_the_path():
    asked: list[int] = []

    class Recording(ModelLaws):
        def sample(self, node):
            asked.append(node)
            return super().sample(node)

        def probs(self, node):
            if not asked or node != asked[-1]:
                asked.append(node)
            return super().probs(node)

    for propose in PROPOSERS.values():
        for seed in range(10):
            asked.clear()
            noise = SequenceNoise(seed)
            tree = propose(noise, 0, ())
            verdict = verify(tree, Recording(TARGET, tree, noise, 0, ()), noise, 0, VerifyRule.REJECTION)
            assert asked == [ROOT, *verdict.path]


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("lenience", [None, 0.2])
@pytest.mark.parametrize("propose", PROPOSERS.values(), ids=PROPOSERS)
def test_probe_nodes_change_nothing_and_are_never_accepted(propose, lenience, greedy):
    for seed in range(30):
        noise = SequenceNoise(seed)
        tree = propose(noise, 0, ())
        size = len(tree)
        probed = replace(
            tree,
            tokens=np.concatenate((tree.tokens, np.arange(4, dtype=np.int32), [0])).astype(np.int32),
            parents=np.concatenate((tree.parents, [ROOT] * 4, [size])).astype(np.int32),
            probe=np.arange(size + 5) >= size,
        )
        verdicts = [
            verify(each, ModelLaws(TARGET, each, noise, 0, (), greedy), noise, 0, VerifyRule.AUTO, lenience)
            for each in (tree, probed)
        ]
        assert verdicts[0] == verdicts[1] or (lenience and not tree.draws)
        assert all(node < size for node in verdicts[1].path)


def test_paths_go_from_the_root_down_and_tokens_leave_them():
    for propose in (*PROPOSERS.values(), draft_chains([DRAFT, TARGET], 2)):
        for seed in range(40):
            noise = SequenceNoise(seed)
            tree = propose(noise, 0, ())
            verdict = verify(tree, ModelLaws(TARGET, tree, noise, 0, ()), noise, 0)
            parent = ROOT
            for node in verdict.path:
                assert tree.parents[node] == parent
                parent = node
            if verdict.token in [tree.tokens[child] for child in tree.children.get(parent, ())]:
                pytest.fail("a token that a child bears must be accepted, not said")


def test_rules_agree_where_no_draw_stands_alone():
    for seed in range(40):
        said = {
            run_round(TARGET, draft_tree(DRAFT, [2]), SequenceNoise(seed), (), rule=rule)
            for rule in (VerifyRule.AUTO, VerifyRule.BLOCK, VerifyRule.REJECTION)
        }
        assert len(said) == 1


def test_single_draws_form_a_chain_until_a_node_has_several():
    chain = draws_by_parent(draft_chain(DRAFT, 3)(SequenceNoise(0), 0, ()))
    assert [draw.node for draw in single_draws(chain, ROOT)] == [0, 1, 2]
    assert [draw.node for draw in single_draws(chain, 1)] == [2]
    assert single_draws(chain, 2) == []
    forked = draws_by_parent(draft_tree(DRAFT, [1, 2])(SequenceNoise(0), 0, ()))
    assert [draw.node for draw in single_draws(forked, ROOT)] == [0]
    merged = draft_tree(constant_model(1, 0, 0, 0), [2])(SequenceNoise(0), 0, ())
    assert len(merged) == 1
    assert len(draws_by_parent(merged)[ROOT]) == 2
    assert single_draws(draws_by_parent(merged), ROOT) == []
    with pytest.raises(ValueError, match="no draws"):
        draws_by_parent(DraftTree.chain([1, 2]))


def test_verdicts_do_not_depend_on_the_order_of_calls():
    noise = SequenceNoise(3)
    rounds = [(propose, tokens) for propose in PROPOSERS.values() for tokens in ((), (1,), (1, 2))]
    forward = [run_round(TARGET, propose, noise, tokens) for propose, tokens in rounds]
    backward = [run_round(TARGET, propose, noise, tokens) for propose, tokens in reversed(rounds)]
    assert forward == backward[::-1]


@pytest.mark.parametrize("lenience", [0.0, -0.5, 1.01, math.nan])
def test_lenience_outside_its_range_is_refused(lenience):
    with pytest.raises(ConfigError, match=r"lenience .* \(0, 1\]"):
        judge(DraftTree.empty(), TARGET, SequenceNoise(0), lenience=lenience)


def test_path_penalties_act_at_the_node_where_the_path_has_been():
    # The draft repeats token 1; with a strong presence penalty the target would say it once only.
    transforms = Transforms(SamplingParams(temperature=0, presence_penalty=2.0), 4)
    logits, history = torch.tensor([0.0, 1.5, -4.0, -4.0]), TokenHistory(PROMPT)

    def target(tokens):
        return transforms.law(logits, history.along(tokens))

    said = run_round(target, draft_guesses((1, 1, 1)), SequenceNoise(0), (), greedy=True)
    assert said == (1, 0)
