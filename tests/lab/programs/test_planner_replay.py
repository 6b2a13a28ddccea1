"""The planner on recorded guesses: what it gains and loses is what can be worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headstart.drafting.planning import constants as c
from headstart.drafting.planning.parts import PlannerParts
from headstart.errors import ConfigError
from headstart.passes.draft_tree import MAX_GRADES, ROOT
from headstart_lab.programs.planner_replay import main, variant
from headstart_lab.programs.recorded_guesses import Answer, Recording, Voice
from headstart_lab.programs.simulated_planner import Scenario, play, share_below, speed, worst_group

GROUPS = ("easy", "hard")
FREE = Scenario(row=0.1, tokens=63)
ASKING = 0.003
"""Plain passes that a question to a drafter takes that does not read the target's states."""


def recording(right: bool, answers: int = 2, tokens: int = 63, rate: float = 1.0) -> Recording:
    """Answers that count upwards, guessed three tokens ahead."""
    said = list(range(1, tokens + 4))
    guesses = [
        [[[each + (0 if right else 500) for each in said[place : place + 3]], [ROOT, 0, 1], [0, 0, 0]]]
        for place in range(tokens)
    ]
    found = [Answer(GROUPS[number % 2], 5, said[:tokens], guesses) for number in range(answers)]
    return Recording(0.0, [Voice("suffix", [rate] * MAX_GRADES, False)], found)


def test_guesses_that_always_hold_gain_what_is_worked_out_by_hand() -> None:
    """Plain rounds are timed first; then each says four tokens in a pass of four rows."""
    first, second = play(recording(right=True), FREE, PlannerParts())
    assert first.plain == second.plain == 63.0
    rounds = (63 - c.PLAIN_LEAST) // 4
    assert first.taken == pytest.approx(c.PLAIN_LEAST + rounds * (1.3 + ASKING))
    # Of the second answer three tokens are left for the last round, which verifies three guesses all the same.
    assert second.taken == pytest.approx(16 * (1.3 + ASKING))
    assert speed([first, second]) == pytest.approx(126.0 / (first.taken + second.taken))
    assert worst_group([first, second]) == pytest.approx(63.0 / first.taken)


def test_guesses_that_never_hold_cost_what_may_be_lost() -> None:
    said = play(recording(right=False, answers=40), FREE, PlannerParts())
    plain, taken = sum(each.plain for each in said), sum(each.taken for each in said)
    assert 0 < taken - plain < c.START + c.SHARE * plain + 1.0
    assert share_below(said) > 0.0


def test_disturbed_passes_take_longer_by_what_is_told() -> None:
    told = Scenario(row=0.1, tokens=63, noise=0.3, seed=1)
    said = play(recording(right=False, answers=40), told, PlannerParts())
    assert said[0].plain == 63.0 * 1.3
    assert sum(each.taken for each in said) / sum(each.plain for each in said) == pytest.approx(1.0, abs=0.05)
    assert said == play(recording(right=False, answers=40), told, PlannerParts())


def test_a_variant_changes_what_the_table_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "texts.json.gz"
    wrong = recording(right=False, answers=4)
    wrong.write(path)
    assert Recording.read(path) == wrong
    main(["ablate", str(path), "--variants", "safeguard,START=1", "--rows", "0.3", "--users", "2"])
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head.count("T=0 0.3") == 4
    rows = {cells[1].strip(): cells for cells in (line.split("|") for line in lines)}
    assert set(rows) == {"base", "safeguard", "START=1"}
    assert lines[0].startswith("| base | as it is |")
    assert rows["START=1"][2].strip() == f"{c.START:g} before"
    assert float(rows["START=1"][-4]) > 0.0 >= float(rows["safeguard"][-4])
    assert c.START > 1.0, "it is put back"


def test_a_variant_that_is_none_is_refused() -> None:
    for name in ("nothing such", "NOTHING=2", "STEPS=3"):
        with pytest.raises(ConfigError, match=name), variant(name):
            pass


def test_drafters_are_asked_at_each_position_of_plain_decoding(tiny_model_dir: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "texts.json.gz"
    lines = [{"id": place, "category": "qa", "turns": [f"{place} one two three one two three"]} for place in range(3)]
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    told = ["--model", str(tiny_model_dir), "--drafters", "suffix,recycling", "--tokens", "12", "--answers", "2"]
    main(["record", *told, "--temperature", "0", "--prompts", str(prompts), "--out", str(out)])
    recorded = Recording.read(out)
    assert [voice.name for voice in recorded.voices] == ["suffix", "recycling"]
    assert len(recorded.answers) == 2
    for answer in recorded.answers:
        assert len(answer.tokens) == len(answer.guesses) == 12
        assert all(len(guesses) == 2 for guesses in answer.guesses)
    assert any(tree[0] for answer in recorded.answers for guesses in answer.guesses for tree in guesses)
    assert speed(play(recorded, FREE, PlannerParts())) > 0.5
