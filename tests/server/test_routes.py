"""The routes that decode nothing: counts, tokens, the state of the server."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import CHAT, GREEDY, ask, assert_openai_error, post

from headstart import LLM


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
    assert 'vllm:request_success_total{finished_reason="length",model_name="tiny"} 1' in metrics
    assert "vllm:time_to_first_token_seconds_count 1" in metrics


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
