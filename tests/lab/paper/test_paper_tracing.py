"""Traced runs: what was computed when, what became of guesses, and the pictures of it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from tiny_encoder_decoders import make_model, save_model

from headstart.loading.model import Model, load_model
from headstart.sampling.params import SamplingParams
from headstart_charts.page import to_html
from headstart_lab.paper import tracing
from headstart_lab.paper.pictures import figure_1, figure_5, lines_svg, timeline_svg
from headstart_lab.paper.tracing import Line, TracedRun, lines_of, trace_run
from headstart_lab.workbench import Contender, Workbench

GREEDY = SamplingParams(temperature=0, max_tokens=17, ignore_eos=True)
SOURCE = list(b"red blue red green")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    torch.set_num_threads(1)
    return load_model(save_model(make_model("t5", seed=2), tmp_path_factory.mktemp("t5")), "fp32")


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("umt5", seed=3, num_layers=1, num_decoder_layers=1), tmp_path_factory.mktemp("draft"))


def traced(model: Model, contender: str) -> TracedRun:
    return trace_run(Workbench.of_model(model, max_context=64), Contender.parse(contender), "run", SOURCE, GREEDY)


def plain_output(model: Model) -> list[int]:
    bench = Workbench.of_model(model, max_context=64)
    sequence = bench.sequence(SOURCE, GREEDY)
    bench.decode(bench.open(Contender.parse("none")), sequence)
    return sequence.output


def test_rounds_hold_the_output_and_follow_each_other(model: Model, smaller: Path) -> None:
    run = traced(model, f"draft-model:model={smaller}:draft_tokens=3")
    said = [
        token for each in run.rounds for token in (*each.accepted, *([each.answer] if each.answer is not None else []))
    ]
    assert said == plain_output(model)
    assert run.encoder > 0
    assert run.rounds[0].draft_encoder > 0
    assert all(each.draft_encoder == 0 for each in run.rounds[1:])
    at = run.encoder
    for each in run.rounds:
        assert each.start == at
        assert each.draft >= 0
        assert each.target > 0
        assert each.end >= each.start + each.draft_encoder + each.draft + each.target - 1e-9
        assert len(each.accepted) <= each.draft_steps <= 3
        at = each.end
    assert run.seconds == at


def test_of_several_runs_the_fastest_is_kept(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[TracedRun] = []
    traced_once = tracing._traced

    def kept(*arguments: Any) -> TracedRun:
        seen.append(traced_once(*arguments))
        return seen[-1]

    monkeypatch.setattr(tracing, "_traced", kept)
    bench, contender = Workbench.of_model(model, max_context=64), Contender.parse("early-exit:layers=1:draft_tokens=2")
    run = trace_run(bench, contender, "run", SOURCE, GREEDY, 4)
    assert len(seen) == 4
    assert run.seconds == min(each.seconds for each in seen)
    assert len({tuple((each.accepted, each.answer) for each in other.rounds) for other in seen}) == 1


def test_plain_rounds_have_neither_draft_nor_rejection(model: Model) -> None:
    run = traced(model, "none")
    assert len(run.rounds) == 17
    assert all(not each.draft_steps and each.rejected is None and not each.accepted for each in run.rounds)
    assert run.rounds[0].draft_encoder == 0


def test_lines_say_what_was_accepted_rejected_and_put_right(model: Model, tiny_model_dir: Path) -> None:
    target = load_model(tiny_model_dir, "fp32")
    bench = Workbench.of_model(target, max_context=128)
    tokens = target.tokenizer.encode("abc abc abc abc")
    run = trace_run(bench, Contender.parse("early-exit:layers=2:draft_tokens=3"), "run", tokens, GREEDY)
    lines = lines_of(run, target.tokenizer)
    assert lines[0].before == ""
    for line, following in pairwise(lines):
        assert following.before == line.before + line.accepted + line.answer
    rejected = [each.rejected for each in run.rounds]
    assert [bool(line.rejected) for line in lines] == [token is not None for token in rejected]
    assert any(rejected)


def test_figure_5_draws_every_call(model: Model, smaller: Path) -> None:
    runs = [traced(model, f"draft-model:model={smaller}:draft_tokens={gamma}") for gamma in (7, 3)]
    runs.append(traced(model, "none"))
    svg = timeline_svg(runs)
    titles = [title.text or "" for title in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")]
    steps = sum(each.draft_steps for run in runs for each in run.rounds)
    assert sum("draft step " in title for title in titles) == steps
    assert sum(title.endswith("target pass") for title in titles) == sum(len(run.rounds) for run in runs) + 1  # the key
    # Once each in the key; the draft has an encoder in the first two runs.
    assert titles.count("target's encoder") == 4
    assert titles.count("draft's encoder") == 3
    assert "17 passes" in titles[0]
    for left, width in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg):
        assert 0 <= float(left) <= float(left) + float(width) <= 760


def test_figure_1_as_a_picture_shows_the_end_of_a_long_line() -> None:
    lines = [Line("", "a <b>", "lo\nst", "own"), Line("x" * 200 + "end", "kept", "", "")]
    root = ElementTree.fromstring(lines_svg(lines))
    spans = [(span.get("class"), span.text) for span in root.iter("{http://www.w3.org/2000/svg}tspan")]
    assert spans[3:] == [("accepted", "a <b>"), ("rejected", "lo↵st"), ("own", "own"), ("accepted", "kept")]
    *_, first, second = root.iter("{http://www.w3.org/2000/svg}text")
    assert first.text is None
    assert second.text is not None
    assert second.text.startswith("…x")
    assert second.text.endswith("xend")
    assert len(second.text) + len("kept") == 94


def test_figure_1_needs_no_colour_and_escapes_its_texts() -> None:
    body = figure_1([Line("a <b>", "kept", "lo<st", "own")]).body
    assert "a &lt;b&gt;" in body
    assert '<ins class="accepted">kept</ins><del class="rejected">lo&lt;st</del><b class="answer">own</b>' in body
    page = to_html("t", [figure_1([Line("", "", "", "x")]), figure_5([])])
    assert "Figure 1" in page
    assert "<script" not in page
