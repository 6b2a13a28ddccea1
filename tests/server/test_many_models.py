"""Several models in one server: loaded when they are asked for, unloaded when others need their room."""

from __future__ import annotations

import asyncio
import json
import math
import weakref
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import CHAT, GREEDY, alive, assert_openai_error
from starlette.requests import Request
from tiny_checkpoint import write_tiny_model

from headstart import LLM
from headstart.errors import ConfigError
from headstart_server.app import app_of
from headstart_server.arguments import ServeArguments
from headstart_server.many_models import Keeping, ManyModels
from headstart_server.model_list import read_models
from headstart_server.models import NotLoadedError
from headstart_server.settings import ServerSettings

KEPT = Keeping(keep_alive=math.inf, load_seconds=60)
NAMES = ["broken", "first", "second", "third"]
Result = TypeVar("Result")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models, and one that cannot be read."""
    root = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(NAMES):
        (root / name).mkdir()
        write_tiny_model(root / name, seed=seed, head_dim=32)
    (root / "broken" / "model.safetensors").write_bytes(b"no weights")
    return root


def several(folder: Path, keeping: Keeping = KEPT, free: int | None = None) -> ManyModels:
    shared = ServeArguments(models=folder, drafter="ngram", more_drafters=(), precision="fp32", cache_tokens=2048)
    return ManyModels(read_models(shared), ServerSettings("models"), keeping, lambda: free)


def served(models: ManyModels, work: Callable[[httpx.AsyncClient], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        app = app_of(models)
        async with alive(app):
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
                return await work(client)

    return asyncio.run(run())


async def said(client: httpx.AsyncClient, name: str | None, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"prompt": "abc abc", "model": name, **GREEDY, **fields})


async def states(client: httpx.AsyncClient) -> dict[str, str]:
    return {each["id"]: each["status"]["value"] for each in (await client.get("/v1/models")).json()["data"]}


async def loaded(client: httpx.AsyncClient) -> list[str]:
    return [each["name"] for each in (await client.get("/api/ps")).json()["models"]]


async def holding(models: ManyModels, name: str, stack: ExitStack) -> None:
    """As a request does that is being answered, until ``stack`` ends."""
    await models.held(name, request(stack))


def request(stack: ExitStack, left: asyncio.Event | None = None) -> Request:
    """Whose client leaves when ``left`` is set."""

    async def receive() -> dict[str, str]:
        await (left or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headstart.holds": stack}, receive)


def test_models_are_loaded_when_they_are_asked_for(folder: Path) -> None:
    async def work(client: httpx.AsyncClient) -> list[str]:
        assert await states(client) == dict.fromkeys(NAMES, "unloaded")
        texts = []
        for name in ("first", "second:latest", "first"):
            reply = (await said(client, name)).json()
            assert reply["model"] == name.removesuffix(":latest")
            texts.append(reply["choices"][0]["text"])
        assert await states(client) == {name: "loaded" if name in NAMES[1:3] else "unloaded" for name in NAMES}
        assert await loaded(client) == ["first", "second"]
        nearest = (await said(client, None)).json()
        assert nearest["model"] == "first"
        listed = (await client.get("/api/tags")).json()["models"]
        assert [(each["name"], each["size"] > 0) for each in listed] == [(name, True) for name in NAMES]
        series = (await client.get("/metrics")).text
        assert series.count("# TYPE vllm:generation_tokens_total counter") == 1
        for name, tokens in (("first", 36.0), ("second", 12.0)):
            assert f'vllm:generation_tokens_total{{model_name="{name}"}} {tokens}' in series
        assert (await client.get("/stats?model=second")).json()["model"] == "second"
        return texts

    texts = served(several(folder), work)
    alone = [LLM(folder / name, "none", precision="fp32").generate("abc abc", _greedy())[0].text for name in NAMES[1:3]]
    assert texts == [*alone, alone[0]]
    assert alone[0] != alone[1]


def _greedy() -> Any:
    from headstart import SamplingParams

    return SamplingParams(temperature=0, max_tokens=12)


def test_many_requests_load_a_model_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    load = ServeArguments.load
    monkeypatch.setattr(ServeArguments, "load", lambda options: (loads.append(options.model), load(options))[1])

    async def work(client: httpx.AsyncClient) -> None:
        replies = await asyncio.gather(*(said(client, "first") for _ in range(8)))
        assert {reply.status_code for reply in replies} == {200}
        assert len({reply.json()["choices"][0]["text"] for reply in replies}) == 1

    served(several(folder), work)
    assert len(loads) == 1


def test_the_least_used_one_makes_room(folder: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for name in ("first", "second", "first", "third"):
            assert (await said(client, name)).status_code == 200
        assert await loaded(client) == ["first", "third"]

    served(several(folder, replace(KEPT, max_loaded=2)), work)


def test_what_is_at_work_stays_and_others_wait_for_it(folder: Path) -> None:
    models = several(folder, replace(KEPT, max_loaded=1))

    async def work(client: httpx.AsyncClient) -> None:
        with ExitStack() as stack:
            await holding(models, "first", stack)
            other = asyncio.create_task(said(client, "second"))
            assert (await said(client, "first")).status_code == 200
            assert (await states(client))["second"] == "loading"
            assert not other.done()
        assert (await other).json()["model"] == "second"
        assert await loaded(client) == ["second"]

    served(models, work)


@pytest.mark.parametrize("others", [0, 1])
def test_a_client_that_leaves_is_not_loaded_for(folder: Path, others: int) -> None:
    models = several(folder, replace(KEPT, max_loaded=1))

    async def work(client: httpx.AsyncClient) -> None:
        left = asyncio.Event()
        with ExitStack() as stack, ExitStack() as waiting:
            await holding(models, "first", stack)
            first = asyncio.create_task(models.held("second", request(waiting, left)))
            more = [asyncio.create_task(said(client, "second")) for _ in range(others)]
            while models._entries["second"].waiting < 1 + others:
                await asyncio.sleep(0)
            left.set()
            with pytest.raises(NotLoadedError, match="'second' is not waited for any more"):
                await first
            while not others and (await states(client))["second"] != "unloaded":
                await asyncio.sleep(0)
        assert [(await each).status_code for each in more] == [200] * others
        if not others:
            assert (await said(client, "first")).status_code == 200
        assert await loaded(client) == [["first"], ["second"]][others]

    served(models, work)


def test_a_client_that_leaves_while_another_model_is_loaded_takes_no_place(folder: Path) -> None:
    models = several(folder, replace(KEPT, max_loaded=1))

    async def work(client: httpx.AsyncClient) -> None:
        left = asyncio.Event()
        with ExitStack() as waiting:
            async with models._moving:  # as long as it takes
                waits = asyncio.create_task(models.held("second", request(waiting, left)))
                while not models._entries["second"].waiting:
                    await asyncio.sleep(0)
                left.set()
                with pytest.raises(NotLoadedError):
                    await waits
            while models._entries["second"].loading is not None:
                await asyncio.sleep(0)
        assert await loaded(client) == []
        assert (await said(client, "second")).status_code == 200

    served(models, work)


def test_a_wait_has_an_end_with_a_sentence(folder: Path) -> None:
    models = several(folder, replace(KEPT, max_loaded=1, max_waiting=1))

    async def work(client: httpx.AsyncClient) -> None:
        left = asyncio.Event()
        with ExitStack() as stack, ExitStack() as waiting:
            await holding(models, "first", stack)
            waits = asyncio.create_task(models.held("second", request(waiting, left)))
            while (await states(client))["second"] != "loading":
                await asyncio.sleep(0)
            assert_openai_error(await said(client, "second"), 429)
            left.set()
            with pytest.raises(NotLoadedError):
                await waits
            while (await states(client))["second"] != "unloaded":
                await asyncio.sleep(0)
            models._keeping = replace(models._keeping, load_seconds=0.1)
            error = assert_openai_error(await said(client, "second"), 503)
            assert error["code"] == "model_not_loaded"
            assert "'first' must be unloaded first; try again later" in error["message"]
            assert (await said(client, "first")).status_code == 200

    served(models, work)


def test_what_does_not_fit_in_memory_makes_room_or_is_refused(folder: Path) -> None:
    models = several(folder)
    room = 3e6

    def free() -> int:
        return int(room - sum(entry.need for entry in models._entries.values() if entry.served is not None))

    models._free = free
    for entry in models._entries.values():
        entry.need = 2_000_000
    models._entries["third"].need = 9_000_000

    async def work(client: httpx.AsyncClient) -> None:
        for name in ("first", "second"):
            assert (await said(client, name)).status_code == 200
            models._entries[name].need = 2_000_000
            assert await loaded(client) == [name]
        error = assert_openai_error(await said(client, "third"), 503)
        assert "'third' cannot be loaded: it takes 9 MB of memory, but 1 MB are free" in error["message"]
        assert await loaded(client) == ["second"]

    served(models, work)


def test_memory_that_is_short_after_all_is_taken_from_an_idle_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, load = several(folder), ServeArguments.load

    def short(options: ServeArguments) -> LLM:
        if Path(str(options.model)).name == "second" and models.known("first").served is not None:
            raise MemoryError
        return load(options)

    monkeypatch.setattr(ServeArguments, "load", short)

    async def work(client: httpx.AsyncClient) -> None:
        for name in ("first", "second"):
            assert (await said(client, name)).status_code == 200
        assert await loaded(client) == ["second"]

    served(models, work)


def test_a_model_that_cannot_be_loaded_says_so_and_leaves_the_others_alone(folder: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        assert (await said(client, "first")).status_code == 200
        for _ in range(2):
            error = assert_openai_error(await said(client, "broken"), 503)
            assert "model 'broken' cannot be loaded:" in error["message"]
        assert (await states(client))["broken"] == "failed"
        assert (await said(client, "first")).status_code == 200
        refused = await client.post("/api/chat", json={"model": "broken", "messages": CHAT})
        assert (refused.status_code, list(refused.json())) == (503, ["error"])
        error = assert_openai_error(await said(client, "fourth"), 404)
        assert "'broken', 'first', 'second', 'third'" in error["message"]

    served(several(folder), work)


def test_a_model_that_cannot_be_loaded_takes_nobodys_place(folder: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        assert (await said(client, "first")).status_code == 200
        assert_openai_error(await said(client, "broken"), 503)
        assert await loaded(client) == ["first"]

    served(several(folder, replace(KEPT, max_loaded=1)), work)


def test_an_unloaded_model_is_gone(folder: Path) -> None:
    models = several(folder, replace(KEPT, keep_alive=0))

    async def work(client: httpx.AsyncClient) -> None:
        with ExitStack() as stack:
            await holding(models, "first", stack)
            found = models.known("first").served
            assert found is not None
            backend = weakref.ref(found.llm.model.backend)
            del found
        while models.known("first").served is not None or models._moving.locked():
            await asyncio.sleep(0.01)
        assert backend() is None

    served(models, work)


def test_a_model_goes_when_its_time_is_over(folder: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        body = {"model": "first", "messages": CHAT, "options": {"num_predict": 4}, "stream": False}
        kept = (await client.post("/api/chat", json=body | {"keep_alive": "10m"})).json()
        assert kept["done"]
        (running,) = (await client.get("/api/ps")).json()["models"]
        assert running["expires_at"] < "2300"
        assert (await client.post("/api/generate", json={"model": "first", "keep_alive": 0})).json()[
            "done_reason"
        ] == "unload"
        while await loaded(client):
            await asyncio.sleep(0.01)
        assert (await said(client, "first")).status_code == 200

    served(several(folder), work)


def test_shown_without_being_loaded(folder: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        shown = (await client.post("/api/show", json={"model": "first"})).json()
        assert (shown["details"]["family"], shown["capabilities"]) == ("llama", ["completion"])
        assert (await client.post("/api/show", json={"model": "broken"})).status_code in (400, 500)
        assert await loaded(client) == []

    served(several(folder), work)


def test_a_folder_names_its_models(tmp_path: Path) -> None:
    for path in ("a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "org/c/config.json", "org/d/d-q8.gguf"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    for path in ("mmproj-a.gguf", ".hidden/config.json", "notes.txt", "two/x.gguf", "two/y.gguf"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    found = read_models(ServeArguments(models=tmp_path))
    places = {name: str(Path(str(options.model)).relative_to(tmp_path)) for name, options in found.items()}
    assert places == {
        "a": "a.gguf",
        "b": "b-00001-of-00002.gguf",
        "org/c": "org/c",
        "org/d": "org/d/d-q8.gguf",
        "two/x": "two/x.gguf",
        "two/y": "two/y.gguf",
    }


def test_a_file_names_models_and_their_options(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("small: smollm2\ncoder:\n  model: ./coder.gguf\n  max-context: 4096\n  drafter: suffix\n")
    found = read_models(ServeArguments(models=path, max_batch_size=2, max_context=512))
    told = {
        name: (str(each.model), each.max_context, each.drafter, each.max_batch_size) for name, each in found.items()
    }
    assert told == {"small": ("smollm2", 512, None, 2), "coder": ("./coder.gguf", 4096, "suffix", 2)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "names no models"),
        ("a: [", "cannot be read"),
        ("{}", "holds no model"),
        ("a: {max-context: 9}", "no model"),
        ("a: {model: x, max-contxt: 9}", "did you mean 'max_context'"),
        ("a: {model: x, max-context: 1}", "max_context is 1"),
        ("a: {model: x, api-key-file: y}", "of the whole server"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_models(ServeArguments(models=path))
    with pytest.raises(ConfigError, match="beside models"):
        read_models(ServeArguments(models=path, model="x"))


def test_streams_of_one_model_go_on_while_another_is_loaded(folder: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        long = {"stream": True, "max_tokens": 300, "ignore_eos": True}
        alone = (await said(client, "first", **long)).text
        together = await asyncio.gather(said(client, "first", **long), said(client, "second"), said(client, "broken"))
        assert [reply.status_code for reply in together] == [200, 200, 503]
        texts = [
            "".join(json.loads(block.removeprefix("data: "))["choices"][0]["text"] for block in text.split("\n\n")[:-2])
            for text in (alone, together[0].text)
        ]
        assert texts[0] == texts[1]

    served(several(folder), work)
