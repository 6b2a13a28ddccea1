"""Two replicas of a tiny model on real Ray, as a program: says what came of each trial, as JSON.

python ray_trial.py MODEL
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx

from headstart_integrations.ray.guarding import guard_cluster

guard_cluster()

import ray  # noqa: E402
from ray import serve  # noqa: E402

from headstart_integrations.ray import application  # noqa: E402
from headstart_integrations.ray.arguments import RayArguments  # noqa: E402
from headstart_integrations.ray.cluster import NAME, Need, connected, running  # noqa: E402

KEY = "secret"
REPLICA = "headstart-replica"
PATIENCE = 120.0
GREEDY = {"temperature": 0, "ignore_eos": True}
Client = httpx.AsyncClient


def chat(text: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, **GREEDY, **more}


async def ask(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    reply = await client.post("/v1/chat/completions", json=body)
    said = reply.json()
    if reply.status_code != 200:
        return {"status": reply.status_code, "code": said["error"]["code"]}
    message = said["choices"][0]["message"]["content"]
    cached = said["usage"]["prompt_tokens_details"]["cached_tokens"]
    return {"status": 200, "text": message, "replica": reply.headers[REPLICA], "cached": cached}


async def stream(client: Client, body: dict[str, Any], found: dict[str, Any] | None = None) -> dict[str, Any]:
    """The text of a stream, the number of its parts that hold text, its replica and its error; ``found`` has them as
    they come."""
    found = {} if found is None else found
    found |= {"text": "", "parts": 0, "code": None, "done": False}
    async with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as reply:
        found |= {"status": reply.status_code, "replica": reply.headers.get(REPLICA)}
        async for line in reply.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                found["done"] = True
                continue
            said = json.loads(line.removeprefix("data: "))
            if "error" in said:
                found["code"] = said["error"]["code"]
            elif said["choices"] and (part := said["choices"][0]["delta"].get("content")):
                found["text"] += part
                found["parts"] += 1
    return found


async def stats(client: Client) -> dict[str, Any]:
    return dict((await client.get("/stats")).json()["replicas"])


async def until(true: Callable[[], Awaitable[bool]], seconds: float = 0.2) -> None:
    end = time.monotonic() + PATIENCE
    while not await true():
        assert time.monotonic() < end
        await asyncio.sleep(seconds)


async def answers(client: Client) -> dict[str, Any]:
    """What one server says as well: greedy and seeded, plainly and as a stream; and who is not let in."""
    bodies = [chat(f"Question {i}", 24) for i in range(4)] + [
        {"messages": [{"role": "user", "content": "Draw"}], "max_tokens": 24, "seed": 7, "temperature": 1.0}
    ]
    plain = [await ask(client, body) for body in bodies]
    streamed = [await stream(client, body) for body in bodies]
    stranger = await client.post("/v1/chat/completions", json=bodies[0], headers={"authorization": "Bearer x"})
    wrong = await client.post("/v1/chat/completions", json={"messages": 3})
    metrics = (await client.get("/metrics")).text
    long = await client.post("/v1/completions", content=b" " * (3 << 20))
    return {
        "bodies": bodies, "plain": plain, "streamed": streamed, "stranger": stranger.status_code,
        "wrong": [wrong.status_code, wrong.json()], "metrics": metrics, "long": long.status_code,
        "health": (await client.get("/health", headers={"authorization": ""})).status_code,
    }  # fmt: skip


async def turns(client: Client) -> list[list[dict[str, Any]]]:
    """Chats of three turns, one after the other."""
    chats = []
    for number in range(8):
        messages: list[dict[str, str]] = []
        found = []
        for turn in range(3):
            messages.append({"role": "user", "content": f"Chat {number}, turn {turn}: go on with the long story."})
            found.append(await ask(client, {"messages": messages, "max_tokens": 12, **GREEDY}))
            messages.append({"role": "assistant", "content": found[-1]["text"]})
        chats.append(found)
    return chats


async def crowd(client: Client) -> dict[str, Any]:
    """A hundred streams at once."""
    bodies = [chat(f"Number {i % 10}", 8) for i in range(100)]
    return {"bodies": bodies, "streams": await asyncio.gather(*(stream(client, body) for body in bodies))}


async def leaving(client: Client) -> bool:
    """Whether a request ends when its reader leaves."""
    found: dict[str, Any] = {"parts": 0}
    reading = asyncio.create_task(stream(client, chat("I leave", 400), found))

    async def begun() -> bool:
        return bool(found["parts"])

    await until(begun, 0.0)
    reading.cancel()

    async def idle() -> bool:
        return all(each["now"]["vllm:num_requests_running"] == 0 for each in (await stats(client)).values())

    await until(idle)
    totals = [each["totals"] for each in (await stats(client)).values()]
    return any(each.get('vllm:request_success_total{finished_reason="abort"}') for each in totals)


async def killing(client: Client) -> dict[str, Any]:
    """Kill one replica while streams and whole answers are on their way."""
    bodies = [chat(f"Load {i}", 300) for i in range(16)]
    founds: list[dict[str, Any]] = [{"parts": 0} for _ in bodies[:8]]
    streams = [asyncio.create_task(stream(client, body, found)) for body, found in zip(bodies, founds, strict=False)]
    whole = [asyncio.create_task(ask(client, body)) for body in bodies[8:]]
    seen: dict[str, tuple[int, int]] = {}

    async def loaded() -> bool:
        """Whether a replica has both kinds of requests; ``seen``: which one, its process and its whole answers."""
        for name, each in (await stats(client)).items():
            running = int(each["now"]["vllm:num_requests_running"])
            streaming = sum(found.get("replica") == name and not found["done"] for found in founds)
            if all(found["parts"] for found in founds) and 0 < streaming < running:
                seen[name] = each["process"], running - streaming
        return bool(seen)

    await until(loaded, 0.0)
    victim, (process, waiting) = next(iter(seen.items()))
    os.kill(process, signal.SIGKILL)
    found = await asyncio.gather(*streams), await asyncio.gather(*whole)
    after = await ask(client, chat("After", 8))

    async def replaced() -> bool:
        there = await stats(client)
        return len(there) == 2 and victim not in there

    await until(replaced)
    return {
        "bodies": bodies, "victim": victim, "waiting": waiting, "streams": found[0], "whole": found[1], "after": after,
    }  # fmt: skip


async def update(client: Client, arguments: RayArguments) -> dict[str, Any]:
    """Change an argument of all replicas while requests come."""
    before = set(await stats(client))
    body = chat("Steady", 16)
    long = asyncio.create_task(stream(client, chat("A long one", 300)))
    changed = application(replace(arguments, max_seconds=300.0), (KEY,))
    ending = threading.Thread(target=lambda: serve.run(changed, name=NAME, route_prefix="/"))
    ending.start()
    found = []
    while ending.is_alive():
        found.append(await ask(client, body))
        await asyncio.sleep(0.1)

    async def replaced() -> bool:
        found.append(await ask(client, body))
        there = set(await stats(client))
        return len(there) == 2 and not there & before

    await until(replaced)
    return {
        "body": body, "found": found, "long": await long,
        "before": sorted(before), "after": sorted(await stats(client)),
    }  # fmt: skip


def stranger() -> dict[str, Any]:
    """What comes of a connection to the cluster by somebody without its token."""
    address = ray.get_runtime_context().gcs_address
    code = f"import ray; ray.init({address!r}, log_to_driver=False); print(ray.cluster_resources())"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    return {"status": tried.returncode, "said": tried.stdout[-500:], "complaint": tried.stderr[-2000:]}


async def trials(arguments: RayArguments, address: str) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=200)
    headers = {"authorization": f"Bearer {KEY}"}
    async with Client(base_url=address, headers=headers, timeout=PATIENCE, limits=limits) as client:
        return {
            "answers": await answers(client),
            "stranger": stranger(),
            "turns": await turns(client),
            "crowd": await crowd(client),
            "leaving": await leaving(client),
            "killing": await killing(client),
            "update": await update(client, arguments),
        }


def main() -> None:
    arguments = RayArguments(
        model=sys.argv[1], precision="fp32", drafter="suffix", served_name="tiny", replicas=2, max_waiting=100
    )
    arguments.check()
    port = int(sys.argv[2])
    with connected(None, Need.of(arguments), num_cpus=2), running(arguments, (KEY,), "127.0.0.1", port):
        found = asyncio.run(trials(arguments, f"http://127.0.0.1:{port}"))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
