"""Replicas that follow the load, as a program: from one to two under many users, and back under one.

python ray_scaling_trial.py MODEL PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
from ray_trial import KEY, Client, ask, chat, stats, until

from headstart_integrations.ray.arguments import RayArguments
from headstart_integrations.ray.cluster import Need, connected, running

USERS = 6
PATIENCE = 120.0
BODIES = [chat(f"User {number}", 200) for number in range(USERS)]


async def scaling(client: Client) -> dict[str, Any]:
    """Users who ask again when answered, until there are two replicas and both have answered; then one, until there is
    one."""
    found: list[tuple[int, dict[str, Any]]] = []
    crowded, ended = asyncio.Event(), asyncio.Event()

    async def user(number: int, leaves: asyncio.Event) -> None:
        while not leaves.is_set():
            found.append((number, await ask(client, BODIES[number])))

    async def staying() -> None:
        """Who stays asks now and then."""
        while not ended.is_set():
            found.append((0, await ask(client, BODIES[0])))
            await asyncio.sleep(0.5)

    async def replicas(count: int) -> bool:
        return len(await stats(client)) == count

    before = sorted(await stats(client))
    users = [asyncio.create_task(user(number, crowded)) for number in range(USERS)]

    async def both() -> bool:
        return await replicas(2) and len({each.get("replica") for _, each in found}) == 2

    await until(both)
    crowded.set()
    await asyncio.gather(*users)
    stays = asyncio.create_task(staying())

    async def alone() -> bool:
        return await replicas(1)

    await until(alone)
    after = len(found)

    async def answered() -> bool:
        return len(found) > after + 2

    await until(answered)
    ended.set()
    await stays
    return {"before": before, "after": sorted(await stats(client)), "bodies": BODIES, "found": found}


async def tried(address: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=PATIENCE) as client:
        return await scaling(client)


def main() -> None:
    arguments = RayArguments(
        model=sys.argv[1], precision="fp32", drafter="none", served_name="tiny", min_replicas=1, max_replicas=2,
        target_ongoing_requests=1, upscale_seconds=1, downscale_seconds=1,
    )  # fmt: skip
    arguments.check()
    port = int(sys.argv[2])
    with connected(None, Need.of(arguments), num_cpus=2), running(arguments, (KEY,), "127.0.0.1", port):
        found = asyncio.run(tried(f"http://127.0.0.1:{port}"))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
