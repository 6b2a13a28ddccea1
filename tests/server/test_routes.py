"""The routes that decode nothing: counts, tokens, the state of the server."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from jinja2.sandbox import SandboxedEnvironment

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import CHAT, GREEDY, ask, assert_openai_error, post

from headstart import LLM
from headstart_server.settings import ServerSettings


def test_metrics_add_up(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> tuple[dict[str, Any], dict[str, Any], str]:
        usage = (await client.post("/v1/completions", json={"prompt": "abab", **GREEDY})).json()["usage"]
        return usage, (await client.get("/stats")).json(), (await client.get("/metrics")).text

    usage, stats, metrics = ask(llm, work)
    totals = stats["totals"]
    assert totals["vllm:generation_tokens_total"] == usage["completion_tokens"] == 12
    assert totals["vllm:spec_decode_num_draft_tokens_total"] == usage["speculation"]["drafted"]
    for position, accepted in enumerate(usage["speculation"]["accepted_per_position"]):
        series = f'{{drafter="suffix",position="{position}"}}'
        assert totals[f"headstart:spec_decode_accepted_per_pos_total{series}"] == accepted
    assert stats["now"]["vllm:num_requests_running"] == 0
    assert 'vllm:request_success_total{finished_reason="length",model_name="tiny"} 1.0' in metrics
    assert 'vllm:time_to_first_token_seconds_count{model_name="tiny"} 1.0' in metrics


def test_tokens_go_both_ways(llm: LLM) -> None:
    reply = post(llm, "/tokenize", {"prompt": "héllo"}).json()
    assert reply["count"] == len(reply["tokens"]) == 6
    assert post(llm, "/detokenize", {"tokens": reply["tokens"]}).json() == {"prompt": "héllo"}
    chat = post(llm, "/tokenize", {"messages": CHAT}).json()["tokens"]
    assert chat == llm.encode_chat(CHAT).token_ids
    assert_openai_error(post(llm, "/tokenize", {}), 400)
    for token in (-1, llm.model.config.vocab_size, 2**70):
        error = assert_openai_error(post(llm, "/detokenize", {"tokens": [5, token]}), 400)
        assert str(token) in error["message"]


def test_a_tokenizer_is_told_as_its_settings_file_would(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> dict[str, Any]:
        return (await client.get("/tokenizer_info")).json()

    info = ask(llm, work)
    assert (info["bos_token"], info["eos_token"], info["pad_token"]) == ("<|im_start|>", "<|im_end|>", None)
    assert info["model_max_length"] == llm.engine.limits.max_context
    added = {int(token): each["content"] for token, each in info["added_tokens_decoder"].items()}
    assert {llm.model.tokenizer.vocabulary[text] for text in added.values()} == set(added) >= {256}
    rendered = (
        SandboxedEnvironment().from_string(info["chat_template"]).render(messages=CHAT, add_generation_prompt=True)
    )
    assert rendered == llm.encode_chat(CHAT).text


def test_all_names_of_a_model_are_answered_to(llm: LLM) -> None:
    settings = ServerSettings("first", other_names=("second", "third"))

    async def work(client: httpx.AsyncClient) -> None:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [(each["id"], each["root"]) for each in listed] == [(name, "first") for name in settings.names]
        for name in (*settings.names, None):
            reply = await client.post("/v1/completions", json={"prompt": "a", "model": name, **GREEDY})
            assert reply.json()["model"] == "first"
        assert (await client.get("/v1/models/third")).json()["id"] == "third"
        error = assert_openai_error(await client.post("/v1/completions", json={"prompt": "a", "model": "other"}), 404)
        assert "'first' or 'second' or 'third'" in error["message"]

    ask(llm, work, settings)


def test_what_get_answers_head_answers_without_a_body(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for path in ("/", "/docs", "/health", "/v1/models", "/v1/models/tiny", "/metrics", "/openapi.json"):
            got, head = await client.get(path), await client.head(path)
            assert head.status_code == got.status_code == 200
            assert head.content == b""
            assert head.headers["content-type"] == got.headers["content-type"]
        assert (await client.head("/v1/completions")).status_code == 405
        assert (await client.head("/nothing")).status_code == 404

    ask(llm, work)


def test_options_say_what_a_path_takes_and_need_no_key(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for path, methods in [("/v1/completions", "OPTIONS, POST"), ("/v1/models", "GET, HEAD, OPTIONS")]:
            reply = await client.options(path)
            assert (reply.status_code, reply.headers["allow"]) == (204, methods)
        assert_openai_error(await client.options("/nothing"), 404)
        key = {"authorization": "Bearer key"}
        reply = await client.put("/v1/completions", headers=key)
        assert_openai_error(reply, 405)
        assert reply.headers["allow"] == "OPTIONS, POST"

    ask(llm, work, ServerSettings("tiny", api_keys=("key",)))


@pytest.mark.parametrize("origins", [("https://page.test",), ("*",)])
def test_pages_of_allowed_origins_may_ask_first(llm: LLM, origins: tuple[str, ...]) -> None:
    asking = {
        "origin": "https://page.test",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }

    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.options("/v1/chat/completions", headers=asking)

    reply = ask(llm, work, ServerSettings("tiny", api_keys=("key",), cors_origins=origins))
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == origins[0]
    assert "authorization" in reply.headers["access-control-allow-headers"]


def test_the_page_of_the_api_names_every_route_and_loads_nothing_from_elsewhere(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> tuple[str, str, dict[str, Any]]:
        page, style = await client.get("/docs"), await client.get("/docs/page.css")
        assert page.headers["content-security-policy"].startswith("default-src 'self'")
        assert style.headers["content-type"].startswith("text/css")
        key = {"authorization": "Bearer key"}
        return page.text, style.text, (await client.get("/openapi.json", headers=key)).json()

    page, style, document = ask(llm, work, ServerSettings("tiny", api_keys=("key",)))
    for path in document["paths"]:
        assert f"</b> {path}<" in page
    for name in document["components"]["schemas"]:
        assert f'id="{name}"' in page
    assert "structured_outputs" in page
    assert "//" not in page.replace("<!doctype", "")
    assert "url(" not in style


@pytest.mark.parametrize(
    ("field", "allowed"), [("n", "[1, 16]"), ("logprobs", "[0, 20]"), ("prompt_logprobs", "[0, 20]")]
)
def test_both_ends_of_a_range_are_named_alike(llm: LLM, field: str, allowed: str) -> None:
    for value in (-2, 21, *([0, 17] if field == "n" else [-1])):
        error = assert_openai_error(post(llm, "/v1/completions", {"prompt": "a", field: value}), 400)
        assert error["param"] == field
        assert f"{field} is {value}; it must lie in {allowed}" in error["message"]


def test_state_is_told(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> list[dict[str, Any]]:
        assert_openai_error(await client.get("/v1/models/other"), 404)
        paths = ("/v1/models", "/v1/models/tiny", "/health", "/version", "/openapi.json")
        return [(await client.get(path)).json() for path in paths]

    models, model, health, version, document = ask(llm, work)
    assert models["data"] == [model]
    assert model["id"] == "tiny"
    assert health == {"status": "ok"}
    assert version["version"]
    assert "/v1/chat/completions" in document["paths"]


@pytest.mark.parametrize(
    ("path", "said"),
    [("/v1/embeddings", "embeddings are not made here"), ("/v1/rerank", "nothing is ranked here")],
)
def test_what_others_do_is_said_with_who_does_it(llm: LLM, path: str, said: str) -> None:
    error = assert_openai_error(post(llm, path, {"model": "tiny", "input": "a"}), 404)
    assert error["message"].startswith(said)
    assert "vLLM" in error["message"]
