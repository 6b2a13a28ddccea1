"""The audit of a server: Headstart's own passes, and each server that is wrong in one way is found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from endpoint_servers import Mutant, served
from thinning import thorough_but
from tiny_checkpoint import write_tiny_model

from headstart import LLM
from headstart.drafting.base import SpeculationParams
from headstart.errors import ConfigError, HeadstartError
from headstart.loading.model import Model, load_model
from headstart_lab.audit.endpoint.client import Endpoint
from headstart_lab.audit.endpoint.draws import LawChecks
from headstart_lab.audit.endpoint.endpoint_report import exhibits, to_json
from headstart_lab.audit.endpoint.findings import EndpointAudit, Finding, Result
from headstart_lab.audit.endpoint.forms import check_grammar, check_logprobs, check_tools
from headstart_lab.audit.endpoint.run import EndpointRun, EndpointSettings, declared_fields
from headstart_lab.audit.endpoint.texts import (
    Greedy,
    check_against,
    check_counts,
    check_greedy,
    check_samples,
    check_seeds,
    check_stops,
    check_streams,
)

PROMPTS = ("one two one two one", "hello there")
Check = Callable[[Greedy], Awaitable[list[Finding]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    # Of a shape that the native pass computes: quick, and the same bits in every pass.
    return load_model(write_tiny_model(tmp_path_factory.mktemp("endpoint"), head_dim=32), "fp32")


@pytest.fixture
def llm(model: Model) -> LLM:
    return LLM(model, "suffix", prefix_caching=True, tolerant=True)


def check(llm: LLM, work: Check, wrap: Callable[[Any], Any] = lambda app: app) -> list[Finding]:
    """The findings of one check about a server."""

    async def run(url: str) -> list[Finding]:
        async with Endpoint(url).connected() as endpoint:
            greedy = Greedy(endpoint, PROMPTS, 24)
            await greedy.begin()
            return await work(greedy)

    with served(llm, wrap) as url:
        return asyncio.run(run(url))


def check_law(llm: LLM, name: str, wrap: Callable[[Any], Any] = lambda app: app, samples: int = 60) -> EndpointAudit:
    """The tests of the law whose name begins so."""

    async def run(url: str) -> list[Finding]:
        async with Endpoint(url).connected() as endpoint:
            laws = LawChecks(endpoint, None, PROMPTS, samples, samples // 2, 0, await declared_fields(endpoint))
            transforms, missing = await laws.prepare()
            assert not missing
            (transform,) = [each for each in transforms if each.name.startswith(name)][:1]
            return await laws.check(transform)

    with served(llm, wrap) as url:
        audit = EndpointAudit(url, "tiny")
        audit.findings = asyncio.run(run(url))
    return audit


def results(findings: list[Finding]) -> set[Result]:
    return {finding.wanted for finding in findings}


@pytest.mark.thorough
def test_headstarts_own_server_passes_everything(llm):
    settings = EndpointSettings(max_tokens=16, samples=40)
    with served(llm) as url:
        run = EndpointRun(Endpoint(f"{url}/v1/"), Endpoint(url), PROMPTS, settings)
        audit = asyncio.run(run.run())
    assert audit.passed, audit.verdict
    assert audit.verdict.startswith("WEAK PASS: ")
    assert audit.requests <= settings.planned(len(PROMPTS), 2)
    assert not audit.of(Result.ROUNDING, Result.NOT_OFFERED, Result.FAIL)
    said = {finding.check: finding for finding in audit.findings}
    for name in ("greedy texts, 8 at a time", "stop strings, streamed", "n", "usage", "seeds of both servers"):
        assert audit.result(said[name]) is Result.PASS, name
    assert {name.split(", ")[1].split()[0] for name in said if name.startswith("draws")} == {
        *("temperature", "top_p", "top_k", "min_p", "logit_bias")
    }
    written = to_json(audit, {})
    assert written["passed"]
    assert all(law["detectable_total_variation"] for law in written["findings"] if law["check"].startswith("draws"))
    assert [table.title for table in exhibits(audit)] == [
        "What must be equal, or have a form",
        "Draws against their laws",
    ]


def dropping(*names: str) -> Callable[[Any], Any]:
    def drop(body: dict[str, Any], busy: int) -> None:
        for name in names:
            body.pop(name, None)

    return lambda app: Mutant(app, drop)


@pytest.mark.parametrize("field", thorough_but(["top_p"], ["top_p", "top_k", "min_p", "logit_bias"]))
def test_a_server_that_drops_a_transform_is_found(llm, field):
    audit = check_law(llm, field, dropping(field))
    assert audit.faults, audit.verdict
    assert audit.verdict.startswith(f"FAIL: draws, {field}")


@pytest.mark.thorough
def test_a_server_that_cools_its_draws_is_found(llm):
    def cool(body: dict[str, Any], busy: int) -> None:
        if body.get("temperature") == 1:
            body["temperature"] = 0.6

    audit = check_law(llm, "temperature 1", lambda app: Mutant(app, cool))
    assert [fault.split(":")[0] for fault in audit.faults] == ["draws, temperature 1", "short texts, temperature 1"]


@pytest.mark.thorough
def test_seeds_of_which_few_are_used_are_found(llm):
    def narrow(body: dict[str, Any], busy: int) -> None:
        if body.get("seed") is not None:
            body["seed"] %= 3

    audit = check_law(llm, "temperature 1", lambda app: Mutant(app, narrow))
    assert any("short texts" in fault for fault in audit.faults)


@pytest.mark.thorough
def test_a_lossy_verification_rule_is_found(model):
    right, wrong = (
        LLM(model, "draft-model", drafter_options={"layers": 1}, speculation=speculation)
        for speculation in (SpeculationParams(), SpeculationParams(typical=0.3))
    )
    assert not check_law(right, "temperature 1", samples=120).faults
    assert check_law(wrong, "temperature 1", samples=120).faults


@pytest.mark.thorough
def test_a_law_whose_field_was_never_offered_is_no_fault(llm):
    audit = check_law(llm, "min_p", lambda app: Undeclared(dropping("min_p")(app)))
    assert not audit.faults
    assert "not declared" in audit.of(Result.NOT_OFFERED)[0].said


class Undeclared:
    """Says nothing of what it takes."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == "/openapi.json":
            scope = {**scope, "path": "/nowhere", "raw_path": b"/nowhere"}
        await self._app(scope, receive, send)


def test_greedy_texts_that_change_in_company_are_found(llm):
    def other_when_busy(body: dict[str, Any], busy: int) -> None:
        if busy > 1 and body["temperature"] == 0:
            body |= {"temperature": 1, "seed": 7}

    findings = check(llm, check_greedy, lambda app: Mutant(app, other_when_busy))
    wrong = {finding.check for finding in findings if finding.wanted is Result.FAIL}
    assert "greedy texts, 8 at a time" in wrong
    assert "greedy texts asked again" not in wrong
    assert any(finding.details and finding.details[0]["tie"] is False for finding in findings)


def test_a_stop_string_that_does_not_stop_is_found(llm):
    findings = check(llm, check_stops, dropping("stop"))
    assert results(findings) == {Result.FAIL}
    assert "a stop string is in the text" in findings[0].said


def test_a_count_that_is_off_by_one_is_found(llm):
    def one_more(reply: dict[str, Any]) -> None:
        if reply.get("usage"):
            reply["usage"]["completion_tokens"] += 1
            reply["usage"]["total_tokens"] += 1

    (finding,) = check(llm, check_counts, lambda app: Mutant(app, change_reply=one_more))
    assert finding.wanted is Result.FAIL
    assert "completion_tokens is 25 for a text cut at max_tokens 24" in finding.said


def test_a_stream_that_loses_a_piece_is_found(llm):
    def lose(reply: dict[str, Any]) -> None:
        for choice in reply["choices"]:
            if "delta" in choice and choice["delta"].get("content"):
                choice["delta"]["content"] = choice["delta"]["content"][1:]

    async def work(greedy: Greedy) -> list[Finding]:
        return [*await check_greedy(greedy), await check_streams(greedy)]

    findings = check(llm, work, lambda app: Mutant(app, change_reply=lose))
    assert [finding.check for finding in findings if finding.wanted is Result.FAIL] == ["greedy texts, streamed"]


def test_samples_that_are_one_draw_are_found(llm):
    def repeat(reply: dict[str, Any]) -> None:
        for choice in reply["choices"]:
            choice["message"] = reply["choices"][0]["message"]

    (finding,) = check(llm, check_samples, lambda app: Mutant(app, change_reply=repeat))
    assert finding.wanted is Result.FAIL
    assert "all 3 draws are the same text" in finding.said


@pytest.mark.parametrize(
    ("work", "field"),
    thorough_but(
        [(check_grammar, "response_format")], [(check_grammar, "response_format"), (check_tools, "tool_choice")]
    ),
    ids=["schema", "tools"],
)
def test_a_form_that_is_not_kept_is_found(llm, work, field):
    assert results(check(llm, work)) == {Result.PASS}
    (finding,) = check(llm, work, lambda app: Mutant(app, lambda body, busy: shorten(body, field)))
    assert finding.wanted is Result.FAIL


def shorten(body: dict[str, Any], field: str) -> None:
    """Without the field, and so that the answer ends by itself."""
    if body.pop(field, None) is not None:
        body["stop"] = [" ", "e", "a", "o", "1", "t"]


def test_log_probabilities_of_another_token_are_found(llm):
    def worse(reply: dict[str, Any]) -> None:
        for choice in reply["choices"]:
            for entry in (choice.get("logprobs") or {}).get("content", ()):
                entry["logprob"] -= 1

    findings = check(llm, lambda greedy: check_logprobs(greedy, None), lambda app: Mutant(app, change_reply=worse))
    assert findings[0].wanted is Result.FAIL


def test_what_is_refused_is_not_offered(llm):
    def refuse(body: dict[str, Any], busy: int) -> None:
        if any(name in body for name in ("stop", "seed", "response_format", "tools")) or body.get("n", 1) > 1:
            body["max_tokens"] = -2

    async def work(greedy: Greedy) -> list[Finding]:
        return [
            *await check_stops(greedy),
            *await check_samples(greedy),
            *await check_seeds(greedy, None),
            *await check_grammar(greedy),
            *await check_tools(greedy),
        ]

    findings = check(llm, work, lambda app: Mutant(app, refuse))
    assert results(findings) == {Result.NOT_OFFERED}
    assert all("max_tokens is -2" in finding.said for finding in findings)


class Failing:
    """Fails at every request for a form."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        parts = [await receive()] if scope["type"] == "http" else []
        while parts and parts[-1].get("more_body"):
            parts.append(await receive())
        if any(b"response_format" in part.get("body", b"") for part in parts):
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b"the engine is confused"})
            return
        left = iter(parts)

        async def again() -> Any:
            return next(left, None) or await receive()

        await self._app(scope, again, send)


@pytest.mark.thorough
def test_a_request_at_which_the_server_fails_is_a_fault_of_that_check_alone(llm):
    with served(llm, wrap=Failing) as url:
        run = EndpointRun(Endpoint(url), None, PROMPTS[:1], EndpointSettings(max_tokens=8, samples=40))
        audit = asyncio.run(run.run())
    (wrong,) = audit.of(Result.FAIL)
    assert wrong.check == "response_format"
    assert "failed with status 500: the engine is confused" in wrong.said
    assert not audit.passed
    # What comes after it is judged.
    assert any(finding.check.startswith("draws") for finding in audit.findings)


def test_two_servers_of_different_models_are_told_apart(llm, tmp_path):
    other = LLM(load_model(write_tiny_model(tmp_path, seed=1, head_dim=32), "fp32"), "none")

    async def run(one: str, two: str) -> Finding:
        async with Endpoint(one).connected() as ours, Endpoint(two).connected() as theirs:
            each = [Greedy(endpoint, PROMPTS, 8) for endpoint in (ours, theirs)]
            for greedy in each:
                await greedy.begin()
            return await check_against(*each)

    with served(llm) as one, served(other) as two:
        assert asyncio.run(run(one, two)).wanted is Result.FAIL


def test_a_budget_lowers_the_samples_and_is_kept():
    settings, prompts = EndpointSettings(samples=1000, budget=2000).fitted(prompts=4, servers=1)
    assert prompts == 4
    assert 40 <= settings.samples < 1000
    assert settings.planned(4, 1) <= 2000
    with pytest.raises(ConfigError, match="--budget is 49; to compare the texts of one prompt takes 50"):
        EndpointSettings(budget=49).fitted(4, 1)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="--url is"):
        Endpoint(url)


def test_a_server_that_is_not_there_is_said_in_a_sentence():
    with pytest.raises(HeadstartError, match=r"no server answers at http://127\.0\.0\.1:9 \("):
        asyncio.run(EndpointRun(Endpoint("http://127.0.0.1:9"), None, PROMPTS, EndpointSettings()).run())
