"""Replicas on real Ray: what one server would say, a chat's own replica, replicas that are killed and replaced."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_environments import RAY, ROOT, needs, run_in
from server_texts import texts
from tiny_checkpoint import write_tiny_model

from headstart import LLM

pytestmark = [pytest.mark.engines, needs(RAY)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def found(model: Path) -> Any:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return run_in(RAY, Path(__file__).parent / "ray_trial.py", [model, port], model.parent)


@pytest.fixture(scope="module")
def alone(model: Path) -> Any:
    """What a model by itself says to chats."""
    with LLM(model, "none", precision="fp32") as llm:
        yield lambda bodies: texts(llm, bodies)


def test_replicas_say_what_one_server_says(found: Any, alone: Any) -> None:
    answers = found["answers"]
    expected = alone(answers["bodies"])
    assert [each["text"] for each in answers["plain"]] == expected
    assert [each["text"] for each in answers["streamed"]] == expected
    assert all(each["done"] and each["parts"] > 1 for each in answers["streamed"])


def test_who_is_refused_by_one_server_is_refused(found: Any) -> None:
    answers = found["answers"]
    assert (answers["stranger"], answers["long"], answers["health"]) == (401, 413, 200)
    assert answers["wrong"][0] == 400
    assert answers["wrong"][1]["error"]["param"] == "messages"


def test_the_cluster_takes_orders_from_nobody_else(found: Any) -> None:
    assert found["stranger"]["status"] != 0, found["stranger"]["said"]
    assert "auth" in found["stranger"]["complaint"].lower()


def test_metrics_are_those_of_all_replicas(found: Any) -> None:
    metrics = found["answers"]["metrics"]
    assert len(set(re.findall(r'^vllm:generation_tokens_total{replica="(\w+)"', metrics, flags=re.MULTILINE))) >= 1
    assert len(set(re.findall(r'^vllm:num_requests_running{replica="(\w+)"', metrics, flags=re.MULTILINE))) == 2


def test_a_chat_returns_to_the_replica_that_holds_its_blocks(found: Any) -> None:
    for chat in found["turns"]:
        assert len({turn["replica"] for turn in chat}) == 1
        assert chat[0]["cached"] < chat[1]["cached"] < chat[2]["cached"]
    assert len({chat[0]["replica"] for chat in found["turns"]}) == 2


def test_a_hundred_streams_at_once(found: Any, alone: Any) -> None:
    crowd = found["crowd"]
    assert len(crowd["streams"]) == 100
    assert [each["text"] for each in crowd["streams"][:10]] == alone(crowd["bodies"][:10])
    assert all(each == crowd["streams"][i % 10]["text"] for i, each in enumerate(s["text"] for s in crowd["streams"]))
    assert all(each["done"] for each in crowd["streams"])
    assert len({each["replica"] for each in crowd["streams"]}) == 2


def test_a_reader_who_leaves_ends_the_request(found: Any) -> None:
    assert found["leaving"]


def test_a_killed_replica_costs_its_own_streams_alone(found: Any, alone: Any) -> None:
    killing = found["killing"]
    expected = alone(killing["bodies"])
    lost = [each for each in killing["streams"] if each["replica"] == killing["victim"] and not each["done"]]
    assert lost
    assert all(each["code"] == "replica_lost" for each in lost)
    for each, text in zip(killing["streams"], expected, strict=False):
        assert text.startswith(each["text"])
        if not any(each is other for other in lost):
            assert (each["text"], each["code"], each["done"]) == (text, None, True)


def test_what_was_not_begun_is_answered_by_another_replica(found: Any, alone: Any) -> None:
    killing = found["killing"]
    assert killing["waiting"] > 0
    assert [each.get("text") for each in killing["whole"]] == alone(killing["bodies"][8:])
    assert all(each["replica"] != killing["victim"] for each in [*killing["whole"][-1:], killing["after"]])


def test_a_rolling_update_loses_no_request(found: Any, alone: Any) -> None:
    update = found["update"]
    (expected,) = alone([update["body"]])
    assert update["found"]
    assert {each.get("text") for each in update["found"]} == {expected}
    assert update["long"]["done"]
    assert not set(update["before"]) & set(update["after"])


def test_replicas_follow_the_load_and_no_request_is_lost(model: Path, alone: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = run_in(RAY, Path(__file__).parent / "ray_scaling_trial.py", [model, port], model.parent)
    expected = alone(found["bodies"])
    assert [each.get("text") for _, each in found["found"]] == [expected[number] for number, _ in found["found"]]
    assert len({each["replica"] for _, each in found["found"]}) == 2
    assert len(found["before"]) == len(found["after"]) == 1


def test_the_command_serves_and_sigterm_lets_requests_finish(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = "from headstart.cli.main import main; main()"
    serve = ["serve", "--ray", "--replicas", "1", "-m", model, "--precision", "fp32", "-d", "none", "--port", port]
    with (model / "serve.log").open("w+") as log:
        server = subprocess.Popen(
            [RAY.python, "-c", code, *map(str, serve)],
            stderr=log, stdout=log, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        try:
            said = await_line(model / "serve.log", "OpenAI API: ", server)
            body = {"prompt": "a", "max_tokens": 400, "temperature": 0, "stream": True, "ignore_eos": True}
            lines = []
            with httpx.stream("POST", f"{said}/completions", json=body, timeout=60) as reply:
                for line in reply.iter_lines():
                    if not lines:
                        server.send_signal(signal.SIGTERM)
                    lines.append(line)
            assert lines[-2:] == ["data: [DONE]", ""]
            assert server.wait(60) == 0
        finally:
            server.kill()


def test_a_config_file_is_served(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    application = {
        "name": "headstart",
        "import_path": "headstart_integrations.ray:build_app",
        "args": {"model": str(model), "precision": "fp32", "drafter": "none", "served_name": "tiny, small"},
    }
    config = model / "serve.json"  # JSON is YAML
    config.write_text(json.dumps({"http_options": {"port": port}, "applications": [application]}))
    with (model / "config.log").open("w+") as log:
        server = subprocess.Popen(
            [RAY.python.with_name("serve"), "run", config],
            stderr=log, stdout=log, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        try:
            end = time.monotonic() + 300
            while (served := served_names(port)) is None:
                alive = server.poll() is None and time.monotonic() < end
                assert alive, (model / "config.log").read_text(encoding="utf-8")[-4000:]
                time.sleep(0.5)
            assert served == ["tiny", "small"]
        finally:
            server.terminate()
            server.wait(60)


def served_names(port: int) -> list[str] | None:
    try:
        reply = httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=10)
    except httpx.TransportError:
        return None
    return [each["id"] for each in reply.json()["data"]] if reply.status_code == 200 else None


def await_line(log: Path, start: str, server: subprocess.Popen[bytes]) -> str:
    """The rest of the first line that begins like that."""
    while server.poll() is None:
        for line in log.read_text(encoding="utf-8").splitlines():
            if line.startswith(start):
                return line.removeprefix(start)
        time.sleep(0.2)
    raise AssertionError(log.read_text(encoding="utf-8")[-4000:])
