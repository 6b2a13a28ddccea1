"""Adapters at a server: by name at every route, listed, loaded and unloaded while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from adapter_toys import write_adapter
from serving import CHAT, GREEDY, alive, ask, assert_openai_error

from headstart import LLM, ConfigError, SamplingParams
from headstart_server.app import app_of
from headstart_server.arguments import ServeArguments
from headstart_server.many_models import Keeping, ManyModels
from headstart_server.model_list import read_models
from headstart_server.settings import ServerSettings

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PROMPT = {"prompt": "a text", **GREEDY}


@pytest.fixture(scope="module")
def adapters(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: str(write_adapter(root / name, tiny_model_dir, seed)) for seed, name in enumerate(("red", "blue"))}


def test_every_route_answers_with_the_adapter_that_is_named(tiny_model_dir: Path, adapters: dict[str, str]) -> None:
    llm = LLM(tiny_model_dir, "suffix", precision="fp32", prefix_caching=True, lora=adapters)
    said = {
        name: llm.generate(["a text"], SamplingParams(**GREEDY), lora_request=name)[0].text
        for name in (None, "red", "blue")
    }
    assert len(set(said.values())) == 3

    async def work(client: httpx.AsyncClient) -> None:
        async def told(path: str, body: dict[str, Any]) -> Any:
            reply = await client.post(path, json=body)
            assert reply.status_code == 200, reply.text
            return reply.json()

        for name, text in said.items():
            body = {**PROMPT, **({} if name is None else {"model": name})}
            reply = await told("/v1/completions", body)
            assert (reply["choices"][0]["text"], reply["model"]) == (text, name or "tiny")
        texts: dict[str, set[str]] = {}
        for name in ("tiny", "red", "blue"):
            chat = {"model": name, "messages": CHAT}
            answers = {
                "chat": (await told("/v1/chat/completions", {**chat, **GREEDY}))["choices"][0]["message"]["content"],
                "messages": (await told("/v1/messages", {**chat, **GREEDY}))["content"][0]["text"],
                "responses": (
                    await told(
                        "/v1/responses",
                        {"model": name, "input": CHAT[0]["content"], "temperature": 0, "max_output_tokens": 12},
                    )
                )["output"][0]["content"][0]["text"],
                "ollama": (
                    await told("/api/chat", {**chat, "stream": False, "options": {"temperature": 0, "num_predict": 12}})
                )["message"]["content"],
            }
            assert len(set(answers.values())) == 1, answers
            texts.setdefault("all", set()).update(answers.values())
        assert len(texts["all"]) == 3
        assert (await told("/tokenize", {"model": "red", "prompt": "abc"}))["count"] == 3
        listed = (await client.get("/v1/models")).json()["data"]
        assert [(each["id"], each["parent"]) for each in listed] == [("tiny", None), ("red", "tiny"), ("blue", "tiny")]
        assert listed[1]["root"] == adapters["red"]
        assert (await client.get("/v1/models/red")).json()["parent"] == "tiny"
        assert_openai_error(await client.post("/v1/completions", json={**PROMPT, "model": "pink"}), 404)
        metrics, totals = (await client.get("/metrics")).text, (await client.get("/stats")).json()["totals"]
        assert 'headstart:adapter_rounds_total{adapter="red",model_name="tiny"}' in metrics
        assert 'adapter="tiny"' not in metrics
        for name in ("red", "blue"):
            tokens, rounds = (
                totals[f'headstart:adapter_{what}_total{{adapter="{name}"}}'] for what in ("tokens", "rounds")
            )
            assert 5 * 12 == tokens >= rounds > 0

    ask(llm, work)


def test_adapters_come_and_go_while_requests_run(tiny_model_dir: Path, adapters: dict[str, str]) -> None:
    llm = LLM(tiny_model_dir, "ngram", precision="fp32", max_batch_size=4)
    long = {"prompt": "a text", "temperature": 0, "max_tokens": 200, "ignore_eos": True, "model": "red"}

    async def work(client: httpx.AsyncClient) -> None:
        async def post(path: str, body: dict[str, Any]) -> httpx.Response:
            return await client.post(path, json=body)

        assert_openai_error(await post("/v1/completions", long), 404)
        for name in (" ", "x\ny"):
            refused = await post(LOAD, {"lora_name": name, "lora_path": adapters["red"]})
            assert_openai_error(refused, 400)
            assert "is empty or unprintable; give another name" in refused.json()["error"]["message"]
        loaded = await post(LOAD, {"lora_name": "red", "lora_path": adapters["red"]})
        assert loaded.status_code == 200, loaded.text
        wanted = (await post("/v1/completions", long)).json()["choices"][0]["text"]
        running = [asyncio.create_task(post("/v1/completions", long)) for _ in range(2)]
        while llm.engine.idle and not all(each.done() for each in running):
            await asyncio.sleep(0.001)
        assert (await post(UNLOAD, {"lora_name": "red"})).status_code == 200
        assert (await post(LOAD, {"lora_name": "red", "lora_path": adapters["blue"]})).status_code == 200
        assert [(await each).json()["choices"][0]["text"] for each in running] == [wanted] * 2
        assert (await post("/v1/completions", long)).json()["choices"][0]["text"] != wanted
        for body, status in (
            ({"lora_name": "red", "lora_path": adapters["red"]}, 400),
            ({"lora_name": "tiny", "lora_path": adapters["red"]}, 400),
            ({"lora_name": "new", "lora_path": "/nowhere"}, 400),
            ({"lora_name": "", "lora_path": adapters["red"]}, 400),
        ):
            assert_openai_error(await post(LOAD, body), status)
        assert_openai_error(await post(UNLOAD, {"lora_name": "pink"}), 404)
        assert_openai_error(await post(UNLOAD, {"lora_name": "tiny"}), 400)

    ask(llm, work)


def test_an_adapter_is_not_named_as_its_model(tiny_model_dir: Path, adapters: dict[str, str]) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        raise AssertionError("it is served")

    with pytest.raises(ConfigError, match="lora names an adapter 'tiny', as the model is named"):
        ask(LLM(tiny_model_dir, "none", lora={"tiny": adapters["red"]}), work, ServerSettings("tiny"))
    with pytest.raises(ConfigError, match="lora names an adapter 'tiny:latest', as the model is named"):
        ask(LLM(tiny_model_dir, "none", lora={"tiny:latest": adapters["red"]}), work, ServerSettings("tiny"))


def test_a_tag_that_stands_for_none_is_one_with_none(tiny_model_dir: Path, adapters: dict[str, str]) -> None:
    """Ollama's clients ask for NAME:latest where one writes NAME, and list names with tags."""
    lora = {"red:latest": adapters["red"], "blue": adapters["blue"]}

    async def work(client: httpx.AsyncClient) -> None:
        for asked, known in (("red", "red:latest"), ("blue:latest", "blue"), ("tiny", "tiny:latest")):
            for name in (asked, known):
                assert (await client.post("/v1/completions", json={**PROMPT, "model": name})).json()["model"] == known
                shown = await client.post("/api/show", json={"model": name})
                assert shown.json()["modelfile"] == f"FROM {known}\n"
        assert_openai_error(await client.post("/v1/completions", json={**PROMPT, "model": "red:8b"}), 404)
        for name in ("red", "blue:latest", "tiny"):
            error = assert_openai_error(
                await client.post(LOAD, json={"lora_name": name, "lora_path": adapters["red"]}), 400
            )
            assert "is served already" in error["message"]
        assert (await client.post(UNLOAD, json={"lora_name": "red"})).status_code == 200
        assert_openai_error(await client.post("/v1/completions", json={**PROMPT, "model": "red:latest"}), 404)

    ask(LLM(tiny_model_dir, "none", lora=lora), work, ServerSettings("tiny:latest"))


def test_adapters_need_the_key(tiny_model_dir: Path, adapters: dict[str, str]) -> None:
    llm = LLM(tiny_model_dir, "none")
    settings = ServerSettings("tiny", api_keys=("secret",))

    async def work(client: httpx.AsyncClient) -> None:
        body = {"lora_name": "red", "lora_path": adapters["red"]}
        assert (await client.post(LOAD, json=body)).status_code == 401
        assert (await client.post(UNLOAD, json=body)).status_code == 401
        assert (await client.post(LOAD, json=body, headers={"x-api-key": "secret"})).status_code == 200

    ask(llm, work, settings)


def test_a_model_among_several_is_loaded_for_its_adapter(
    tiny_model_dir: Path, adapters: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "models.yaml").write_text(
        f"plain: {tiny_model_dir}\nother:\n  model: {tiny_model_dir}\n  lora: [red={adapters['red']}]\n"
    )
    shared = ServeArguments(models=tmp_path / "models.yaml", drafter="none", more_drafters=(), precision="fp32")
    models = ManyModels(read_models(shared), ServerSettings("models"), Keeping(), lambda: None)

    async def run() -> None:
        app = app_of(models)
        async with alive(app):
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
                texts = []
                for name in ("red", "other", "plain"):
                    reply = (await client.post("/v1/completions", json={**PROMPT, "model": name})).json()
                    assert reply["model"] == name
                    texts.append(reply["choices"][0]["text"])
                assert texts[0] != texts[1] == texts[2]
                listed = (await client.get("/v1/models")).json()["data"]
                assert [(each["id"], each["parent"]) for each in listed if each["parent"]] == [("red", "other")]
                body = {"lora_name": "blue", "lora_path": adapters["blue"], "model": "plain"}
                assert (await client.post(LOAD, json=body)).status_code == 200
                assert (await client.post(UNLOAD, json={"lora_name": "blue"})).status_code == 200

    asyncio.run(run())
