"""The library's front door for asyncio gives what the other one gives, piece by piece, to many at once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path

import pytest

from headstart import LLM, AsyncLLM, ConfigError, FinishReason, RequestError, RequestOutput, SamplingParams
from headstart.engine.outputs import TokenLogprobs
from headstart.loading.model import Model, load_model
from headstart_server.async_engine import BusyError, ClosedError

GREEDY = SamplingParams(temperature=0, max_tokens=40)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
CHAT = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def model(torch_model_dir: Path) -> Model:
    """What it writes takes long enough to be left in the middle."""
    return load_model(torch_model_dir, "fp32")


def chosen(entries: Sequence[TokenLogprobs | None] | None) -> list[int | None] | None:
    """The tokens: in another batch, the numbers may differ in their last digits."""
    return None if entries is None else [None if entry is None else entry.token_id for entry in entries]


async def last(outputs: object) -> RequestOutput:
    """The last output; each before it holds a beginning of it."""
    output = None
    async for grown in outputs:  # type: ignore[attr-defined]
        assert output is None or not output.finished
        if output is not None:
            for before, after in zip(output.outputs, grown.outputs, strict=True):
                assert after.text.startswith(before.text)
                assert after.token_ids[: len(before.token_ids)] == before.token_ids
        output = grown
    assert output is not None
    assert output.finished
    return output


def test_outputs_grow_into_what_the_other_door_gives(model: Model) -> None:
    prompts = ["abc abc abc", "hello", "xyz", "one two one two"]
    params = [
        GREEDY,
        SamplingParams(temperature=1, seed=3, n=3, max_tokens=20, logprobs=2),
        SamplingParams(temperature=0, max_tokens=20, stop=("e",), prompt_logprobs=1),
        SamplingParams(temperature=0.7, seed=5, max_tokens=30),
    ]
    plain = LLM(model, "suffix")
    expected = [plain.generate(prompt, each)[0] for prompt, each in zip(prompts, params, strict=True)]
    (chat,) = plain.chat(CHAT, GREEDY)

    async def together() -> list[RequestOutput]:
        async with AsyncLLM(model, "suffix") as llm:
            asked = [llm.generate(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
            return await asyncio.gather(*map(last, [*asked, llm.chat(CHAT, GREEDY)]))

    for said, wanted in zip(asyncio.run(together()), [*expected, chat], strict=True):
        assert (said.prompt, said.prompt_token_ids) == (wanted.prompt, wanted.prompt_token_ids)
        assert chosen(said.prompt_logprobs) == chosen(wanted.prompt_logprobs)
        for ours, theirs in zip(said.outputs, wanted.outputs, strict=True):
            assert (ours.text, ours.token_ids) == (theirs.text, theirs.token_ids)
            assert len(ours.origins) == len(ours.token_ids)
            assert (ours.finish_reason, ours.stop_reason) == (theirs.finish_reason, theirs.stop_reason)
            assert chosen(ours.logprobs) == chosen(theirs.logprobs)
            assert ours.stats.tokens == theirs.stats.tokens


def test_requests_end_when_they_are_aborted_or_left(model: Model) -> None:
    inner = LLM(model, "none", max_batch_size=2)

    async def run() -> None:
        llm = AsyncLLM(inner)
        reasons = []
        async for output in llm.generate("abc", LONG, "mine"):
            if not output.finished:
                with pytest.raises(RequestError, match="request_id is 'mine'"):
                    await last(llm.generate("abc", LONG, "mine"))
                await llm.abort(["mine", "unknown"])
            reasons.append(output.finish_reason)
        assert reasons[-1] is FinishReason.ABORT
        assert 0 < len(output.token_ids) < 400
        async for _ in llm.generate("xyz", LONG):
            break
        gc.collect()
        # A left request makes room: with it, two more would have to wait for 400 tokens.
        await asyncio.gather(*(last(llm.generate("xyz", GREEDY)) for _ in range(4)))
        while not inner.engine.idle:
            await asyncio.sleep(0)
        allocator = inner.engine.runner.cache.allocator
        assert allocator.num_free == allocator.num_blocks
        running = llm.generate("abc", LONG)
        await anext(running)
        await asyncio.to_thread(llm.close)
        rest = [output async for output in running]
        output = rest[-1]
        assert output.finish_reason is FinishReason.ERROR
        assert output.outputs[0].error == "the engine has stopped."
        with pytest.raises(ConfigError, match="closed"):
            await last(llm.generate("abc", GREEDY))

    asyncio.run(run())


def test_bad_requests_are_refused_one_by_one(model: Model) -> None:
    async def run() -> None:
        async with AsyncLLM(model, "none", max_waiting=0, max_batch_size=1) as llm:
            with pytest.raises(RequestError, match="UTF-8"):
                await last(llm.generate("\ud800", GREEDY))
            with pytest.raises(RequestError, match="give SamplingParams"):
                await last(llm.generate("abc", "greedy"))  # type: ignore[arg-type]
            with pytest.raises(RequestError, match="shorten the prompt"):
                await last(llm.generate([5] * 600, GREEDY))
            running = llm.generate("abc", LONG)
            await anext(running)
            with pytest.raises(BusyError):
                await last(llm.generate("abc", GREEDY))
            await running.aclose()
            engine = llm.engine
            engine.close()
            with pytest.raises(ClosedError):
                await last(llm.generate("abc", GREEDY))

    asyncio.run(run())


def test_texts_to_copy_from_are_given_while_others_decode(model: Model) -> None:
    """For requests of one salt; they end sooner, and say what they said."""
    prompt, params = [7, 8, 9], SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    (plain,) = LLM(model, "none").generate([prompt], params)

    async def said() -> tuple[int, list[RequestOutput]]:
        async with AsyncLLM(model, "suffix") as llm:
            other = asyncio.ensure_future(last(llm.generate("abc abc", LONG)))
            taken = await llm.add_drafter_texts([[*prompt, *plain.token_ids]], cache_salt="mine")
            asked = [llm.generate(prompt, params, cache_salt=salt) for salt in ("mine", "other")]
            outputs = [await last(each) for each in asked]
            assert (await other).finished
            with pytest.raises(RequestError) as refused:
                await llm.add_drafter_texts([-1])
            assert refused.value.field == "texts"
            return taken, outputs

    taken, (mine, others) = asyncio.run(said())
    assert taken == len(prompt) + len(plain.token_ids)
    assert mine.token_ids == others.token_ids == plain.token_ids
    assert mine.stats.rounds < others.stats.rounds / 2
