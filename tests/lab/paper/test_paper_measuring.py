"""The paper's laws on real runs: acceptance by Corollary 3.6 against counts, Equation 1, Theorem 3.8."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from thinning import thorough_but
from tiny_encoder_decoders import make_model, save_model

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, SequenceView, SpeculationParams
from headstart.engine.trace import Trace
from headstart.errors import ConfigError
from headstart.loading.model import Model, load_model
from headstart.passes.draft_tree import DraftTree
from headstart.passes.runner import Span
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms
from headstart_lab.acceptance.measuring import measure_acceptance
from headstart_lab.bench.prompts import BenchPrompt
from headstart_lab.paper.measuring import Pair, Rate, Row, Sheet, measure
from headstart_lab.paper.paper_report import chosen, exhibits, from_json, table_2, to_json
from headstart_lab.paper.tracing import lines_of, trace_run
from headstart_lab.theory import formulas as theory
from headstart_lab.workbench import Contender, Workbench
from headstart_lab.wrapper import DrafterWrapper, WatchedRound

PROMPTS = [BenchPrompt("a", "qa", ("Hello there?",)), BenchPrompt("b", "summary", ("One, two.",))]
FEW = (5, 50, 120, 200)
"""Tokens that may be said, where all texts are counted."""


@pytest.fixture(scope="module")
def model(torch_model_dir: Path) -> Model:
    return load_model(torch_model_dir, "fp32")


@pytest.fixture(scope="module")
def with_encoder(tmp_path_factory: pytest.TempPathFactory) -> Model:
    torch.set_num_threads(1)
    return load_model(save_model(make_model("t5", seed=2), tmp_path_factory.mktemp("t5")), "fp32")


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("umt5", seed=3, num_layers=1, num_decoder_layers=1), tmp_path_factory.mktemp("draft"))


def sheet_of(
    model: Model, pairs: list[Pair], temperature: float, gammas: list[int], max_tokens: int = 12, repeats: int = 1
) -> Sheet:
    sheet = Sheet(temperature)
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=max_tokens, ignore_eos=True)
    measure(model, pairs, gammas, PROMPTS, params, repeats, sheet)
    return sheet


@pytest.mark.thorough
@pytest.mark.parametrize("kind", thorough_but(["model"], ["model", "with_encoder"]))
def test_first_guesses_are_accepted_as_often_as_corollary_3_6_says(
    kind: str, smaller: Path, request: pytest.FixtureRequest
) -> None:
    """Of a vocabulary of four tokens: at the first place the laws are the same in all runs, so the rate is theirs."""
    target: Model = request.getfixturevalue(kind)
    pair = Pair(f"draft-model:model={smaller}" if kind == "with_encoder" else "early-exit:layers=1")
    contender, bench = pair.contender(1.0, 1), Workbench.of_model(target, max_context=64)
    params = SamplingParams(temperature=1, seed=0, max_tokens=3, ignore_eos=True, allowed_token_ids=list(FEW))
    known = measure_acceptance(target, bench, contender, PROMPTS[:1], params, speculating=False)
    alpha = known.positions[0].guess.accepted
    assert alpha is not None
    assert 0.05 < alpha < 0.95
    engine, runs, hits = bench.open(contender), 300, 0
    prompt = target.tokenizer.encode(PROMPTS[0].turns[0])
    if target.chat_template.available:
        asked = target.chat_template.render([{"role": "user", "content": PROMPTS[0].turns[0]}])
        prompt = target.tokenizer.encode(asked, add_special_tokens=False)
    for sample in range(runs):
        sequence = bench.sequence(prompt, params, SpeculationParams(draft_tokens=1), sample=sample)
        bench.decode(engine, sequence)
        assert sequence.stats.sampled_rounds
        hits += sequence.origins[0] == "accepted"
    assert abs(hits / runs - alpha) < 4 * math.sqrt(alpha * (1 - alpha) / runs)


class Kept(DrafterWrapper):
    """Hands on, and keeps the last draft."""

    draft = DraftTree.empty()

    def watch(self, rounds: Sequence[WatchedRound]) -> None:
        pass

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        (self.draft,) = trees = self.drafter.propose(sequences, budgets)
        return trees


@pytest.mark.thorough
def test_guesses_behind_accepted_ones_are_kept_as_their_laws_say(with_encoder: Model) -> None:
    """Under Algorithm 1: sum min(p, q) of all guesses that were looked at, against those that were kept."""
    bench = Workbench.of_model(with_encoder, max_context=64)
    engine = bench.open(Pair("early-exit:layers=1:temperature=0.5").contender(1.0, 4), Kept)
    expected, spread, kept = 0.0, 0.0, 0
    for sample in range(60):
        params = SamplingParams(temperature=1, seed=3, max_tokens=10, ignore_eos=True, allowed_token_ids=list(FEW))
        sequence = bench.sequence(
            list(b"red blue"), params, SpeculationParams(verify=VerifyRule.REJECTION), sample=sample
        )
        sequence.trace = trace = Trace()
        chances: list[list[float]] = []

        def watch(
            span: Span,
            cached: int,
            logits: torch.Tensor,
            chances: list[list[float]] = chances,
            transforms: Transforms = sequence.transforms,
        ) -> None:
            draft = engine.drafter.draft  # type: ignore[attr-defined]
            if len(logits) and len(draft):
                assert draft.draft_probs is not None
                laws = [transforms.law(row) for row in logits[: len(draft)]]
                pairs = zip(laws, draft.draft_probs, strict=True)
                chances.append([float(torch.minimum(p, q).sum()) for p, q in pairs])

        with bench.runner.watched(watch):
            bench.decode(engine, sequence)
        rounds = [each for each in trace.rounds if each.nodes]
        for each, of_round in zip(rounds, chances, strict=True):
            looked_at = of_round[: len(each.path) + 1]
            expected += sum(looked_at)
            spread += sum(chance * (1 - chance) for chance in looked_at)
            kept += len(each.path)
    assert kept > 100
    assert abs(kept - expected) < 4 * math.sqrt(spread)


def test_draws_are_checked_by_the_papers_own_rule(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = []
    begin = Workbench.sequence

    def sequence(self: Workbench, tokens: Sequence[int], params: SamplingParams, *more: Any, **named: Any) -> Any:
        made = begin(self, tokens, params, *more, **named)
        if params.max_tokens == 12:
            rules.append(made.speculation)
        return made

    monkeypatch.setattr(Workbench, "sequence", sequence)
    sheet_of(model, [Pair("early-exit:layers=2")], 1.0, [2])
    counted = [each.verify for each in rules if each.draft_tokens is None]
    assert counted.count(VerifyRule.REJECTION) == 2 * len(PROMPTS)  # plainly and with the draft


def test_a_pair_that_agrees_gives_every_round_as_equation_1_and_theorem_3_8_say(model: Model) -> None:
    """A draft of all layers: alpha is 1, so each round brings gamma + 1 tokens."""
    rows = list(sheet_of(model, [Pair("draft-model:layers=3")], 1.0, [2, 3]).rows())
    assert [(row.task, row.gamma) for row in rows] == [("qa", 2), ("qa", 3), ("summary", 2), ("summary", 3)]
    for row in rows:
        assert row.alpha is not None
        assert row.alpha.mean == pytest.approx(1.0, abs=1e-4)
        assert row.counted is not None
        assert row.counted.mean == 1.0
        assert row.tokens_per_round == row.gamma + 1
        assert row.expected_tokens == pytest.approx(row.gamma + 1, abs=1e-2)
        assert row.c is not None
        assert row.expected_speed == pytest.approx((row.gamma + 1) / (1 + row.gamma * row.c), rel=1e-3)


def test_rows_are_the_formulas_of_what_was_measured(model: Model) -> None:
    sheet = sheet_of(model, [Pair("early-exit:layers=2"), Pair("bigram")], 1.0, [3])
    rows = {(row.task, row.draft): row for row in sheet.rows()}
    assert set(rows) == {(task, draft) for task in ("qa", "summary") for draft in ("early-exit:layers=2", "bigram")}
    for (task, draft), row in rows.items():
        own = [run for run in sheet.runs.runs if run.group == task and run.contender.startswith(draft)]
        plain = [run for run in sheet.runs.runs if run.group == task and run.contender == "none"]
        positions = [each for each in sheet.acceptances[Pair(draft)].positions if each.group == task]
        chances = [each.guess.accepted for each in positions if each.guess.accepted is not None]
        assert row.guessed == len(chances) / len(positions)
        if not chances or not any(run.stats.drafted for run in own):
            continue
        assert row.alpha is not None
        assert row.alpha.mean == pytest.approx(np.mean(chances))
        error = np.std(chances, ddof=1) / math.sqrt(len(chances)) if len(chances) > 1 else 0.0
        assert row.alpha.error == pytest.approx(error)
        depths = [depth for run in own for depth in run.depths]
        tokens = sum(theory.expected_tokens(float(np.mean(chances)), depth) for depth in depths) / len(depths)
        steps = sum(run.stats.draft_seconds for run in own) / sum(depths)
        c = steps / (sum(run.stats.target_seconds for run in plain) / sum(run.stats.rounds for run in plain))
        assert row.c == pytest.approx(c)
        assert row.expected_tokens == pytest.approx(tokens)
        assert row.expected_speed == pytest.approx(tokens / (1 + c * sum(depths) / len(depths)))
        assert row.speed_error == pytest.approx(row.speed.middle / row.expected_speed - 1)


@pytest.mark.thorough
def test_repeats_are_timed_and_are_no_further_sample(model: Model) -> None:
    once, twice = (
        list(sheet_of(model, [Pair("early-exit:layers=2")], 1.0, [3], repeats=repeats).rows()) for repeats in (1, 3)
    )
    assert [row.counted for row in once] == [row.counted for row in twice]
    assert once[0].counted is not None
    assert once[0].counted.count < 80
    assert [row.tokens_per_round for row in once] == pytest.approx([row.tokens_per_round for row in twice])


@pytest.mark.thorough
def test_models_with_an_encoder_are_measured_by_the_same_code(with_encoder: Model, smaller: Path) -> None:
    pairs = [Pair(f"draft-model:model={smaller}"), Pair("early-exit:layers=1"), Pair("unigram")]
    for temperature in (0.0, 1.0):
        rows = list(sheet_of(with_encoder, pairs, temperature, [2]).rows())
        assert len(rows) == 6
        assert all(row.alpha is not None and row.counted is not None for row in rows)


def test_greedy_counts_are_the_greedy_law(model: Model) -> None:
    """Drafts of one token: each place is looked at as often as its text is written, whatever came before."""
    sheet = sheet_of(model, [Pair("early-exit:layers=2")], 0.0, [1], max_tokens=40)
    for row in sheet.rows():
        assert row.alpha is not None
        assert row.counted is not None
        assert row.surprise is None or abs(row.surprise) < 4


def test_drafts_draw_where_the_target_samples() -> None:
    assert Pair("unigram").contender(1.0, 3).name == "unigram:sample=true:draft_tokens=3"
    assert Pair("unigram").contender(0.0, 3).name == "unigram:draft_tokens=3"
    assert Pair("unigram:sample=false").contender(1.0, 7).name == "unigram:sample=false:draft_tokens=7"
    assert Contender.parse(Pair("ngram").contender(1.0, 3).name).name == "ngram:draft_tokens=3"


@pytest.mark.parametrize(
    ("draft", "said"), [("none", "guesses nothing"), ("nobody", "nobody"), ("ngram:draft_tokens=3", "gammas")]
)
def test_what_is_no_pair_is_refused(draft: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Pair(draft)


def test_rates() -> None:
    assert Rate.of_chances([]) is None
    assert Rate.of_counts(0, 0) is None
    assert Rate.of_counts(1, 4) == Rate(0.25, math.sqrt(0.25 * 0.75 / 4), 4)
    assert Rate.of_chances([0.5]) == Rate(0.5, 0.0, 1)


def test_table_2_takes_the_draft_length_that_theory_prefers_and_stars_the_fastest(model: Model) -> None:
    rows = list(sheet_of(model, [Pair("early-exit:layers=2"), Pair("unigram")], 0.0, [1, 4]).rows())
    picked = chosen(rows)
    assert len(picked) == 4
    for row in picked:
        same = [other for other in rows if (other.task, other.draft) == (row.task, row.draft)]
        assert (row.expected_speed or 0) == max(other.expected_speed or 0 for other in same)
    cells = table_2(rows, "tiny").rows
    starred = [cell[0] for cell in cells if str(cell[1]).endswith("★")]
    assert sorted(set(map(str, starred))) == ["qa", "summary"]
    titles = [each.title for each in exhibits(rows, [], [], "tiny")]
    assert [name for name in ("table 2)", "table 4)", "table 3)") if any(name in title for title in titles)] == [
        "table 2)",
        "table 4)",
        "table 3)",
    ]


def test_what_was_written_is_read_again(model: Model) -> None:
    rows = list(sheet_of(model, [Pair("early-exit:layers=2"), Pair("ngram")], 1.0, [2]).rows())
    bench, greedy = Workbench.of_model(model), SamplingParams(temperature=0, max_tokens=6)
    run = trace_run(bench, Contender.parse("early-exit:layers=2"), "run", model.tokenizer.encode("abc"), greedy)
    lines = lines_of(run, model.tokenizer)
    written = json.loads(json.dumps(to_json(rows, [run], lines, {"model": {}})))
    assert from_json(written) == (rows, [replace(run, prompt=())], lines)


def test_a_counted_rate_of_nought_is_no_infinite_surprise() -> None:
    row = Row(
        *("qa", "x", 1.0, 3, Rate(0.1, 0.0, 20), 1.0, Rate(0.0, 0.0, 25), 1.0, 1.1, 0.1, 1.0),
        *(None, None),  # type: ignore[arg-type]
    )
    assert row.surprise == pytest.approx(-0.1 / math.sqrt(0.1 * 0.9 / 25))
