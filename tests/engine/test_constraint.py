"""Constrained outputs: what may be said is masked at every node, and guesses change neither the law nor the state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from drafting_toys import Proposing
from toys import LogitsOf, ToyBackend, hashed_logits, run_all, toy_engine, toy_sequence

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SpeculationParams
from headstart.engine.constraint import prune
from headstart.engine.engine import Engine
from headstart.engine.outputs import FinishReason
from headstart.engine.schedule import Limits
from headstart.engine.sequence import Sequence as EngineSequence
from headstart.errors import RequestError
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.history import TokenHistory
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms
from headstart_lab.audit.cases import draft_chain, draft_guesses, draft_tree, random_model
from headstart_lab.audit.oracle import Branches, EnumeratedNoise, Propose, Tokens, enumerate_runs

Allowed = Callable[[Tokens], set[int]]
"""Output so far -> what may follow."""


class ToyLanguage:
    """A constraint that writes down what it was told of committed tokens."""

    def __init__(self, vocab_size: int, allowed: Allowed, too_complex_from: int = 1 << 30) -> None:
        self.said: Tokens = ()
        self._vocab_size = vocab_size
        self._allowed = allowed
        self._too_complex_from = too_complex_from

    def mask(self, path: Sequence[int]) -> np.ndarray:
        if len(self.said) >= self._too_complex_from:
            raise RequestError("this language is too complex.")
        if self.allowed(path) < len(path):
            return np.ones(self._vocab_size, dtype=np.bool_)
        return np.isin(np.arange(self._vocab_size), list(self._allowed((*self.said, *path))))

    def allowed(self, path: Sequence[int]) -> int:
        for count in range(len(path)):
            if path[count] not in self._allowed((*self.said, *path[:count])):
                return count
        return len(path)

    def advance(self, token: int) -> None:
        assert token in self._allowed(self.said)
        self.said += (token,)


def no_repeats(vocab_size: int) -> Allowed:
    """The last token is forbidden, and so is 0 to begin with."""
    return lambda said: set(range(vocab_size)) - set(said[-1:] or [0])


def constrained_law(logits_of: LogitsOf, vocab_size: int, allowed: Allowed, prompt: Tokens, length: int):
    """Texts -> probability: the target's law, masked and renormalised token by token, written out."""
    laws: dict[Tokens, float] = {(): 1.0}
    for _ in range(length):
        longer = {}
        for said, probability in laws.items():
            weights = np.exp(np.asarray(logits_of((*prompt, *said)), dtype=np.float32).astype(np.float64))
            weights *= np.isin(np.arange(vocab_size), list(allowed(said)))
            for token, weight in enumerate(weights / weights.sum()):
                longer[*said, token] = probability * weight
        laws = longer
    return laws


VOCAB, LENGTH = 3, 3
DRAFT = random_model(VOCAB, 71)


@pytest.mark.parametrize(
    ("propose", "rule"),
    [
        pytest.param(draft_chain(DRAFT, 2), VerifyRule.BLOCK, id="block"),
        pytest.param(draft_chain(DRAFT, 2), VerifyRule.REJECTION, id="algorithm 1"),
        pytest.param(draft_tree(DRAFT, [2]), VerifyRule.AUTO, id="two draws"),
        pytest.param(draft_tree(DRAFT, [2], replaced=False, extras=[1]), VerifyRule.AUTO, id="distinct and guesses"),
        pytest.param(draft_guesses((0, 0, 1), (2, 1), (1,)), VerifyRule.AUTO, id="guesses"),
    ],
)
def test_whole_texts_follow_the_masked_law(propose: Propose, rule: VerifyRule) -> None:
    logits_of, allowed = hashed_logits(VOCAB, 9), no_repeats(VOCAB)
    params = SamplingParams(temperature=1.0, max_tokens=LENGTH, seed=0)

    def decode(branches: Branches) -> Tokens:
        engine = toy_engine(ToyBackend(VOCAB, logits_of), Proposing(propose))
        sequence = toy_sequence(engine, [1], params=params, speculation=SpeculationParams(verify=rule))
        sequence.noise = EnumeratedNoise(branches)
        sequence.constraint = ToyLanguage(VOCAB, allowed)
        (output,) = run_all(engine, [sequence])
        return tuple(output)

    law: dict[Tokens, float] = defaultdict(float)
    for probability, output in enumerate_runs(decode):
        law[output] += probability
    expected = constrained_law(logits_of, VOCAB, allowed, (1,), LENGTH)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert max(abs(law[text] - probability) for text, probability in expected.items()) < 1e-12


def naive(logits_of: LogitsOf, prompt: list[int], params: SamplingParams, vocab_size: int, allowed: Allowed):
    transforms, noise = Transforms(params, vocab_size), SequenceNoise(params.seed or 0)
    said: Tokens = ()
    while len(said) < (params.max_tokens or 0):
        logits = torch.tensor(logits_of((*prompt, *said)), dtype=torch.float32)
        logits[[token for token in range(vocab_size) if token not in allowed(said)]] = -torch.inf
        history = TokenHistory(prompt, said).along()
        said += (transforms.sample(logits, noise, len(prompt) + len(said), history),)
    return list(said)


PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5], [4, 4, 4, 4, 4], [0, 1, 2, 3] * 6]


def batch(engine: Engine, params: SamplingParams, language: Allowed) -> list[EngineSequence]:
    """Every prompt, each second one constrained."""
    sequences = [toy_sequence(engine, prompt, sequence_id=i, params=params) for i, prompt in enumerate(PROMPTS)]
    for sequence in sequences[::2]:
        sequence.constraint = ToyLanguage(6, language)
    return sequences


@pytest.mark.parametrize("name", ["none", "ngram", "suffix", "recycling", "lookahead", "copy", "random"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_drafter_says_what_plain_constrained_decoding_says(name: str, temperature: float) -> None:
    logits_of, allowed = hashed_logits(6, 2, order=2, scale=3.0), no_repeats(6)
    params = SamplingParams(temperature=temperature, max_tokens=25, seed=4, top_p=0.95, presence_penalty=0.3)
    languages = [allowed if place % 2 == 0 else lambda said: set(range(6)) for place in range(len(PROMPTS))]
    expected = [naive(logits_of, p, params, 6, language) for p, language in zip(PROMPTS, languages, strict=True)]
    for limits, cache_tokens in [(Limits(), 4096), (Limits(max_rows=6), 72)]:
        engine = toy_engine(ToyBackend(6, logits_of), name, limits=limits, cache_tokens=cache_tokens)
        sequences = batch(engine, params, allowed)
        assert run_all(engine, sequences) == expected
        assert (sum(s.stats.preemptions for s in sequences) > 0) == (cache_tokens == 72)
        for sequence in sequences[::2]:
            # The last token ends the output, and is not followed any further.
            assert sequence.constraint.said == tuple(sequence.output[:-1])  # type: ignore[union-attr]


def test_a_language_that_cannot_be_followed_ends_its_own_sequence_only() -> None:
    logits_of = hashed_logits(6, 2, order=2)
    params = SamplingParams(temperature=0, max_tokens=20)
    engine = toy_engine(ToyBackend(6, logits_of), "ngram")
    sequences = batch(engine, params, lambda said: set(range(6)))
    sequences[0].constraint = ToyLanguage(6, lambda said: set(range(6)), too_complex_from=5)
    sequences[2].constraint = ToyLanguage(6, lambda said: set(range(6)) if len(said) < 3 else set())
    outputs = run_all(engine, sequences)
    assert [s.finish_reason for s in sequences] == [FinishReason.ERROR, FinishReason.LENGTH] * 2
    assert "too complex" in (sequences[0].error or "")
    assert "no token is left" in (sequences[2].error or "")
    everything: Allowed = lambda said: set(range(6))  # noqa: E731
    assert outputs[1::2] == [naive(logits_of, p, params, 6, everything) for p in PROMPTS[1::2]]


def test_pruning_drops_what_is_never_reached_and_keeps_draws() -> None:
    language = ToyLanguage(4, lambda said: {0, 1} if len(said) % 2 == 0 else {2})
    guesses = DraftTree.from_paths([(0, 2, 3), (0, 1, 1), (3, 2), (1,)], 16)
    pruned = prune(guesses, language)
    assert sorted(tuple(pruned.tokens[pruned.path_to(node)]) for node in range(len(pruned))) == [(0,), (0, 2), (1,)]
    assert len(prune(DraftTree.from_paths([(3, 3)], 4), language)) == 0
    rows = torch.full((3, 4), 0.25, dtype=torch.float64)
    chain = prune(DraftTree.chain([0, 3, 1], rows), language)
    assert chain.tokens.tolist() == [0, 3]
    assert chain.draws is not None
    assert chain.draws.nodes.tolist() == [0, 1]
    assert chain.draws.parents.tolist() == [ROOT, 0]
    assert prune(chain, language) is chain
