"""Which requests meet at one replica, and in which order replicas are tried."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from headstart_integrations.ray.routing_key import BEGINNING, preferred, routing_key

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SYSTEM = {"role": "system", "content": "Be brief."}


def key(path: str, headers: tuple[tuple[bytes, bytes], ...] = (), **body: Any) -> str:
    return routing_key(path, headers, json.dumps(body).encode())


def said(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def test_all_turns_of_a_chat_have_one_key() -> None:
    keys = {key(CHAT, messages=[SYSTEM, *said(*["a", "b", "c", "d", "e"][:turns])]) for turns in (1, 3, 5)}
    assert len(keys) == 1
    assert "" not in keys


def test_the_same_conversation_as_items_of_a_response_is_one_as_well() -> None:
    assert key(RESPONSES, input="a") == key(RESPONSES, input=said("a", "b", "c"))
    assert key(RESPONSES, input="a", instructions="Be brief.") != key(RESPONSES, input="a")


@pytest.mark.parametrize(
    "other",
    [
        {"messages": said("other")},
        {"messages": [SYSTEM, *said("a")]},
        {"messages": said("a"), "cache_salt": "mine"},
        {"messages": said("a"), "prompt_cache_key": "mine"},
    ],
)
def test_what_shares_no_blocks_has_another_key(other: dict[str, Any]) -> None:
    assert key(CHAT, **other) not in ("", key(CHAT, messages=said("a")))


def test_who_asks_tells_keys_apart() -> None:
    mine, yours = ((b"authorization", b"Bearer mine"),), ((b"authorization", b"Bearer yours"),)
    assert len({key(CHAT, headers, messages=said("a")) for headers in ((), mine, yours)}) == 3


def test_a_prompt_cache_key_takes_the_beginnings_place() -> None:
    keys = {key(CHAT, messages=said(text), prompt_cache_key="mine") for text in "abc"}
    assert len(keys) == 1


@pytest.mark.parametrize("long", ["x" * BEGINNING, list(range(BEGINNING))])
def test_prompts_that_begin_alike_have_one_key(long: Any) -> None:
    more = "yz" if isinstance(long, str) else [7, 8]
    assert key(COMPLETIONS, prompt=long) == key(COMPLETIONS, prompt=long + more) != key(COMPLETIONS, prompt=long[1:])
    assert key(COMPLETIONS, prompt=[long, long[1:]]) == key(COMPLETIONS, prompt=long)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, b"{"),
        (CHAT, b"\xff"),
        (CHAT, b"[1]"),
        (CHAT, b'{"messages": 3}'),
        (CHAT, b"[" * 10_000),
        (COMPLETIONS, b'{"prompt": ""}'),
        (COMPLETIONS, b"{}"),
        ("/v1/models", b""),
        ("/tokenize", b'{"prompt": "a"}'),
    ],
)
def test_what_cannot_be_read_or_shares_nothing_has_no_key(path: str, body: bytes) -> None:
    assert routing_key(path, (), body) == ""


@pytest.mark.parametrize("messages", [[], ["a"], [{"role": "assistant", "content": "a"}], [{}], [None]])
def test_odd_messages_do_no_harm(messages: list[Any]) -> None:
    assert isinstance(key(CHAT, messages=messages), str)


def test_without_a_key_all_replicas_are_equals() -> None:
    assert preferred("", {"a": 1, "b": 0}, 0) == [["a", "b"]]
    assert preferred("k", {"a": 1}, 0) == [["a"]]
    assert preferred("k", {}, 0) == [[]]


def test_chats_spread_and_stay() -> None:
    idle = dict.fromkeys("abcd", 0)
    firsts = {f"chat {i}": preferred(f"chat {i}", idle, 4)[0][0] for i in range(400)}
    assert set(firsts.values()) == set(idle)
    assert max(Counter(firsts.values()).values()) < 150
    without = {name: 0 for name in idle if name != "c"}
    for chat, first in firsts.items():
        order = [name for (name,) in preferred(chat, idle, 4)]
        assert sorted(order) == sorted(idle)
        assert [name for (name,) in preferred(chat, without, 4)] == [name for name in order if name != "c"]
        assert first == order[0]


def test_an_overloaded_replica_comes_last_and_only_then() -> None:
    chat = "chat"
    own, *others = [name for (name,) in preferred(chat, dict.fromkeys("abc", 0), 2)]
    # Three replicas, mean (n + 0 + 0 + 1) / 3: 1.25 times that, rounded up, and a slack of 2.
    for load in range(12):
        order = [name for (name,) in preferred(chat, {own: load, **dict.fromkeys(others, 0)}, 2)]
        bound = -(-5 * (load + 1) // 12) + 2
        assert order == ([*others, own] if load >= bound else [own, *others])
    assert load >= bound, "the last one was over the bound"
    assert preferred(chat, dict.fromkeys("abc", 50), 2)[0] == [own]
