"""llama.cpp's slots: what the cache holds of a conversation, saved to a file and found again after a restart."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from adapter_toys import write_adapter
from serving import CHAT, GREEDY, ask, assert_openai_error

from headstart import LLM, ConfigError
from headstart_server.arguments import ServeArguments
from headstart_server.settings import ServerSettings

LONG = "a text that goes on. " * 12
PROMPT = {"prompt": LONG, **GREEDY}
BLOCK = 32
SAVED = (len(LONG) + 12 - 1) // BLOCK * BLOCK
"""A token a letter; of the output's last one nothing is computed."""
FOUND = (len(LONG) - 1) // BLOCK * BLOCK


def settings(directory: Path, **changed: Any) -> ServerSettings:
    return ServerSettings("tiny", slot_save_path=directory, **changed)


def engine(model: Any, drafter: str = "suffix", **options: Any) -> LLM:
    return LLM(model, drafter, precision="fp32", prefix_caching=True, max_batch_size=4, **options)


async def slot(client: httpx.AsyncClient, number: int, action: str, **body: Any) -> httpx.Response:
    return await client.post(f"/slots/{number}?action={action}", json=body, headers=body.pop("headers", None))


async def found(client: httpx.AsyncClient, **fields: Any) -> tuple[str, int]:
    reply = (await client.post("/v1/completions", json={**PROMPT, **fields})).json()
    return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_saved_slot_is_found_after_a_restart(
    tiny_model_dir: Path, torch_model_dir: Path, tmp_path: Path, backend: str
) -> None:
    model, said = tiny_model_dir if backend == "native" else torch_model_dir, {}

    async def first(client: httpx.AsyncClient) -> None:
        said["text"], cached = await found(client, id_slot=2)
        assert cached == 0
        told = (await slot(client, 2, "save", filename="talk.bin")).json()
        assert told.keys() == {"id_slot", "filename", "n_saved", "n_written", "timings"}
        assert (told["id_slot"], told["filename"], told["n_saved"] % BLOCK) == (2, "talk.bin", 0)
        assert told["n_saved"] == SAVED
        assert told["n_written"] == (tmp_path / "talk.bin").stat().st_size
        said["saved"] = told

    async def second(client: httpx.AsyncClient) -> None:
        told = (await slot(client, 0, "restore", filename="talk.bin")).json()
        assert told.keys() == {"id_slot", "filename", "n_restored", "n_read", "timings"}
        assert (told["n_restored"], told["n_read"]) == (said["saved"]["n_saved"], said["saved"]["n_written"])
        listed = (await client.get("/slots")).json()
        assert [each["id"] for each in listed] == [0, 1, 2, 3]
        assert [each["n_prompt_tokens"] for each in listed] == [told["n_restored"], 0, 0, 0]
        assert await found(client) == (said["text"], FOUND)
        # Without a number the slot that holds the like is taken.
        assert [each["n_prompt_tokens"] > 0 for each in (await client.get("/slots")).json()] == [True, *[False] * 3]
        assert (await slot(client, 0, "erase")).json()["n_erased"] == len(LONG) + 12
        assert await found(client) == (said["text"], 0)

    ask(engine(model), first, settings(tmp_path))
    ask(engine(model), second, settings(tmp_path))
    assert (tmp_path / "talk.bin").stat().st_mode & 0o077 == 0


def test_erasing_leaves_what_other_slots_share(tiny_model_dir: Path, tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        await found(client, id_slot=0)
        await found(client, id_slot=1, prompt=LONG[:130] + "something else from here on to the end of it")
        await slot(client, 0, "erase")
        assert (await found(client))[1] == 128

    ask(engine(tiny_model_dir), work, settings(tmp_path))


def test_names_stay_in_the_directory_and_bad_calls_are_one_sentence(tiny_model_dir: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "outside").write_bytes(b"secret")
    (kept / "link").symlink_to(tmp_path / "outside")
    (kept / "notes").write_bytes(b"a letter")
    (kept / "folder").mkdir()
    os.mkfifo(kept / "pipe")

    async def work(client: httpx.AsyncClient) -> None:
        await found(client, id_slot=0)
        for name in ("../outside", "/etc/passwd", "", ".", "..", ".hidden", "a/b", "a\\b", "a\0b", "a\nb", "x" * 201):
            for action in ("save", "restore"):
                error = assert_openai_error(await slot(client, 0, action, filename=name), 400)
                assert "give a plain name" in error["message"]
        for name, action, said in (
            ("link", "save", "cannot be written"),
            ("link", "restore", "cannot be read"),
            ("notes", "save", "no saved slot; take another name"),
            ("notes", "restore", "damaged, or is no saved slot"),
            ("folder", "save", "is no file"),
            ("folder", "restore", "is no file"),
            ("pipe", "restore", "is no file"),
            ("absent", "restore", "is not in slot_save_path; save it first"),
        ):
            error = assert_openai_error(await slot(client, 0, action, filename=name), 400)
            assert said in error["message"], name
            assert error["param"] == "filename"
        for path, body in (
            ("/slots/0?action=save", {}),
            ("/slots/0?action=save", {"filename": 3}),
            ("/slots/0?action=fly", {"filename": "a"}),
            ("/slots/0", {"filename": "a"}),
            ("/slots/4?action=erase", {}),
            ("/slots/-1?action=erase", {}),
            ("/slots/one?action=erase", {}),
            ("/v1/completions", {**PROMPT, "id_slot": 4}),
            ("/v1/completions", {**PROMPT, "id_slot": -2}),
        ):
            assert_openai_error(await client.post(path, json=body), 400)
        assert (await client.post("/slots/1?action=erase")).json() == {"id_slot": 1, "n_erased": 0}
        assert (await slot(client, 1, "save", filename="empty")).json()["n_saved"] == 0
        assert (await slot(client, 1, "restore", filename="empty")).json()["n_restored"] == 0

    ask(engine(tiny_model_dir), work, settings(kept))
    assert (tmp_path / "outside").read_bytes() == b"secret"
    assert (kept / "notes").read_bytes() == b"a letter"
    assert not [*kept.glob("*.part")]


@pytest.mark.parametrize(("drafter", "guesses"), [("suffix", True), ("none", False)])
def test_without_a_directory_nothing_is_saved(
    tiny_model_dir: Path, tmp_path: Path, drafter: str, guesses: bool
) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        listed = (await client.get("/slots?fail_on_no_slot=1")).json()
        assert [each["speculative"] for each in listed] == [guesses] * 4
        error = assert_openai_error(await slot(client, 0, "save", filename="a"), 501)
        assert "--slot-save-path DIR" in error["message"]

    ask(engine(tiny_model_dir, drafter), work)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"slot_save_path is .* which is no directory"):
        ServeArguments(model=tiny_model_dir, slot_save_path=tmp_path / "file").check()
    with pytest.raises(ConfigError, match="keeps what prefix_caching keeps, which is off"):
        ServeArguments(model=tiny_model_dir, slot_save_path=tmp_path, prefix_caching=False).check()


def test_a_changed_file_gives_no_wrong_block(tiny_model_dir: Path, tmp_path: Path) -> None:
    """Whatever byte of it differs: it is refused, and what is said stays the same."""

    async def work(client: httpx.AsyncClient) -> None:
        text, _ = await found(client, id_slot=0)
        await slot(client, 0, "save", filename="whole")
        content = (tmp_path / "whole").read_bytes()
        damaged = [content[:place] for place in (0, 10, 59, 70, 2000, len(content) - 1)]
        for place in (0, 20, 50, 55, 57, 61, 300, 1500, len(content) // 2, len(content) - 1):
            damaged.append(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        damaged.append(content[:48] + b"\xff" * 12 + content[60:])
        for each in damaged:
            (tmp_path / "changed").write_bytes(each)
            await slot(client, 0, "erase")
            error = assert_openai_error(await slot(client, 0, "restore", filename="changed"), 400)
            assert "save it anew" in error["message"]
            assert (await found(client, id_slot=0))[0] == text

    ask(engine(tiny_model_dir), work, settings(tmp_path))


def test_another_model_or_key_finds_nothing(tiny_model_dir: Path, torch_model_dir: Path, tmp_path: Path) -> None:
    mine, yours = ({"authorization": f"Bearer {key}"} for key in ("mine", "yours"))

    async def save(client: httpx.AsyncClient) -> None:
        client.headers.update(mine)
        await found(client, id_slot=0, cache_salt="salt")
        assert (await slot(client, 0, "save", filename="a")).json()["n_saved"] > 0

    async def restore(client: httpx.AsyncClient) -> None:
        for key, cached in ((yours, 0), (mine, FOUND)):
            client.headers.update(key)
            assert [each["n_prompt_tokens"] for each in (await client.get("/slots")).json()] == [0] * 4
            reply = await slot(client, 0, "restore", filename="a")
            if cached:
                assert reply.json()["n_restored"] > 0
            else:
                assert "not in slot_save_path" in assert_openai_error(reply, 400)["message"]
            assert (await found(client, cache_salt="other"))[1] == 0
            assert (await found(client, cache_salt="salt"))[1] >= cached
        assert (await client.get("/slots", headers={"authorization": "no"})).status_code == 401
        assert (await slot(client, 0, "erase", headers={"authorization": "no"})).status_code == 401

    async def refused(client: httpx.AsyncClient) -> None:
        client.headers.update(yours)
        error = assert_openai_error(await slot(client, 0, "restore", filename="a"), 400)
        assert "another model, cache_type, build or API key" in error["message"]

    both = settings(tmp_path, api_keys=("mine", "yours"))
    ask(engine(tiny_model_dir), save, both)
    ask(engine(tiny_model_dir), restore, both)
    (folder,) = tmp_path.iterdir()
    ask(engine(tiny_model_dir), refused, settings(folder, api_keys=("yours",)))
    ask(engine(torch_model_dir), refused, settings(folder, api_keys=("yours",)))


def test_an_adapters_slot_serves_that_adapter_alone(tiny_model_dir: Path, tmp_path: Path) -> None:
    red = write_adapter(tmp_path / "red", tiny_model_dir, 1)

    async def save(client: httpx.AsyncClient) -> None:
        await found(client, id_slot=1, model="red")
        await slot(client, 1, "save", filename="a")

    async def restore(client: httpx.AsyncClient) -> None:
        assert (await slot(client, 1, "restore", filename="a")).json()["n_restored"] == SAVED
        assert (await found(client))[1] == 0
        assert (await found(client, model="rouge"))[1] == FOUND

    ask(engine(tiny_model_dir, lora={"red": red}), save, settings(tmp_path / "kept"))
    ask(engine(tiny_model_dir, lora={"rouge": red}), restore, settings(tmp_path / "kept"))


def test_files_are_bounded_and_a_full_directory_is_said(tiny_model_dir: Path, tmp_path: Path) -> None:
    llm, sizes = engine(tiny_model_dir), []

    async def free(client: httpx.AsyncClient) -> None:
        await found(client, id_slot=0)
        sizes.append((await slot(client, 0, "save", filename="a")).json()["n_written"])

    async def bounded(client: httpx.AsyncClient) -> None:
        await found(client, id_slot=0)
        # What is replaced makes room.
        assert (await slot(client, 0, "save", filename="a")).json()["n_written"] == sizes[0]
        error = assert_openai_error(await slot(client, 0, "save", filename="b"), 400)
        assert f"has no room in slot_save_path, which may take {2 * sizes[0] - 1} bytes" in error["message"]
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
        assert (await found(client))[1] == FOUND

    ask(llm, free, settings(tmp_path))
    ask(llm, bounded, settings(tmp_path, slot_save_bytes=2 * sizes[0] - 1))


def test_a_full_disk_is_said(tiny_model_dir: Path, tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def work(client: httpx.AsyncClient) -> None:
        text, _ = await found(client, id_slot=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
        try:
            error = assert_openai_error(await slot(client, 0, "save", filename="a"), 400)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert "cannot be written in slot_save_path (File too large)" in error["message"]
        assert not [*tmp_path.iterdir()]
        assert await found(client) == (text, FOUND)

    ask(engine(tiny_model_dir), work, settings(tmp_path))


def test_a_small_cache_takes_what_has_room(tiny_model_dir: Path, tmp_path: Path) -> None:
    async def save(client: httpx.AsyncClient) -> None:
        await found(client, id_slot=0)
        await slot(client, 0, "save", filename="a")

    async def restore(client: httpx.AsyncClient) -> None:
        restored = (await slot(client, 0, "restore", filename="a")).json()["n_restored"]
        assert 0 < restored < SAVED
        assert (await found(client, prompt=LONG[:100]))[1] == min(restored, 96)

    ask(engine(tiny_model_dir), save, settings(tmp_path))
    ask(engine(tiny_model_dir, max_context=128, cache_tokens=128), restore, settings(tmp_path))


def test_a_slot_is_saved_once_its_request_has_ended_and_others_go_on(slow_llm: LLM, tmp_path: Path) -> None:
    long = {"prompt": LONG, "temperature": 0, "max_tokens": 150, "ignore_eos": True, "id_slot": 0}

    async def work(client: httpx.AsyncClient) -> None:
        running = asyncio.create_task(client.post("/v1/completions", json=long))
        while not (await client.get("/slots")).json()[0]["is_processing"]:
            await asyncio.sleep(0.001)
        saving = asyncio.create_task(slot(client, 0, "save", filename="a"))
        await client.post("/v1/chat/completions", json={"messages": CHAT, **GREEDY})
        assert (await running).json()["usage"]["completion_tokens"] == 150
        told = (await saving).json()
        assert told["n_saved"] > len(LONG) + 150 - 2 * BLOCK
        listed = (await client.get("/slots")).json()
        assert sum(each["n_prompt_tokens"] > 0 for each in listed) == 2

    ask(slow_llm, work, settings(tmp_path))
