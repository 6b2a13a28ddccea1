"""The sitting with peers, and what its report makes of it; the peers are little programs of the test's own."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from headstart.engine.outputs import SequenceStats
from headstart.loading.model import Model, load_model
from headstart_lab.bench.prompts import BenchPrompt
from headstart_lab.bench.run import Run
from headstart_lab.bench.summary import Speed, Spread
from headstart_lab.programs.peers import environments, sitting
from headstart_lab.programs.peers import peers_report as report
from headstart_lab.programs.peers import run as command

WORKERS = Path(environments.__file__).parent / "workers"

PROMPTS = [BenchPrompt("1", "qa", ("Who?",)), BenchPrompt("2", "rag", ("Where was it?",))]
REFERENCE = "headstart fp32 none"
WORKER = f"""
import sys
sys.path.insert(0, {str(WORKERS)!r})
from protocol import serve

def load(options):
    def told(prompt, count, on_token):
        on_token(0.0)
        on_token(5.0)
        return [7] * count
    def silent(prompt, count, on_token):
        print("a library prints what it likes")
        on_token()
        return list(range(count))
    def short(prompt, count, on_token):
        return [7] * (count if len(prompt) == 4 else count - 1)
    def broken(prompt, count, on_token):
        raise ValueError("no")
    return {{"plain": told, "silent": silent, "short": short, "broken": broken}}

serve(load, ["torch"], "sevens")
"""


@dataclass(frozen=True)
class OwnPeer(environments.Peer):
    """One that runs in the test's environment."""

    @property
    def python(self) -> Path:
        return Path(sys.executable)

    def install(self) -> None: ...


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Model:
    return load_model(tiny_model_dir, "fp32")


@pytest.fixture
def hold(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sitting, "CACHE", tmp_path)

    def hold(*sources: str, repeats: int = 1) -> sitting.Sitting:
        peers = []
        for place, source in enumerate(sources):
            worker = tmp_path / f"worker{place}.py"
            worker.write_text(source, encoding="utf-8")
            peers.append(OwnPeer(f"peer{place}", (), worker=str(worker)))
        settings = {"max_tokens": 6, "repeats": repeats, "threads": 1, "max_context": 64}
        return sitting.sit([model], "ngram", peers, PROMPTS, **settings)

    return hold


def run(contender: str, prompt: str, tokens: tuple[int, ...], seconds: float, prefill: float = 0.0) -> Run:
    stats = SequenceStats(tokens=len(tokens), seconds=seconds, prefill_seconds=prefill)
    return Run(contender, prompt, "qa", 0, 0, tokens, (), stats, must_agree=False)


def state_of(program: str) -> list[str]:
    """What processes that run this program are doing: R for running, S for waiting, T for stopped."""
    states = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if program in (process / "cmdline").read_text():
                states.append((process / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def speed(rate: float) -> tuple[dict[str, Speed], Speed]:
    same = Speed(*(Spread(value, value, value) for value in (rate, rate, 1.0)))
    return {"qa": same}, same


class TestSitting:
    def test_everybody_decodes_every_prompt_and_as_many_tokens(self, hold):
        found = hold(WORKER, repeats=2)
        counts: dict[str, dict[tuple[str, int], int]] = {}
        for each in found.runs:
            counts.setdefault(each.contender, {})[each.prompt, each.repeat] = len(each.tokens)
        assert found.reference == REFERENCE
        assert set(counts) == {REFERENCE, "headstart fp32 ngram", "peer0 plain", "peer0 silent"}
        assert set(counts[REFERENCE]) == {(prompt, repeat) for prompt in "12" for repeat in (0, 1)}
        assert all(mine == counts[REFERENCE] for mine in counts.values())
        assert found.versions["peer0"].keys() == {"torch"}
        assert found.weights["peer0 plain"] == "sevens"

    def test_the_first_tokens_time_is_the_peers_own_where_it_tells(self, hold):
        prefills = {each.contender: each.stats.prefill_seconds for each in hold(WORKER).runs}
        assert prefills["peer0 plain"] == 0
        assert prefills["peer0 silent"] > 0

    @pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked at in /proc")
    def test_peers_stand_still_while_others_decode(self, hold, tmp_path, monkeypatch):
        states: list[str] = []
        whole = sitting.own_decoder

        def watched(bench, engine):
            decode = whole(bench, engine)

            def look(tokens, count):
                states.extend(state_of(str(tmp_path / "worker0.py")))
                return decode(tokens, count)

            return look

        monkeypatch.setattr(sitting, "own_decoder", watched)
        hold(WORKER)
        assert states
        assert set(states) == {"T"}

    def test_modes_that_fail_are_left_out_and_the_rest_goes_on(self, hold):
        found = hold(WORKER)
        assert found.left_out["peer0 broken"] == "ValueError: no"
        assert "tokens where" in found.left_out["peer0 short"]
        assert len({each.prompt for each in found.runs if each.contender == "peer0 plain"}) == 2

    def test_a_peer_that_does_not_come_up_is_left_out(self, hold):
        found = hold("import sys; sys.exit(3)", WORKER)
        assert "status 3" in found.left_out["peer0"]
        assert "peer1 plain" in found.weights

    def test_an_early_end_keeps_the_prompts_that_are_done(self, hold, monkeypatch):
        whole, asked = sitting.answer_length, []

        def interrupted(*arguments):
            asked.append(arguments)
            if len(asked) == 2:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            return whole(*arguments)

        monkeypatch.setattr(sitting, "answer_length", interrupted)
        found = hold(WORKER)
        assert {each.prompt for each in found.runs} == {"1"}
        assert "ended early" in found.left_out["prompts not reached"]

    def test_groups_take_turns(self):
        prompts = [BenchPrompt(name, name[0], ("?",)) for name in ("a1", "a2", "b1", "c1", "c2", "c3")]
        assert [prompt.id for prompt in command.in_turns(prompts)] == ["a1", "b1", "c1", "a2", "c2", "c3"]


class TestReport:
    def test_goals_hold_each_precision_against_the_fastest_peer(self):
        rates = {"headstart bf16 none": 100.0, "headstart bf16 ngram": 150.0, "headstart int8 none": 160.0}
        rates |= {"headstart int8 ngram:draft_tokens=4": 200.0, "a plain": 50.0, "a lookup": 40.0, "b plain": 64.0}
        rates |= {"b prompt lookup 4": 75.0}
        found = {goal.what: goal for goal in report.goals({name: speed(rate) for name, rate in rates.items()})}
        assert {name: (goal.theirs, goal.ratio, goal.reached) for name, goal in found.items()} == {
            "bf16 plain": ("b plain", pytest.approx(100 / 64), False),
            "bf16 best": ("b prompt lookup 4", 2.0, False),
            "int8 plain": ("b plain", 2.5, True),
            "int8 best": ("b prompt lookup 4", pytest.approx(200 / 75), False),
        }
        assert found["int8 best"].ours == "headstart int8 ngram:draft_tokens=4"

    def test_reading_is_told_of_those_who_say_when_they_had_read(self):
        def read(name, group, prefill):
            stats = SequenceStats(prompt_tokens=100, tokens=4, seconds=prefill + 1.0, prefill_seconds=prefill)
            return Run(name, group, group, 0, 0, (1, 2), (), stats, must_agree=False)

        runs = {"a": [read("a", "8 tokens", 0.5), read("a", "9 tokens", 0.25)], "b": [read("b", "8 tokens", 0.0)]}
        shown = report.reading_table(["b", "a"], runs, ["8 tokens", "9 tokens"])
        assert shown.rows == (("a", 200.0, 400.0),)

    def test_there_are_no_goals_without_peers(self):
        assert report.goals({"headstart bf16 none": speed(1.0)}) == []

    def test_the_same_tokens_are_those_before_the_first_difference(self):
        plain = [run("p", "a", (1, 2, 3, 4), 1.0), run("p", "b", (5, 6), 1.0)]
        other = [run("o", "a", (1, 9, 3, 4), 1.0), run("o", "b", (5, 6), 1.0)]
        assert report.same_tokens(plain, plain) == 1
        assert report.same_tokens(other, plain) == pytest.approx((1 / 4 + 1) / 2)

    def test_everything_is_written(self, tmp_path, capsys):
        runs = [
            run(REFERENCE, "a", (1, 2, 3, 4), 2.0),
            run("headstart fp32 ngram", "a", (1, 2, 3, 4), 1.5, 0.5),
            run("x plain", "a", (1, 2, 9, 9), 4.0),
        ]
        weights = {REFERENCE: "fp32", "headstart fp32 ngram": "fp32", "x plain": "bits"}
        found = sitting.Sitting(runs, weights, {"x": {"x": "1"}}, {"y": "gone"}, REFERENCE)
        report.report(found, {"settings": {"threads": 1}}, tmp_path)
        written = json.loads((tmp_path / "peers.json").read_text())
        rates = {each["name"]: each["mean"]["decoding"]["middle"] for each in written["contenders"]}
        assert rates == {"headstart fp32 ngram": 4.0, REFERENCE: 2.0, "x plain": 1.0}
        assert [(goal["what"], goal["ratio"], goal["reached"]) for goal in written["goals"]] == [
            ("fp32 plain", 2.0, True),
            ("fp32 best", 4.0, True),
        ]
        assert written["left_out"] == {"y": "gone"}
        shown = capsys.readouterr().out
        assert "50%" in shown
        assert "gone" in shown
