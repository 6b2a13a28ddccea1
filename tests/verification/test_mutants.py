"""Wrong rules that look right: each must be killed by the checks that the production rules pass.

A mutant changes one thing, by replacing a small function or by handing the checks a wrong drafter, noise or law.
"Residual not normalised" is not among them: drawing by argmin of E / weights is the same either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from law_checks import (
    TOLERANCE,
    CrowdNoise,
    committed_model,
    goodness,
    path_model,
    random_logits,
    sampled_outputs,
)

from headstart.common.enumerations import VerifyRule
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.history import PathHistory, TokenHistory
from headstart.sampling.noise import SequenceNoise, Stream
from headstart.sampling.params import SamplingParams
from headstart.verification import algebra, tree, verify
from headstart.verification.base import Verdict
from headstart.verification.block import judge_block
from headstart.verification.chain import judge_chain
from headstart.verification.draws import draws_by_parent
from headstart.verification.tree import verify_draws
from headstart_lab.audit.cases import constant_model, draft_chain, draft_guesses, draft_tree, random_model
from headstart_lab.audit.oracle import ModelLaws, NoiseReusedError, largest_error, output_law, product_law, run_round

PAIRS = [(random_model(3, seed), random_model(3, seed + 1)) for seed in (91, 94, 97)]
"""Targets and draft models: one instance can hide a fault."""
TRIALS = 60_000
PENALISED = SamplingParams(presence_penalty=1.5, repetition_penalty=1.2)
BANNING = SamplingParams(banned_sequences=((0, 0), (0, 1, 2), (1, 0)))
LOGITS = random_logits(4, 93)


# The checks: True where nothing is wrong.


def oracle(propose, rule=VerifyRule.AUTO, *, length=3, pairs=PAIRS, expected=None, verify=verify.verify) -> bool:
    """``propose``: draft model -> drafter. ``expected``: what is said, where it is not the target itself."""
    for target, draft in pairs:
        try:
            law = output_law(target, propose(draft), length, rule=rule, verify=verify).probs
        except NoiseReusedError:
            return False
        if largest_error(law, product_law(expected or target, length)) > TOLERANCE:
            return False
    return True


def two_draws(draft):
    return draft_chain(draft, 2)


def chain(propose=two_draws, **changes) -> bool:
    return oracle(propose, VerifyRule.REJECTION, **changes)


def block() -> bool:
    return oracle(two_draws, VerifyRule.BLOCK)


def several_draws() -> bool:
    return oracle(lambda draft: draft_tree(draft, [3]), length=2)


def distinct_draws() -> bool:
    return oracle(lambda draft: draft_tree(draft, [2], replaced=False), length=2)


def mixed_draws(**changes) -> bool:
    return oracle(lambda draft: draft_tree(draft, [1, 1], extras=[0]), **changes)


def guesses(**changes) -> bool:
    return oracle(lambda draft: draft_guesses((0, 1), (0, 2), (1, 1)), length=2, **changes)


def penalties() -> bool:
    target, expected = path_model(LOGITS, 4, PENALISED), committed_model(LOGITS, 4, PENALISED)
    return oracle(lambda draft: draft_guesses((0, 0), (1, 0)), pairs=[(target, target)], expected=expected)


def banned_sequences() -> bool:
    target, expected = path_model(LOGITS, 4, BANNING), committed_model(LOGITS, 4, BANNING)
    propose = [draft_guesses((0, 1), (0, 0), (1, 0)), draft_tree(random_model(4, 95), [2, 1])]
    pairs = [(target, target)]
    return all(oracle(lambda draft, tree=tree: tree, pairs=pairs, expected=expected) for tree in propose)


def sampled(noise=CrowdNoise, rule=VerifyRule.REJECTION) -> bool:
    target, draft = PAIRS[0]
    outputs = sampled_outputs(target, two_draws(draft), 3, TRIALS, noise=noise(), rule=rule)
    return goodness(outputs, product_law(target, 3)) > 1e-6


def samples_apart(noise=CrowdNoise) -> bool:
    target, draft = PAIRS[0]
    both = [sampled_outputs(target, two_draws(draft), 1, TRIALS, noise=noise(sample)) for sample in (0, 1)]
    single = product_law(target, 1)
    law = {first + second: p * q for first, p in single.items() for second, q in single.items()}
    return goodness(np.concatenate(both, axis=1), law) > 1e-6


def boundary() -> bool:
    """A uniform of exactly 0 keeps no token that the target forbids."""

    class Zero(SequenceNoise):
        def uniform(self, stream, root, index):
            return 0.0

    target = constant_model(0.0, 1.0)
    return all(
        run_round(target, draft_chain(constant_model(1.0, 0.0), 2), Zero(0), (), rule=rule) == (1,)
        for rule in (VerifyRule.REJECTION, VerifyRule.BLOCK)
    )


def lenient_bound() -> bool:
    target, draft, lenience = constant_model(0.5, 0.5), constant_model(0.95, 0.05), 0.6
    law = output_law(target, draft_chain(draft, 1), 1, lenience=lenience).probs
    return all(probability <= 0.5 / lenience + TOLERANCE for probability in law.values())


CHECKS = [
    chain, block, several_draws, distinct_draws, mixed_draws, guesses, penalties, sampled, samples_apart, boundary,
    lenient_bound,
]  # fmt: skip


# The mutants' parts.


def judge_residual_from_next_row(chain, target, laws, noise, root_position):
    kept, left = judge_chain(chain, target, laws, noise, root_position)
    if kept + 1 < len(chain):
        left = algebra.residual(target if kept == 0 else laws.probs(chain[kept - 1].node), chain[kept + 1].law)
    return kept, left


def judge_bonus_from_draft(chain, target, laws, noise, root_position):
    kept, left = judge_chain(chain, target, laws, noise, root_position)
    return kept, chain[-1].law if kept == len(chain) else left


def judge_bonus_after_reject(chain, target, laws, noise, root_position):
    kept, left = judge_chain(chain, target, laws, noise, root_position)
    return (kept, left) if kept == len(chain) else (kept + 1, laws.probs(chain[kept].node))


def judge_block_until_failure(chain, target, laws, noise, root_position):
    weight, kept, kept_weight, kept_target = 1.0, 0, 1.0, target
    for i, draw in enumerate(chain, 1):
        weight = algebra.block_weight(weight, float(target[draw.token]), float(draw.law[draw.token]))
        target = laws.probs(draw.node)
        chance = algebra.block_acceptance(weight, target, chain[i].law) if i < len(chain) else weight
        if not noise.uniform(Stream.ACCEPT, root_position, draw.index) < chance:
            break
        kept, kept_weight, kept_target = i, weight, target
    if kept == len(chain):
        return kept, kept_target
    return kept, algebra.residual(kept_weight * kept_target, chain[kept].law)


def merge_duplicates(tree):
    return {
        parent: list({draw.node: draw for draw in reversed(draws)}.values())[::-1]
        for parent, draws in draws_by_parent(tree).items()
    }


def try_draws_against_p(draws, target, noise, root_position, *, replaced, lenience=1.0):
    left = target
    for draw in draws:
        uniform = noise.uniform(Stream.ACCEPT, root_position, draw.index)
        if algebra.accepts(uniform, float(target[draw.token]), float(draw.law[draw.token])):
            return draw.node, target
        left = algebra.residual(left, draw.law)
    return None, left


def try_draws_q_first(draws, target, noise, root_position, *, replaced, lenience=1.0):
    draft = draws[0].law
    for draw in draws:
        uniform = noise.uniform(Stream.ACCEPT, root_position, draw.index)
        if algebra.accepts(uniform, float(target[draw.token]), float(draft[draw.token])):
            return draw.node, target
        draft = algebra.without(draft, draw.token)
        target = algebra.residual(target, draft)
    return None, target


def zero_without_renormalising(law, token):
    rest = law.clone()
    rest[token] = 0
    return rest


def pruned(draft):
    """The last draw is dropped where the draft itself found it improbable."""

    def propose(noise, root_position, tokens):
        tree = draft_chain(draft, 2)(noise, root_position, tokens)
        keep = int(tree.draft_probs[1, tree.tokens[1]] > 0.4) + 1
        return DraftTree.chain(tree.tokens[:keep], tree.draft_probs[:keep])

    return propose


def another_temperature(draft):
    """draft_probs of another temperature than the one drawn at."""

    def propose(noise, root_position, tokens):
        tree = draft_chain(draft, 2)(noise, root_position, tokens)
        flat = tree.draft_probs.sqrt()
        return replace(tree, draft_probs=flat / flat.sum(dim=1, keepdim=True))

    return propose


def sharpened_target(tree, laws, noise, root_position, rule, lenience):
    class Sharpened(ModelLaws):
        def __init__(self):
            self.greedy = False

        def probs(self, node):
            law = laws.probs(node) ** 2
            return law / law.sum()

    return verify.verify(tree, Sharpened(), noise, root_position, rule, lenience)


def rule_by_final_shape(tree, laws, noise, root_position, rule, lenience):
    is_chain = tree.is_chain and len(tree.draws.nodes) == len(tree)
    return verify_draws(tree, laws, noise, root_position, judge_block if is_chain else judge_chain)


def longest_of_independent_paths(tree, laws, noise, root_position, rule, lenience):
    """Every leaf's path is checked with target samples of its own; the longest wins."""
    leaves = [node for node in range(len(tree)) if node not in tree.children]
    best = Verdict((), -1)
    for leaf in leaves:
        path, parent = [], ROOT
        for node in tree.path_to(leaf):
            token = noise.draw(Stream.ACCEPT, root_position, 100 * leaf + node, laws.probs(parent))
            if token != tree.tokens[node]:
                break
            path.append(node)
            parent = node
        if len(path) >= len(best.path):
            best = Verdict(tuple(path), noise.draw(Stream.BONUS, root_position, leaf, laws.probs(parent)))
    return best


def position_without_depth(self, node):
    law = self.probs(node).numpy()
    return self._noise.draw_at(self._root_position + 1, len(law), law)


class ResidualSharesDraftNoise(CrowdNoise):
    def rows(self, stream, position, index, vocab_size):
        if stream is Stream.RESIDUAL:
            stream = Stream.DRAFT
        return super().rows(stream, position, index, vocab_size)


class AcceptSharesDraftNoise(CrowdNoise):
    def uniforms(self, stream, root, index):
        return np.exp(-self.rows(Stream.DRAFT, root, index, 1)[:, 0])


class SameNoiseEveryRound(CrowdNoise):
    def uniforms(self, stream, root, index):
        return super().uniforms(stream, 0, index)

    def rows(self, stream, position, index, vocab_size):
        return super().rows(stream, position if stream is Stream.TARGET else 0, index, vocab_size)


class SampleIgnored(CrowdNoise):
    def __init__(self, sample: int = 0) -> None:
        super().__init__(0)


@dataclass(frozen=True)
class Mutant:
    name: str
    check: Callable[[], bool]
    where: object = None
    what: str = ""
    replacement: object = None


MUTANTS = [
    Mutant("p and q swapped", chain, algebra, "accepts", lambda u, p, q, lenience=1.0: u * p < q),
    Mutant("residual from p", chain, algebra, "residual", lambda p, q: p),
    Mutant("residual from the next row", chain, verify, "judge_chain", judge_residual_from_next_row),
    Mutant("bonus from q", chain, verify, "judge_chain", judge_bonus_from_draft),
    Mutant("bonus after a rejection", chain, verify, "judge_chain", judge_bonus_after_reject),
    Mutant("block weight without min", block, algebra, "block_weight", lambda w, p, q: w * p / q),
    Mutant("block accepts with w", block, algebra, "block_acceptance", lambda w, p, q: w),
    Mutant("block stops at the first failure", block, verify, "judge_block", judge_block_until_failure),
    Mutant(
        "block residual without w", block, algebra, "residual", lambda p, q: (p / p.sum() - q).clamp(min=0) + 1e-300
    ),
    Mutant("duplicates merged", several_draws, tree, "draws_by_parent", merge_duplicates),
    Mutant("p not updated between draws", several_draws, tree, "try_draws", try_draws_against_p),
    Mutant("q not renormalised", distinct_draws, algebra, "without", zero_without_renormalising),
    Mutant("q updated before p", distinct_draws, tree, "try_draws", try_draws_q_first),
    Mutant("a drawn token pruned", lambda: chain(propose=pruned)),
    Mutant("q of another temperature", lambda: chain(propose=another_temperature)),
    Mutant("temperature twice", lambda: chain(verify=sharpened_target)),
    Mutant("rule chosen by values not judged yet", lambda: mixed_draws(verify=rule_by_final_shape)),
    Mutant("longest of independent paths", lambda: guesses(verify=longest_of_independent_paths)),
    Mutant("position without depth", guesses, ModelLaws, "sample", position_without_depth),
    Mutant(
        "penalties without the path", penalties, TokenHistory, "along", lambda self, path=(): PathHistory(self, ())
    ),
    Mutant(
        "penalties with a sibling", penalties, TokenHistory, "along",
        lambda self, path=(): PathHistory(self, (*path, 1) if path else ()),
    ),
    Mutant(
        "banned sequences without the path", banned_sequences, PathHistory, "tail",
        lambda self, length: self._base.output[-length:],
    ),
    Mutant(
        "banned sequences through a sibling", banned_sequences, PathHistory, "tail",
        lambda self, length: ([*self._base.output, 0, *self._path])[-length:],
    ),
    Mutant("residual shares the draft's noise", lambda: sampled(ResidualSharesDraftNoise)),
    Mutant("accept shares the draft's noise", lambda: sampled(AcceptSharesDraftNoise)),
    Mutant("noise reused over rounds", lambda: sampled(SameNoiseEveryRound, VerifyRule.BLOCK)),
    Mutant("sample index ignored", lambda: samples_apart(SampleIgnored)),
    Mutant("not strict at p = 0", boundary, algebra, "accepts", lambda u, p, q, lenience=1.0: u * q <= p),
    Mutant("lenient residual from p", lenient_bound, algebra, "residual", lambda p, q: p),
]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_production_passes(check):
    assert check()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant, monkeypatch):
    if mutant.where is not None:
        assert hasattr(mutant.where, mutant.what)
        monkeypatch.setattr(mutant.where, mutant.what, mutant.replacement)
    assert not mutant.check()
