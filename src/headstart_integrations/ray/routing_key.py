"""Which requests should meet at one replica: those whose prompts begin alike and may share what was kept of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from headstart.errors import RequestError
from headstart_server.json_body import read_json

BEGINNING = 256
"""Characters or tokens of a prompt without messages that are looked at."""
BALANCE = 1.25
"""A replica is overloaded if it has more than this many times the mean load, and the slack."""


def routing_key(path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> str:
    """The key of a request; "" if it shares nothing with others, so that any replica is as good.

    A conversation's key is its beginning up to the first message of the user, which all its turns share; that of a
    plain prompt its first ``BEGINNING`` characters or tokens. Both are told apart by who asks and by ``cache_salt``, as
    the kept blocks are. OpenAI's ``prompt_cache_key`` takes the beginning's place. A body that cannot be read has no
    key: the replica says what is wrong with it.

    Args:
        path: of the request.
        headers: its headers, names in lower case.
        body: all of it.
    """
    if not path.endswith(("/completions", "/responses")):
        return ""
    try:
        asked = read_json(body)
    except (RequestError, ValueError):
        return ""
    if not isinstance(asked, dict):
        return ""
    beginning = _beginning(asked)
    if beginning is None:
        return ""
    who = next((value for name, value in headers if name == b"authorization"), b"").decode("latin-1")
    whole = json.dumps([who, asked.get("cache_salt"), beginning], sort_keys=True)
    return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()


def _beginning(asked: Mapping[str, Any]) -> Any:
    """What the turns of a conversation, or prompts that begin alike, have in common; None: nothing is known."""
    if (key := asked.get("prompt_cache_key")) is not None:
        return [key]
    messages = asked.get("messages", asked.get("input"))
    if isinstance(messages, list):
        first = next((i for i, each in enumerate(messages) if isinstance(each, dict) and each.get("role") == "user"), 0)
        return [asked.get("instructions"), messages[: first + 1]]
    if isinstance(messages, str):
        return [asked.get("instructions"), [{"role": "user", "content": messages}]]
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    return [prompt[:BEGINNING]] if isinstance(prompt, (str, list)) and prompt else None


def preferred(key: str, loads: Mapping[str, int], slack: int) -> list[list[str]]:
    """Replicas in the order in which a request should try them, as ranks of equals.

    Rendezvous hashing (Thaler and Ravishankar 1998): each gateway finds the same order with nothing shared, and a
    replica that comes or goes moves no other chat. Bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018): replicas
    that are overloaded come last. Without a key all are equals.

    Args:
        key: ``routing_key``.
        loads: replica -> requests that it has.
        slack: requests above the bound that are no overload yet.
    """
    if not key or len(loads) < 2:
        return [list(loads)]
    bound = math.ceil(BALANCE * (sum(loads.values()) + 1) / len(loads)) + slack
    order = sorted(loads, key=lambda replica: _score(key, replica), reverse=True)
    return [[replica] for replica in sorted(order, key=lambda replica: loads[replica] >= bound)]


def _score(key: str, replica: str) -> bytes:
    return hashlib.blake2b(f"{key} {replica}".encode(), digest_size=8).digest()
