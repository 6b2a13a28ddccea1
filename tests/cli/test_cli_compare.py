"""``headstart generate --compare``: what it says of two outputs, and whether that is so."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runs import headstart, rows
from typer.testing import Result

from headstart import LLM, RequestOutput, SamplingParams, SpeculationParams, VerifyRule
from headstart.cli import comparing
from headstart.cli.comparing import Comparator
from headstart.cli.reports import TextReport
from headstart.drafting import DEFAULT_DRAFTER

PROMPT = "Hello wörld"
GREEDY = SamplingParams(temperature=0, max_tokens=24, seed=0)


@pytest.fixture(scope="module")
def tiny_model_dir(torch_model_dir: Path) -> Path:
    """PyTorch computes it: near ties may fall either way, and how many guesses pay does not change with the clock."""
    return torch_model_dir


@pytest.fixture(scope="module")
def llm(tiny_model_dir: Path) -> LLM:
    return LLM(tiny_model_dir, precision="fp32")


@pytest.fixture
def plain(llm: LLM) -> RequestOutput:
    return llm.generate(PROMPT, GREEDY, speculation=SpeculationParams(enabled=False))[0]


def with_token(output: RequestOutput, position: int, token: int) -> RequestOutput:
    """The output with another token in one place."""
    (sample,) = output.outputs
    changed = [*sample.token_ids[:position], token, *sample.token_ids[position + 1 :]]
    return replace(output, outputs=[replace(sample, token_ids=changed)])


def compare(tiny_model_dir: Path, *arguments: object, stdin: str | None = None) -> Result:
    base = (
        "generate",
        "-m",
        tiny_model_dir,
        "--precision",
        "fp32",
        "--temperature",
        0,
        "--max-tokens",
        24,
        "--compare",
    )
    return headstart(*base, *arguments, stdin=stdin)


class TestCommand:
    def test_greedy_text_is_shown_once_with_both_speeds(self, tiny_model_dir: Path, plain: RequestOutput) -> None:
        result = compare(tiny_model_dir, PROMPT)
        assert result.exit_code == 0
        assert result.stdout.count(plain.text) == 1
        assert "say the same, token for token." in result.stdout
        table = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.endswith(("%", "–"))}
        assert table[DEFAULT_DRAFTER][1] == table["plain"][1] == "24"
        assert table["plain"][-2:] == ["1.00", "–"]
        assert "Speed-up: " in result.stdout
        assert re.search(r" in [2-7] turns|measured once", result.stdout)

    def test_a_narrow_terminal_cuts_nothing_off(self, tiny_model_dir: Path) -> None:
        result = headstart(
            "generate", PROMPT, "-m", tiny_model_dir, "--temperature", 0, "--max-tokens", 4, "--compare", COLUMNS="40"
        )
        assert result.exit_code == 0
        assert "…" not in result.stdout

    @pytest.mark.thorough
    def test_coupled_verification_keeps_sampled_tokens(self, tiny_model_dir: Path) -> None:
        arguments = [PROMPT, "--temperature", 1, "-d", "random", "--drafter-option", "sample=true", "--json"]
        (row,) = rows(compare(tiny_model_dir, *arguments, "--verify", "coupled"))
        assert row["identical"]
        assert row["comparable"]
        assert row["plain"]["token_ids"] == row["token_ids"]

    @pytest.mark.thorough
    def test_point_masses_keep_sampled_tokens_under_every_rule(self, tiny_model_dir: Path) -> None:
        (row,) = rows(compare(tiny_model_dir, PROMPT, "--temperature", 1, "--n", 2, "-d", "ngram", "--json"))
        assert row["identical"]
        assert row["comparable"]

    @pytest.mark.thorough
    def test_draws_keep_the_distribution_alone(self, tiny_model_dir: Path) -> None:
        arguments = [PROMPT, "--temperature", 1, "--seed", 1, "-d", "bigram", "--drafter-option", "sample=true"]
        (row,) = rows(compare(tiny_model_dir, *arguments, "--json"))
        assert not row["identical"]
        assert not row["comparable"]
        said, due = row["token_ids"], row["plain"]["token_ids"]
        position = next(at for at in range(24) if said[at] != due[at])
        difference = row["first_difference"]
        assert (difference["position"], difference["top2_gap"]) == (position, None)
        assert (difference["speculative_token_id"], difference["plain_token_id"]) == (said[position], due[position])
        text = compare(tiny_model_dir, *arguments).stdout
        assert "--- plain ---" in text
        assert f"differ from output token {position} on" in text
        assert "keep the distribution alone" in text

    @pytest.mark.thorough
    def test_lenience_promises_nothing(self, tiny_model_dir: Path) -> None:
        arguments = [PROMPT, "-d", "random", "--lenience", 1e-9]
        assert "lenience is lossy" in compare(tiny_model_dir, *arguments).stdout
        assert not rows(compare(tiny_model_dir, *arguments, "--json"))[0]["comparable"]

    @pytest.mark.thorough
    def test_typical_acceptance_promises_nothing_but_to_greedy_requests(self, tiny_model_dir: Path) -> None:
        arguments = [PROMPT, "-d", "random", "--typical", 1e-9, "--seed", 1]
        assert "typical is lossy" in compare(tiny_model_dir, *arguments, "--temperature", 1).stdout
        assert "the same, token for token." in compare(tiny_model_dir, *arguments, "--temperature", 0).stdout

    @pytest.mark.thorough
    def test_files_are_compared_line_by_line(self, tiny_model_dir: Path) -> None:
        lines = [json.dumps({"turns": ["a", "b"]}), "no JSON", json.dumps({"prompt": "c"})]
        result = compare(tiny_model_dir, "--prompts", "-", stdin="\n".join(lines))
        assert result.exit_code == 1
        assert result.stdout.count("say the same, token for token.") == 3
        found = rows(compare(tiny_model_dir, "--prompts", "-", "--json", stdin="\n".join(lines)))
        assert [row.get("identical") for row in found] == [True, True, None, True]
        assert all(row["speedup"] > 0 for row in found if "error" not in row)
        assert all(row["speedup_range"][0] <= row["speedup"] <= row["speedup_range"][1] for row in found[:2])
        assert all(1 <= row["turns"] <= 7 for row in found[:2])
        assert all(set(row["machine"]) >= {"others", "stolen", "cores", "busy"} for row in found[:2])

    @pytest.mark.thorough
    def test_a_drafter_that_remembers_has_not_seen_the_plain_answer(self, tiny_model_dir: Path) -> None:
        arguments = [PROMPT, "-d", "suffix", "--drafter-option", "shared_tokens=4096", "--json"]
        base = ("generate", "-m", tiny_model_dir, "--precision", "fp32", "--temperature", 0, "--max-tokens", 24)
        (alone,), (compared,) = rows(headstart(*base, *arguments)), rows(compare(tiny_model_dir, *arguments))
        assert compared["stats"]["accepted"] == alone["stats"]["accepted"]

    def test_turns_do_not_teach_the_drafter_the_answer(
        self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rounds: dict[bool, list[int]] = {True: [], False: []}
        generate = LLM.generate

        def counted(self: LLM, *args: Any, **kwargs: Any) -> list[RequestOutput]:
            outputs = generate(self, *args, **kwargs)
            if kwargs.get("on_commit"):
                rounds[kwargs["speculation"].enabled].append(outputs[0].stats.rounds)
            return outputs

        monkeypatch.setattr(LLM, "generate", counted)
        (row,) = rows(
            compare(tiny_model_dir, PROMPT, "-d", "suffix", "--drafter-option", "shared_tokens=4096", "--json")
        )
        assert len(rounds[True]) == len(rounds[False]) == row["turns"]
        assert len(set(rounds[True])) == 1

    def test_ctrl_c_among_the_turns_keeps_what_was_measured(
        self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin = TextReport.begin

        def interrupted(self: TextReport, activity: str, samples: int) -> None:
            if activity.startswith("Turn 2"):
                raise KeyboardInterrupt
            begin(self, activity, samples)

        monkeypatch.setattr(TextReport, "begin", interrupted)
        result = compare(tiny_model_dir, PROMPT)
        assert result.exit_code == 130
        assert "say the same, token for token." in result.stdout
        assert "measured once" in result.stdout


class TestVerdict:
    @pytest.fixture
    def comparator(self, llm: LLM) -> Comparator:
        return Comparator(llm, GREEDY, SpeculationParams())

    def test_same(self, comparator: Comparator, plain: RequestOutput) -> None:
        assert comparator.compare(plain, plain).identical

    @pytest.mark.parametrize("position", [0, 5, 23])
    def test_a_wide_gap_is_no_tie(self, llm: LLM, comparator: Comparator, plain: RequestOutput, position: int) -> None:
        (read,) = llm.generate(PROMPT, replace(GREEDY, logprobs=2), speculation=SpeculationParams(enabled=False))
        assert read.logprobs is not None
        (first, best), (second, runner_up) = read.logprobs[position].top.items()
        comparison = comparator.compare(with_token(plain, position, second), plain)
        difference = comparison.first_difference
        assert difference is not None
        assert (difference.position, difference.plain_token_id) == (position, first)
        assert difference.speculative_token_id == second
        assert difference.top2_gap == pytest.approx(best - runner_up, abs=1e-4)
        assert difference.float_tie is False
        assert "looks like a fault" in comparator.explain(comparison)

    def test_a_narrow_gap_between_the_two_best_is_a_tie(
        self, llm: LLM, comparator: Comparator, plain: RequestOutput, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(comparing, "FINE_TIE_GAP", 1e9)
        (read,) = llm.generate(PROMPT, replace(GREEDY, logprobs=3), speculation=SpeculationParams(enabled=False))
        assert read.logprobs is not None
        _, second, third = read.logprobs[4].top
        tie = comparator.compare(with_token(plain, 4, second), plain)
        assert tie.first_difference is not None
        assert tie.first_difference.float_tie
        assert "float tie" in comparator.explain(tie)
        stray = comparator.compare(with_token(plain, 4, third), plain)
        assert stray.first_difference is not None
        assert stray.first_difference.float_tie is False

    def test_an_output_that_ended_early_differs_where_it_ends(
        self, comparator: Comparator, plain: RequestOutput
    ) -> None:
        (sample,) = plain.outputs
        short = replace(plain, outputs=[replace(sample, token_ids=sample.token_ids[:9])])
        comparison = comparator.compare(short, plain)
        assert comparison.first_difference is not None
        assert comparison.first_difference.position == 9
        assert comparison.first_difference.speculative_token_id is None
        assert "the end instead of" in comparator.explain(comparison)

    def test_penalties_leave_the_tie_open(self, llm: LLM, plain: RequestOutput) -> None:
        comparator = Comparator(llm, replace(GREEDY, presence_penalty=1.0), SpeculationParams())
        comparison = comparator.compare(with_token(plain, 3, 65), plain)
        assert comparison.first_difference is not None
        assert comparison.first_difference.float_tie is None
        assert "before penalties" in comparator.explain(comparison)

    def test_a_coupled_difference_is_named_one(self, llm: LLM, plain: RequestOutput) -> None:
        params = replace(GREEDY, temperature=1.0)
        comparator = Comparator(llm, params, SpeculationParams(verify=VerifyRule.COUPLED))
        comparison = comparator.compare(with_token(plain, 3, 65), plain)
        assert comparison.comparable
        assert "same noise" in comparator.explain(comparison)
