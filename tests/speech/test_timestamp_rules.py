"""Times of speech: transformers' rules, at every node of a draft, whatever was guessed."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from drafting_toys import Proposing
from toys import LogitsOf, ToyBackend, hashed_logits, run_all, toy_engine, toy_sequence
from transformers.generation import SuppressTokensLogitsProcessor, WhisperTimeStampLogitsProcessor

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SpeculationParams
from headstart.engine.output_rules import OutputRules
from headstart.sampling.params import SamplingParams
from headstart_lab.audit.cases import draft_chain, draft_guesses, draft_tree, random_model
from headstart_lab.audit.oracle import Branches, EnumeratedNoise, Propose, Tokens, enumerate_runs
from headstart_speech.timestamp_rules import TimestampRules

VOCAB, END, SILENT, FIRST = 12, 5, 6, 7
"""0 to 4 are text, 7 to 11 times."""


def rules(latest_start: int | None = 2, never: tuple[int, ...] = (3,)) -> TimestampRules:
    return TimestampRules(VOCAB, FIRST, END, SILENT, latest_start, never)


def processed(said: list[int], row: torch.Tensor, latest_start: int | None = 2, never: tuple[int, ...] = (3,)):
    """What transformers makes of a row after the start token and ``said``."""
    settings = SimpleNamespace(
        no_timestamps_token_id=SILENT, eos_token_id=END, bos_token_id=END, max_initial_timestamp_index=latest_start
    )
    ids = torch.tensor([[0, *said]])
    row = SuppressTokensLogitsProcessor(list(never))(ids, row[None].clone()) if never else row[None].clone()
    return WhisperTimeStampLogitsProcessor(settings, begin_index=1)(ids, row)[0]  # type: ignore[arg-type]


def followed(own: TimestampRules, path: list[int], row: torch.Tensor, never: tuple[int, ...] = (3,)) -> torch.Tensor:
    masked = row.masked_fill(~torch.from_numpy(own.mask(path)), -torch.inf)
    return own.weighed(masked, path).index_fill(0, torch.tensor(never, dtype=torch.long), -torch.inf)


@pytest.mark.parametrize("latest_start", [None, 0, 2])
@pytest.mark.parametrize("never", [(), (3,)])
def test_rows_are_those_of_transformers(latest_start: int | None, never: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    weighed = 0
    for _ in range(300):
        said = rng.integers(0, VOCAB, rng.integers(0, 7)).tolist()
        row = torch.from_numpy(rng.normal(0, 2, VOCAB).astype(np.float32))
        expected = processed(said, row, latest_start, never)
        cut = int(rng.integers(0, len(said) + 1))
        own = rules(latest_start, never)
        for token in said[:cut]:
            own.advance(token)
        found = followed(own, said[cut:], row, never)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        weighed += bool((found[:FIRST] == -torch.inf).all()) and bool(own.mask(said[cut:])[:FIRST].any())
    assert weighed > 20


def test_paths_are_allowed_as_far_as_their_masks_say() -> None:
    rng = np.random.default_rng(1)
    lengths = set()
    for _ in range(400):
        own = rules(latest_start=int(rng.integers(0, 3)))
        path = [FIRST, *rng.integers(0, VOCAB, 5).tolist()]
        count = own.allowed(path)
        for place in range(len(path)):
            if not own.mask(path[:place])[path[place]]:
                break
        else:
            place = len(path)
        assert count == place
        lengths.add(count)
    assert len(lengths) > 4


def test_a_models_settings_stand_around_the_rules() -> None:
    own = OutputRules(VOCAB, [FIRST], 4, lambda: 3, rules(latest_start=None))
    assert np.flatnonzero(own.mask([])).tolist() == [8, 9, 10, 11]
    row = torch.zeros(VOCAB)
    torch.testing.assert_close(own.weighed(row, [8, 1]), row)  # the last place is forced, whatever the times weigh
    assert (own.weighed(row, [8])[:FIRST] == -torch.inf).all()


TINY, TINY_END, TINY_SILENT, TINY_FIRST = 5, 1, 2, 3
LENGTH = 3
DRAFT = random_model(TINY, 71)


def tiny_rules() -> TimestampRules:
    return TimestampRules(TINY, TINY_FIRST, TINY_END, TINY_SILENT)


def ruled_law(logits_of: LogitsOf, prompt: Tokens, length: int) -> dict[Tokens, float]:
    """Texts -> probability: the rules applied to the target's law token by token, written out."""
    laws: dict[Tokens, float] = {(): 1.0}
    for _ in range(length):
        longer = {}
        for said, probability in laws.items():
            row = torch.tensor(logits_of((*prompt, *said)), dtype=torch.float32)
            row = row.masked_fill(~torch.from_numpy(tiny_rules().mask(said)), -torch.inf)
            weights = tiny_rules().weighed(row, said).double().exp().numpy()
            for token in np.flatnonzero(weights):
                longer[*said, int(token)] = probability * weights[token] / weights.sum()
        laws = longer
    return laws


@pytest.mark.parametrize(
    ("propose", "rule"),
    [
        pytest.param(draft_chain(DRAFT, 2), VerifyRule.BLOCK, id="block", marks=pytest.mark.thorough),
        pytest.param(draft_tree(DRAFT, [2]), VerifyRule.AUTO, id="two draws", marks=pytest.mark.thorough),
        pytest.param(draft_guesses((3, 0, 4), (4, 0, 0), (3, 1)), VerifyRule.AUTO, id="guesses"),
    ],
)
def test_whole_outputs_follow_the_ruled_law(propose: Propose, rule: VerifyRule) -> None:
    logits_of = hashed_logits(TINY, 4)
    params = SamplingParams(temperature=1.0, max_tokens=LENGTH, seed=0)

    def decode(branches: Branches) -> Tokens:
        engine = toy_engine(ToyBackend(TINY, logits_of), Proposing(propose))
        sequence = toy_sequence(engine, [1], params=params, speculation=SpeculationParams(verify=rule))
        sequence.noise = EnumeratedNoise(branches)
        sequence.constraint = tiny_rules()
        (output,) = run_all(engine, [sequence])
        return tuple(output)

    law: dict[Tokens, float] = defaultdict(float)
    for probability, output in enumerate_runs(decode):
        law[output] += probability
    expected = ruled_law(logits_of, (1,), LENGTH)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert set(law) <= set(expected)
    assert max(abs(law[text] - probability) for text, probability in expected.items()) < 1e-12


@pytest.mark.parametrize("name", ["ngram", "suffix", "recycling", "lookahead", "random"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_drafter_says_what_plain_decoding_says(name: str, temperature: float) -> None:
    logits_of = hashed_logits(VOCAB, 2, order=2, scale=3.0)
    params = SamplingParams(temperature=temperature, max_tokens=30, seed=4)
    outputs = []
    for drafter in ("none", name):
        engine = toy_engine(ToyBackend(VOCAB, logits_of), drafter)
        sequences = [toy_sequence(engine, [1, 2, i], sequence_id=i, params=params) for i in range(4)]
        for sequence in sequences:
            sequence.constraint = rules()
        outputs.append(run_all(engine, sequences))
    assert outputs[0] == outputs[1]
    assert all(output[0] >= FIRST for output in outputs[0])
