from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from drafting_toys import ToySequence
from scipy.stats import chisquare

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, SpeculationParams
from headstart.drafting.context import DraftContext
from headstart.drafting.registry import create_drafter
from headstart.errors import ConfigError
from headstart.passes.draft_tree import DraftTree, TreeLaw
from headstart.sampling.noise import SequenceNoise

BUDGET = DraftBudget(9, 9)


class Letters:
    """A tokenizer of lower-case text: a is 0."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text if letter.isalpha()]


def propose(name: str, sequence: ToySequence, vocab_size: int = 6, **options: object) -> DraftTree:
    drafter = create_drafter(name, DraftContext(vocab_size, tokenizer=Letters()), **options)
    drafter.begin(sequence)
    return drafter.propose([sequence], [BUDGET])[0]


def test_unigram_repeats_the_most_frequent_token() -> None:
    assert propose("unigram", ToySequence(1, [1, 2, 2, 3, 1, 2])).tokens.tolist() == [2, 2, 2]


def test_bigram_chains_the_most_frequent_successors() -> None:
    assert propose("bigram", ToySequence(1, [1, 2, 1, 3, 1, 2, 4, 5, 1])).tokens.tolist() == [2, 4, 5]


def test_bigram_ends_where_nothing_is_known() -> None:
    assert propose("bigram", ToySequence(1, [1, 2, 3, 1])).tokens.tolist() == [2, 3, 1]
    assert len(propose("bigram", ToySequence(1, [1, 2, 3]))) == 0


def test_of_equal_counts_the_latest_wins() -> None:
    assert propose("unigram", ToySequence(1, [3, 1, 1, 3]), draft_tokens=1).tokens.tolist() == [3]
    assert propose("bigram", ToySequence(1, [0, 3, 0, 1, 0]), draft_tokens=1).tokens.tolist() == [1]


def test_a_corpus_is_counted_before_the_sequence(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("ababab", encoding="utf-8")
    assert propose("bigram", ToySequence(1, [0]), corpus=str(corpus)).tokens.tolist() == [1, 0, 1]
    assert propose("unigram", ToySequence(1, [5]), corpus=str(corpus), draft_tokens=1).tokens.tolist() == [1]
    # The sequence adds to it: b is followed by a twice, by c three times now.
    followed_by_c = ToySequence(1, [1, 2, 1, 2, 1, 2, 0, 1])
    assert propose("bigram", followed_by_c, corpus=str(corpus), draft_tokens=1).tokens.tolist() == [2]


def test_a_sequence_does_not_change_the_corpus(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("ab", encoding="utf-8")
    drafter = create_drafter("bigram", DraftContext(6, tokenizer=Letters()), corpus=str(corpus), sample=True)
    drafter.begin(ToySequence(1, [0, 3, 0, 3, 0]))
    sequence = ToySequence(2, [0])
    drafter.begin(sequence)
    tree = drafter.propose([sequence], [BUDGET])[0]
    assert tree.draft_probs is not None
    assert tree.draft_probs.tolist() == [[0, 1, 0, 0, 0, 0]]


def test_an_unreadable_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.txt"):
        propose("unigram", ToySequence(1, [0]), corpus=str(tmp_path / "nowhere.txt"))


def test_a_corpus_needs_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        create_drafter("unigram", DraftContext(6), corpus=str(tmp_path / "corpus.txt"))


LAWS = {
    "unigram": ([1, 2, 2, 3, 1, 2, 0, 3], [1 / 8, 2 / 8, 3 / 8, 2 / 8, 0, 0]),
    "bigram": ([1, 2, 1, 3, 1, 2, 4, 5, 1], [0, 0, 2 / 3, 1 / 3, 0, 0]),
    "random": ([1], [1 / 6] * 6),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", LAWS)
def test_a_sampled_draft_is_drawn_from_the_law_it_hands_on(name: str) -> None:
    tokens, law = LAWS[name]
    drawn: Counter[int] = Counter()
    drafter = create_drafter(name, DraftContext(6), sample=True)
    for seed in range(1500):
        sequence = ToySequence(seed, tokens, noise=SequenceNoise(seed))
        drafter.begin(sequence)
        tree = drafter.propose([sequence], [BUDGET])[0]
        drafter.end(seed)
        assert tree.law is TreeLaw.SAMPLED
        assert tree.draft_probs is not None
        assert np.allclose(tree.draft_probs[0].numpy(), law, rtol=0, atol=1e-15)
        drawn[int(tree.tokens[0])] += 1
    support = [token for token, share in enumerate(law) if share]
    assert set(drawn) == set(support)
    expected = [1500 * law[token] for token in support]
    assert chisquare([drawn[token] for token in support], expected).pvalue > 1e-3


def test_each_guess_and_each_root_has_noise_of_its_own() -> None:
    noise = SequenceNoise(5)
    drafts = [
        tuple(propose("random", ToySequence(1, [0] * length, noise=noise), 1000, sample=sample).tokens.tolist())
        for length in range(1, 21)
        for sample in (False, True)
    ]
    assert len({token for draft in drafts for token in draft}) > 100
    assert len(set(drafts)) == len(drafts)


@pytest.mark.parametrize("name", LAWS)
def test_a_coupled_draft_uses_the_noise_of_the_target(name: str) -> None:
    """Where the draft's law is the target's, the coupled draft is the target's own choice at every position."""
    tokens, _ = LAWS[name]
    coupled = SpeculationParams(verify=VerifyRule.COUPLED)
    for seed in range(20):
        noise = SequenceNoise(seed)
        sequence = ToySequence(1, tokens, speculation=coupled, noise=noise)
        tree = propose(name, sequence, sample=True)
        assert tree.law is TreeLaw.POINT_MASS
        plain = propose(name, ToySequence(1, tokens, noise=noise), sample=True)
        assert plain.draft_probs is not None
        first = noise.draw_at(len(tokens), 6, plain.draft_probs[0].numpy())
        assert int(tree.tokens[0]) == first


@pytest.mark.parametrize("name", LAWS)
def test_options_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="draft_tokens"):
        propose(name, ToySequence(1, [0]), draft_tokens=0)
