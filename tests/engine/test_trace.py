"""What rounds say of themselves where a sequence asks for it."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from headstart import LLM, SamplingParams
from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SpeculationParams
from headstart.engine.law import TargetLaw
from headstart.engine.outputs import TokenLogprobs, TokenOrigin
from headstart.engine.trace import Trace
from headstart.entrypoints.request import Sample
from headstart.loading.model import Model, load_model
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.verification.base import Verdict

PROMPT = "abc abc abc ab"


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Model:
    return load_model(tiny_model_dir, "fp32")


def run(model: Model, drafter: str, trace: bool = True, sample: bool = False, **params: object) -> Sample:
    llm = LLM(model, drafter, drafter_options={"sample": True} if sample else None)
    rule = SpeculationParams(verify=VerifyRule.REJECTION)
    (sample,) = llm.samples(llm.encode(PROMPT), SamplingParams(seed=3, max_tokens=30, **params), rule, trace=trace)
    llm.engine.add(sample.sequence)
    while not llm.engine.idle:
        llm.engine.step()
    return sample


def trace_of(sample: Sample) -> Trace:
    assert sample.sequence.trace is not None
    return sample.sequence.trace


@pytest.mark.parametrize("drafter", ["none", "suffix", "recycling", "lookahead", "bigram"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_paths_and_answers_are_the_output(model: Model, drafter: str, temperature: float) -> None:
    sample = run(model, drafter, temperature=temperature)
    sequence = sample.sequence
    rounds = trace_of(sample).rounds
    said = [token for seen in rounds for token in (*(seen.nodes[node].token for node in seen.path), seen.answer.token)]
    assert said[: sequence.num_output] == sequence.output
    assert len(rounds) == sequence.stats.rounds
    assert sum(len(seen.nodes) for seen in rounds) == sequence.stats.drafted
    assert [seen.seconds for seen in rounds] == sorted(seen.seconds for seen in rounds)
    roots = [sequence.tokens[sequence.prompt_length - 1], *(seen.answer.token for seen in rounds[:-1])]
    assert [seen.root for seen in rounds] == roots


@pytest.mark.parametrize("drafter", ["suffix", "recycling", "bigram"])
def test_a_path_is_a_path_of_the_tree(model: Model, drafter: str) -> None:
    for seen in trace_of(run(model, drafter, temperature=1.0)).rounds:
        parent = ROOT
        for node in seen.path:
            assert seen.nodes[node].parent == parent
            parent = node
        assert seen.answer.parent == parent
        assert all(node.parent < place for place, node in enumerate(seen.nodes))


def test_probabilities_are_the_targets_own_and_those_that_decided(model: Model) -> None:
    sample = run(model, "recycling", temperature=0.5)
    sequence = sample.sequence
    scored = run(model, "none", temperature=0.5, logprobs=0).sequence
    assert scored.output == sequence.output  # point masses: the target alone decides
    said = [node for seen in trace_of(sample).rounds for node in (*(seen.nodes[i] for i in seen.path), seen.answer)]
    for node, entry in zip(said, scored.logprobs, strict=False):
        assert node.target_prob == pytest.approx(math.exp(entry.logprob), rel=1e-3)
        assert 0 < node.law_prob <= 1
    # Temperature 0.5 squares the ratio of any two probabilities after the same path.
    squared = 0
    for seen in trace_of(sample).rounds:
        at_root = [node for node in seen.nodes if node.parent == ROOT]
        for one, other in pairwise(at_root):
            ratio = one.target_prob / other.target_prob
            assert one.law_prob / other.law_prob == pytest.approx(ratio**2, rel=1e-2)
            squared += 1
    assert squared > 0


def test_greedy_laws_are_one_hot(model: Model) -> None:
    for seen in trace_of(run(model, "recycling", temperature=0.0)).rounds:
        assert seen.answer.law_prob == 1.0
        assert all(seen.nodes[node].law_prob == 1.0 for node in seen.path)
        assert {node.law_prob for node in seen.nodes} <= {0.0, 1.0}
        assert 0 < seen.answer.target_prob < 1


def test_drawn_guesses_carry_the_drafts_probability(model: Model) -> None:
    for sample, expected in [(True, pytest.approx(1 / model.config.vocab_size)), (False, None)]:
        rounds = trace_of(run(model, "random", sample=sample, temperature=1.0)).rounds
        guesses = [node for seen in rounds for node in seen.nodes]
        assert guesses
        assert all(node.draft_prob == expected for node in guesses)


class SlowLaw:
    """A law whose reading takes five seconds of a made-up clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def probs(self, node: int) -> Tensor:
        self.now += 5
        return torch.tensor([0.25, 0.75], dtype=torch.float64)

    def logprobs(self, node: int, token: int, count: int) -> TokenLogprobs:
        return TokenLogprobs(token, math.log(0.5), {}, 1)


def test_recording_is_left_out_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    law, trace = SlowLaw(), Trace()
    monkeypatch.setattr(time, "perf_counter", lambda: law.now)
    for _ in range(3):
        law.now += 2
        trace.record(
            0,
            DraftTree.chain([1, 1]),
            Verdict((0,), 1),
            cast(TargetLaw, law),
            started=100.0,
            draft_seconds=0.5,
            pass_seconds=1.0,
        )
    assert [seen.seconds for seen in trace.rounds] == [2, 4, 6]
    assert trace.cost == 3 * 2 * 5  # the root and the first node have children; each law is read once


@pytest.mark.parametrize("drafter", ["none", "suffix"])
def test_a_rounds_parts_add_up(model: Model, drafter: str) -> None:
    """What the drafter and the pass took is inside of the round, and together it is what the counts say."""
    sample = run(model, drafter, temperature=0.0)
    rounds, stats = trace_of(sample).rounds, sample.sequence.stats
    assert sum(seen.draft_seconds for seen in rounds) == pytest.approx(stats.draft_seconds)
    assert sum(seen.pass_seconds for seen in rounds) == pytest.approx(stats.target_seconds)
    for before, seen in pairwise(rounds):
        assert 0 < seen.draft_seconds + seen.pass_seconds < seen.seconds - before.seconds


def test_recording_changes_nothing_and_is_off_unless_asked_for(model: Model) -> None:
    silent = run(model, "bigram", trace=False, sample=True, temperature=1.0)
    assert silent.sequence.trace is None
    assert silent.sequence.output == run(model, "bigram", sample=True, temperature=1.0).sequence.output
    piece = silent.next_piece()
    assert piece is not None
    assert piece.rounds == []


def test_pieces_hand_on_each_round_once(model: Model) -> None:
    llm = LLM(model, "suffix")
    (sample,) = llm.samples(llm.encode(PROMPT), SamplingParams(temperature=0, max_tokens=30), trace=True)
    llm.engine.add(sample.sequence)
    pieces = []
    while not llm.engine.idle:
        llm.engine.step()
        if (piece := sample.next_piece()) is not None:
            pieces.append(piece)
    assert [seen for piece in pieces for seen in piece.rounds] == trace_of(sample).rounds
    for piece in pieces[:-1]:
        (seen,) = piece.rounds
        assert len(piece.token_ids) == len(seen.path) + 1
        assert piece.origins.count(TokenOrigin.ACCEPTED) == len(seen.path)
