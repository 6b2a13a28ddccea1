"""Acceptance from laws, against enumeration, against other passes, and where it is certain."""

from __future__ import annotations

import json
import math
from itertools import permutations

import numpy as np
import pytest
import torch

from headstart.errors import ConfigError
from headstart.loading.model import Model, create_backend, load_model, weights_dtype
from headstart.models.layer_selection import select_layers
from headstart.models.weight_loading import load_decoder
from headstart.passes.draft_tree import ROOT, DraftTree, Draws, TreeLaw
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms
from headstart_charts.page import Table
from headstart_lab.acceptance.acceptance_report import context_range, exhibits, lost, to_json
from headstart_lab.acceptance.measuring import (
    LENIENCES,
    Acceptance,
    Guess,
    Onlooker,
    Position,
    guess_at,
    measure_acceptance,
)
from headstart_lab.acceptance.token_kinds import TokenKind
from headstart_lab.bench.prompts import BenchPrompt, encode_turns
from headstart_lab.theory import formulas as theory
from headstart_lab.workbench import Contender, Workbench

P = np.array([0.5, 0.2, 0.2, 0.1, 0.0])
Q = np.array([0.1, 0.3, 0.3, 0.1, 0.2])
LOGITS = torch.tensor(np.log(np.maximum(P, 1e-300)), dtype=torch.float32)
SAMPLED = Transforms(SamplingParams(temperature=1), 5)
GREEDY = Transforms(SamplingParams(temperature=0), 5)


def drawn(tokens, law=TreeLaw.SAMPLED, extras=()) -> DraftTree:
    """First-level draws from Q in order, merged where they repeat, and guesses beside them."""
    nodes = list(dict.fromkeys(tokens))
    rows = [0] * len(tokens) if law is TreeLaw.WITHOUT_REPLACEMENT else range(len(tokens))
    count = len(nodes) + len(extras)
    return DraftTree(
        np.array([*nodes, *extras], np.int32),
        np.full(count, ROOT, np.int32),
        law,
        Draws(
            np.full(len(tokens), ROOT, np.int32),
            np.array([nodes.index(token) for token in tokens], np.int32),
            np.array(rows, np.int32),
        ),
        torch.tensor(np.tile(Q, (max(rows) + 1, 1))),
    )


class TestGuessAt:
    def test_one_draw_is_accepted_as_lemma_3_3_says_whatever_was_drawn(self):
        for token in range(5):
            guess = guess_at(drawn([token]), LOGITS, SAMPLED)
            assert guess.accepted == pytest.approx(np.minimum(P, Q).sum())
            assert guess.lenient == pytest.approx([float(theory.acceptance(P, Q, each)) for each in LENIENCES])

    def test_several_draws(self):
        guess = guess_at(drawn([1, 2, 1]), LOGITS, SAMPLED)
        assert guess.accepted == pytest.approx(theory.draws_acceptance(P, [Q] * 3))
        assert guess.lenient is None

    def test_draws_without_replacement_on_average(self):
        mean = 0.0
        for first, second in permutations(range(5), 2):
            chance = Q[first] * Q[second] / (1 - Q[first])
            mean += chance * guess_at(drawn([first, second], TreeLaw.WITHOUT_REPLACEMENT), LOGITS, SAMPLED).accepted
        assert mean == pytest.approx(theory.draws_without_replacement_acceptance(P, Q, 2))

    def test_guesses_beside_a_draw_get_what_is_left(self):
        accepted = np.minimum(P, Q).sum()
        left = np.maximum(P - Q, 0) / np.maximum(P - Q, 0).sum()
        guess = guess_at(drawn([1], extras=[0, 3]), LOGITS, SAMPLED)
        assert guess.accepted == pytest.approx(accepted + (1 - accepted) * (left[0] + left[3]))

    def test_point_masses_are_accepted_with_the_probability_the_target_gives_them(self):
        tree = DraftTree.from_paths([(0, 1), (2,)], 8)
        assert guess_at(tree, LOGITS, SAMPLED).accepted == pytest.approx(0.7)
        single = guess_at(DraftTree.chain([1, 1]), LOGITS, SAMPLED)
        assert single.lenient == pytest.approx([0.2, 0.4, 2 / 3, 1.0])

    def test_greedy_ones_if_they_are_the_best_token(self):
        assert guess_at(DraftTree.from_paths([(1,), (0,)], 8), LOGITS, GREEDY).accepted == 1.0
        second = guess_at(DraftTree.chain([1]), LOGITS, GREEDY)
        assert second.accepted == 0.0
        assert second.lenient == (0.0, 0.0, 1.0, 1.0)  # p(1) is 0.4 of the best

    def test_no_guess_and_probes_alone(self):
        assert guess_at(DraftTree.empty(), LOGITS, SAMPLED) == Guess(None)
        probe = DraftTree(np.array([0], np.int32), np.array([ROOT], np.int32), probe=np.array([True]))
        assert guess_at(probe, LOGITS, SAMPLED) == Guess(None)


SELF_SUFFICIENT = (
    *("ngram", "prompt-lookup", "suffix", "recycling", "copy", "unigram", "bigram", "random"),
    *("draft-model:layers=1", "multi-draft:layers=1", "hierarchical:layers=1", "early-exit", "lookahead", "auto"),
)
"""Drafters that need nothing but the target."""
PROMPTS = [BenchPrompt("a", "qa", ("Hello there?",)), BenchPrompt("b", "writing", ("One.", "Two."))]
SHORT = SamplingParams(temperature=1, max_tokens=9, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tiny_model_dir) -> Model:
    return load_model(tiny_model_dir, "fp32")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_the_target_is_always_accepted(model, temperature):
    params = SamplingParams(temperature=temperature, max_tokens=9, seed=5, ignore_eos=True)
    contender = Contender.parse("draft-model:layers=3:draft_tokens=2")
    result = measure_acceptance(model, Workbench.of_model(model), contender, PROMPTS, params)
    assert len(result.positions) == 3 * 8
    assert result.coverage == 1.0
    assert result.alpha == pytest.approx(1.0, abs=1e-4)
    assert result.accepted_per_position == result.drafted_per_position
    assert result.tokens / result.rounds == 3.0
    assert result.drawn == (temperature > 0)


def test_alpha_is_corollary_3_6_over_the_targets_text(model):
    """The same by reading the target's own text with both models."""
    contender = Contender.parse("draft-model:layers=2")
    result = measure_acceptance(model, Workbench.of_model(model), contender, PROMPTS[:1], SHORT)
    bench = Workbench.of_model(model)
    lent = create_backend(
        *select_layers(*load_decoder(model.checkpoint, weights_dtype(model.precision)), [0, 2]), model.precision
    )
    prompt = encode_turns(model, PROMPTS[0].turns, [])
    text = bench.sequence(prompt, SHORT)
    bench.decode(bench.open(Contender.parse("none")), text)
    read = text.tokens[:-2]  # the last token had no guess
    target, draft = (each.read(read, first=len(prompt) - 1) for each in (bench, Workbench(lent, max_context=400)))
    expected = [
        float(torch.minimum(p.double().softmax(-1), q.double().softmax(-1)).sum())
        for p, q in zip(target, draft, strict=True)
    ]
    assert [position.guess.accepted for position in result.positions] == pytest.approx(expected, abs=1e-4)
    assert result.alpha == pytest.approx(np.mean(expected), abs=1e-4)


@pytest.mark.parametrize("name", SELF_SUFFICIENT)
def test_looking_on_changes_nothing(model, name):
    bench = Workbench.of_model(model)
    prompt = encode_turns(model, ["one two one two one"], [])
    plain, seen = bench.sequence(prompt, SHORT), bench.sequence(prompt, SHORT)
    bench.decode(bench.open(Contender.parse("none")), plain)
    bench.decode(bench.open(Contender.parse(name), Onlooker), seen)
    assert seen.output == plain.output
    assert seen.stats.drafted == 0
    assert bench.runner.cache.num_free_tokens == bench.runner.cache.allocator.num_blocks * 32


def position(accepted: float | None, kind=TokenKind.NUMBER, context=100, turn=0, group="qa") -> Position:
    return Position(group, turn, context, kind, Guess(accepted, None if accepted is None else (accepted,) * 4))


def test_losses_are_shared_out_among_the_kinds():
    result = Acceptance(
        "ngram",
        0.0,
        [
            position(1.0),
            position(0.5),
            position(None),
            position(0.5, TokenKind.WORD_START),
            position(1.0, TokenKind.SPECIAL),
        ],
    )
    assert lost(result, "token kind").rows == (
        ("word start", 1, "20%", "100%", 0.5, "25%"),
        ("number", 3, "60%", "67%", 0.75, "75%"),
        ("special token", 1, "20%", "100%", 1.0, "0%"),
    )
    assert result.alpha == pytest.approx(0.75)
    assert result.coverage == pytest.approx(0.8)
    assert result.lenient_alphas == pytest.approx((0.75,) * 4)


def test_contexts_fall_into_powers_of_two():
    assert [context_range(position(1.0, context=n)) for n in (1, 63, 64, 127, 128, 1000)] == [
        "0–63 tokens",
        "0–63 tokens",
        "64–127 tokens",
        "64–127 tokens",
        "128–255 tokens",
        "512–1023 tokens",
    ]


def test_the_report_holds_every_figure(model):
    names = ("draft-model:layers=2", "ngram")
    results = [
        measure_acceptance(model, Workbench.of_model(model), Contender.parse(name), PROMPTS, SHORT) for name in names
    ]
    record = {"model": {"name": "tiny"}}
    written = json.loads(json.dumps(to_json(results, record), allow_nan=False))
    first = written["results"][0]
    assert first["guesses"] == "draws"
    assert math.isclose(first["alpha"], results[0].alpha)
    assert [each["lenience"] for each in first["alpha_by_lenience"]] == list(LENIENCES)
    assert sum(row["positions"] for row in first["lost"]["turn"]) == first["positions"]
    for rows in first["lost"].values():
        assert math.isclose(sum(row["share"] for row in rows), 1)
        assert math.isclose(sum(row["share_of_lost"] for row in rows), 1)
    shown = exhibits(results, record)
    tables = [item for item in shown if isinstance(item, Table)]
    assert tables[0].rows[0][0] == "tiny, draft-model:layers=2"
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


def test_prompts_none_of_which_fits_are_refused(tiny_model_dir):
    model = load_model(tiny_model_dir, "fp32")
    params = SamplingParams(temperature=0, max_tokens=600)
    with pytest.raises(ConfigError, match="room for 600 more tokens"):
        measure_acceptance(
            model, Workbench.of_model(model), Contender.parse("ngram"), [BenchPrompt("a", "qa", ("Hi",))], params
        )


def test_turns_that_do_not_fit_are_named(model):
    prompts = [BenchPrompt("a", "qa", ("Hi", "word " * 100, "Bye")), BenchPrompt("b", "qa", ("Hello",))]
    bench = Workbench.of_model(model, max_context=200)
    result = measure_acceptance(model, bench, Contender.parse("ngram"), prompts, SHORT)
    assert result.turns == 2
    assert list(result.left_out) == ["prompt a, turn 2", "prompt a, turn 3"]
    assert "tokens are too many" in result.left_out["prompt a, turn 2"]
    (written,) = to_json([result], {})["results"]
    assert (written["turns"], written["left_out"]) == (2, result.left_out)
    assert "Left out: 2 turns" in [item.title for item in exhibits([result], {})]


def test_cut_short_it_keeps_whole_turns(model):
    result = Acceptance("ngram", 1.0)
    prompts = [BenchPrompt(str(i), "qa", ("Hi",)) for i in range(3)]

    def stop(tokens: int) -> None:
        if result.turns == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_acceptance(model, Workbench.of_model(model), Contender.parse("ngram"), prompts, SHORT, stop, result)
    assert result.turns == 2
    assert len(result.positions) <= 2 * SHORT.max_tokens
    assert result.tokens > 0


def test_each_prompt_has_draws_of_its_own(model):
    twice = [BenchPrompt(name, "qa", ("Hello there?",)) for name in "ab"]
    params = SamplingParams(temperature=1, seed=3, max_tokens=8, ignore_eos=True)
    bench = Workbench.of_model(model)
    found = measure_acceptance(model, bench, Contender.parse("draft-model:layers=1"), twice, params)
    chances = [each.guess.accepted for each in found.positions]
    one, other = chances[: len(chances) // 2], chances[len(chances) // 2 :]
    assert len(one) == len(other) > 4
    assert one[0] == pytest.approx(other[0])  # nothing has been drawn yet
    assert one != pytest.approx(other)
