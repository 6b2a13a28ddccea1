"""The OpenAPI document: complete, and what the server itself serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import ask

from headstart import LLM
from headstart_server.openapi import document


def test_every_operation_says_what_it_does_and_how_it_fails() -> None:
    described = document()
    operations = [(path, o) for path, methods in described["paths"].items() for o in methods.values()]
    assert len(operations) == 29
    for path, operation in operations:
        assert operation["summary"]
        assert operation["description"]
        responses: dict[str, Any] = operation["responses"]
        assert "422" not in responses
        for status, response in responses.items():
            assert response["description"]
            if status != "200" and path != "/health":
                (media,) = response["content"].values()
                assert media["schema"]["$ref"].endswith(("/ErrorReply", "/AnthropicError", "/OllamaError"))
        if "requestBody" in operation:
            assert {"400", "401", "413"} <= set(responses)


def test_the_server_serves_it(tiny_model_dir: Path) -> None:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.get("/openapi.json")

    assert ask(LLM(tiny_model_dir, "none", precision="fp32"), work).json() == document()
