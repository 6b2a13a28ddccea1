"""``headstart audit --url`` as a user meets it."""

from __future__ import annotations

import json
import math
import re
from html import escape
from pathlib import Path

import pytest
from cli_runs import headstart, refusal

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from endpoint_servers import Mutant, served
from tiny_checkpoint import write_tiny_model

from headstart import LLM
from headstart_lab.audit.endpoint.run import EndpointSettings


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(write_tiny_model(tmp_path_factory.mktemp("audited"), head_dim=32)), "ngram", prefix_caching=True)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    rows = [{"id": i, "category": "qa", "turns": [f"one two one {i}"]} for i in range(2)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


FEW = ["--max-tokens", 12, "--samples", 40, "--quiet"]


@pytest.mark.thorough
def test_a_sound_server_passes(llm: LLM, prompts: Path, tmp_path: Path) -> None:
    with served(llm) as url:
        result = headstart("audit", "--url", url, "--prompts", prompts, *FEW, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    verdict = result.stdout.rstrip().splitlines()[-1]
    assert verdict.startswith("WEAK PASS: ")
    assert re.search(r"weak, since a law less than 0\.\d\d off would not be seen", verdict)
    written = json.loads((tmp_path / "out" / "audit-endpoint.json").read_text())
    assert (written["format"], written["passed"]) == ("headstart-audit-endpoint/1", True)
    assert written["verdict"] == verdict
    assert written["requests"] <= written["requests_planned"]
    assert written["server"]["model"] == "tiny"
    assert escape(verdict) in (tmp_path / "out" / "audit-endpoint.html").read_text()


@pytest.mark.thorough
def test_a_wrong_server_fails(llm: LLM, prompts: Path) -> None:
    def drop(body: dict[str, object], busy: int) -> None:
        for name in ("stop", "logprobs", "top_logprobs"):
            body.pop(name, None)

    with served(llm, lambda app: Mutant(app, drop)) as url:
        result = headstart("audit", "--url", url, "--prompts", prompts, *FEW, "--json")
    assert result.exit_code == 1
    written = json.loads(result.stdout)
    assert written["verdict"].startswith("FAIL: stop strings: a stop string is in the text")
    # Nor does it say how likely its tokens are, so it is not said to follow any law.
    assert [each["result"] for each in written["findings"] if "laws" in each["check"]] == ["not offered"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--url", "localhost:8000"], "--url is 'localhost:8000'"),
        (["--against", "http://127.0.0.1:1"], "--against is for a server: give its --url"),
        (["--budget", "5"], "--budget is for a server"),
        (["--url", "http://127.0.0.1:1", "--drafters", "ngram"], "--drafters is for a model of your own: leave out"),
        (
            ["--url", "http://127.0.0.1:1", "--budget", "5"],
            "--budget is 5; to compare the texts of one prompt",
        ),
        (["--url", "http://127.0.0.1:1", "--api-key-file", "/nowhere"], "the API keys cannot be read from /nowhere"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_sentence(arguments: list[str], named: str) -> None:
    assert named in refusal(headstart("audit", *arguments))


def test_a_server_that_is_not_there_is_a_failure() -> None:
    said = refusal(headstart("audit", "--url", "http://127.0.0.1:1", "--quiet"), status=3)
    assert "no server answers at http://127.0.0.1:1" in said
    assert said.endswith("There is no verdict.")


@pytest.mark.thorough
def test_a_small_budget_asks_less_and_says_so(llm: LLM, prompts: Path) -> None:
    with served(llm) as url:
        call = ("audit", "--url", url, "--prompts", prompts, "--max-tokens", 12, "--budget", 90, "--json", "--quiet")
        result = headstart(*call)
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)
    assert written["requests"] <= 90
    assert written["verdict"].startswith("WEAK PASS: ")
    assert written["weakness"] == "weak, since no draws were held against a law"


@pytest.mark.parametrize(
    ("budget", "samples", "prompts"), [(None, 300, 12), (5000, 300, 12), (900, 44, 12), (652, 40, 6), (160, 0, 4)]
)
def test_a_budget_lowers_samples_then_prompts_then_leaves_out_draws(
    budget: int | None, samples: int, prompts: int
) -> None:
    settings, kept = EndpointSettings(budget=budget).fitted(12, 1)
    assert (settings.samples, kept) == (samples, prompts)
    assert settings.planned(kept, 1) <= (budget or math.inf)
