"""Requests that leave sampling out get the model's own defaults on every route; what they say wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import CHAT, ask
from tiny_checkpoint import write_tiny_model

from headstart import LLM, SamplingParams

ROUTES = {
    "/v1/completions": {"prompt": "hello there"},
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/responses": {"input": "hello there"},
    "/lab/run": {"messages": CHAT},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = write_tiny_model(tmp_path_factory.mktemp("model"))
    (model / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 5}')
    return model


def asked(llm: LLM, route: str, **fields: Any) -> SamplingParams:
    """What the engine is asked for when a client sends these fields."""
    seen: list[SamplingParams] = []
    samples = llm.samples

    def recorded(prompt: Any, params: SamplingParams, *args: Any, **kwargs: Any) -> Any:
        seen.append(params)
        return samples(prompt, params, *args, **kwargs)

    llm.samples = recorded  # type: ignore[method-assign]

    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(route, json={**ROUTES[route], **fields})

    reply = ask(llm, work)
    assert reply.status_code == 200, reply.text
    return seen[0]


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_left_out_or_null_is_the_models(folder: Path, route: str) -> None:
    params = asked(LLM(folder, "none", precision="fp32"), route)
    assert (params.temperature, params.top_p, params.max_tokens) == (0.6, 0.9, 5)
    params = asked(LLM(folder, "none", precision="fp32"), route, temperature=None, top_p=None)
    assert (params.temperature, params.top_p, params.max_tokens) == (0.6, 0.9, 5)


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_said_wins(folder: Path, route: str) -> None:
    most = "max_output_tokens" if route == "/v1/responses" else "max_tokens"
    params = asked(LLM(folder, "none", precision="fp32"), route, temperature=0, top_p=1.0, **{most: 3})
    assert (params.temperature, params.top_p, params.max_tokens) == (0, 1, 3)


@pytest.mark.parametrize("route", ROUTES)
def test_without_the_models_it_is_as_openais(folder: Path, route: str) -> None:
    fields = {} if route == "/v1/completions" else {"stop": "e"}
    params = asked(LLM(folder, "none", precision="fp32", generation_config="none", max_context=64), route, **fields)
    assert (params.temperature, params.top_p) == (1, 1)
    assert params.max_tokens == (16 if route == "/v1/completions" else None)


def test_a_response_says_what_it_was_sampled_with(folder: Path) -> None:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/responses", json={"input": "hello"})

    reply = ask(LLM(folder, "none", precision="fp32"), work).json()
    assert (reply["temperature"], reply["top_p"]) == (0.6, 0.9)
