"""Requests that share the engine: their answers, their failures, and what they may know of each other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import GREEDY, ask, assert_empty, assert_openai_error, fail_third_pass

from headstart import LLM, ConfigError, SamplingParams
from headstart.drafting.base import SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.inner_sequence import InnerSequence
from headstart.drafting.methods.none.drafter import NoDrafter
from headstart.drafting.options import NoOptions
from headstart.entrypoints.request import StreamPiece
from headstart.loading.model import Model
from headstart_server import async_engine
from headstart_server.engine_thread import EngineThread
from headstart_server.settings import ServerSettings


def test_a_drafter_of_no_use_is_named_in_the_log_once(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    async def several(client: httpx.AsyncClient) -> None:
        for _ in range(4):
            await client.post("/v1/completions", json={"prompt": "abc", **GREEDY, "max_tokens": 40, "ignore_eos": True})

    ask(LLM(model, "random"), several)
    hints = [record.getMessage() for record in caplog.records if "guessed right in" in record.getMessage()]
    assert len(hints) == 1
    assert hints[0].startswith("random guessed right in ")


def test_concurrent_answers_are_those_of_one_at_a_time(model: Model, plain: LLM) -> None:
    prompts = [("shared beginning " * 6) + "x" * (9 * i) for i in range(6)] + [f"{i} other" for i in range(4)]
    expected = [plain.generate(prompt, SamplingParams(temperature=0, max_tokens=90))[0].text for prompt in prompts]
    llm = LLM(
        model,
        "suffix",
        more_drafters=["ngram", "random"],
        prefix_caching=True,
        max_batch_size=6,
        max_rows=48,
        max_context=300,
        cache_tokens=320,
    )
    drafters = ["suffix", "ngram", "random"]

    async def together(client: httpx.AsyncClient) -> tuple[list[str], str]:
        bodies = [
            {"prompt": p, "temperature": 0, "max_tokens": 90, "speculation": {"drafter": drafters[i % 3]}}
            for i, p in enumerate(prompts)
        ]
        replies = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        return [reply.json()["choices"][0]["text"] for reply in replies], (await client.get("/metrics")).text

    texts, metrics = ask(llm, together)
    assert texts == expected
    values = {line.split("{")[0]: float(line.split()[-1]) for line in metrics.splitlines() if line[0] != "#"}
    assert values["vllm:prefix_cache_hits_total"] > 0
    assert values["vllm:num_preemptions_total"] > 0
    assert values["vllm:spec_decode_num_accepted_tokens_total"] > 0


def test_bad_logits_end_their_own_request_only(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = llm.engine.runner.backend
    forward = backend.forward
    poison = llm.model.tokenizer.encode("Z")[0]

    def poisoned(batch: Any, storage: Any) -> Any:
        output = forward(batch, storage)
        logits = output.logits.clone()
        logits[[i for i, row in enumerate(batch.logit_rows.tolist()) if batch.tokens[row] == poison]] = float("nan")
        return replace(output, logits=logits)

    monkeypatch.setattr(backend, "forward", poisoned)

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        body = {**GREEDY, "logit_bias": {str(poison): -100}}
        bodies = [{"prompt": prompt, **body} for prompt in ("abc", "abcZ", "xyz")]
        return await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))

    good, bad, other = ask(llm, work)
    assert good.status_code == other.status_code == 200
    assert "not a finite number" in assert_openai_error(bad, 500)["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (MemoryError(), 503, "out_of_memory"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
            503,
            "out_of_memory",
        ),
        (ValueError("the pass cannot run: no memory for the pass"), 503, "out_of_memory"),
        (ValueError("something else"), 500, "generation_failed"),
    ],
)
def test_a_failed_pass_ends_what_it_computed_and_the_server_goes_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    fail_third_pass(llm, monkeypatch, error)

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        body = {"prompt": "abc", **GREEDY, "speculation": {"off": True}}
        return [await client.post("/v1/completions", json=body) for _ in range(2)]

    failed, served = ask(llm, work)
    assert assert_openai_error(failed, status)["code"] == code
    assert served.status_code == 200


def test_a_request_whose_memory_cannot_be_had_before_it_decodes_ends_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = llm.encode
    failures = iter([MemoryError(), RuntimeError("can't start new thread")])

    def failing(*args: Any) -> Any:
        error = next(failures, None)
        if error is not None:
            raise error
        return encode(*args)

    monkeypatch.setattr(llm, "encode", failing)

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.post("/v1/completions", json={"prompt": "abc", **GREEDY}) for _ in range(3)]

    *failed, served = ask(llm, work)
    for reply in failed:
        assert assert_openai_error(reply, 503)["code"] == "out_of_memory"
    assert served.status_code == 200


def test_a_rehearsal_leaves_nothing_and_says_what_is_missing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EngineThread(llm)
    engine.start()
    try:
        engine.rehearse()
        assert not any(engine.metrics.snapshot().values())
        assert llm.engine.idle
        for left, error in ((1 << 20, None), (None, MemoryError())):
            with monkeypatch.context() as patch:
                patch.setattr(async_engine, "address_space_left", lambda left=left: left)
                if error is not None:
                    patch.setattr(llm.engine, "step", Mock(side_effect=error))
                with pytest.raises(ConfigError, match="serving needs 268 MB of memory beside the model"):
                    engine.rehearse()
        engine.rehearse()
    finally:
        engine.close()
    assert_empty(llm)


def test_a_thread_that_is_stopped_cuts_off_what_is_in_progress(slow_llm: LLM) -> None:
    """At the end of a process nobody waits for answers, and the interpreter cannot end while the thread computes."""
    engine = EngineThread(slow_llm)
    engine.start()

    async def cut_off() -> StreamPiece:
        samples = slow_llm.samples(
            slow_llm.encode("abc"), SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
        )
        answer = await engine.submit(samples)
        pieces = aiter(answer)
        last = await anext(pieces)
        await asyncio.to_thread(engine.stop)
        async for piece in pieces:
            last = piece
        assert 0 < samples[0].sequence.num_output < 400
        return last

    completion = asyncio.run(cut_off()).completion
    assert completion is not None
    assert completion.error == "the engine has stopped."
    assert not engine.alive


def test_tenants_share_no_prefixes(llm: LLM) -> None:
    settings = ServerSettings("tiny", api_keys=("one", "two"))

    async def work(client: httpx.AsyncClient) -> list[int]:
        found = []
        for key, salt in [("one", "a"), ("one", "b"), ("two", "a"), ("one", "a")]:
            body = {"prompt": "a long enough prompt " * 4, **GREEDY, "cache_salt": salt}
            reply = await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
            found.append(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        return found

    assert ask(llm, work, settings) == [0, 0, 0, 64]


def test_drafters_learn_within_a_tenant_only(model: Model) -> None:
    scopes = []

    class Learner(NoDrafter):
        """Notes in whose name it would learn, for a request and for what a drafter makes of one."""

        def __init__(self, context: DraftContext, options: NoOptions) -> None:
            self.scope_of = context.scope_of

        def begin(self, sequence: SequenceView) -> None:
            scopes.append(self.scope_of(sequence))
            scopes.append(self.scope_of(InnerSequence.of(InnerSequence.of(sequence))))

    async def work(client: httpx.AsyncClient) -> None:
        for salt in ("a", "b"):
            await client.post("/v1/completions", json={"prompt": "abc", **GREEDY, "cache_salt": salt})

    ask(LLM(model, Learner), work)
    assert scopes == ["/a", "/a", "/b", "/b"]
