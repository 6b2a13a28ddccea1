"""Recordings on the asynchronous engine: what ``LLM.transcribe`` gives, as it becomes final, beside other requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_speech import limit_tokens, make_speech_model, save_speech_model, sound

from headstart import LLM, AsyncLLM, RequestError, SamplingParams, Transcript, TranscriptionParams
from headstart.loading.model import Model, load_model
from headstart_server.async_engine import ClosedError
from headstart_speech.async_transcription import WindowError

TIMED = TranscriptionParams(language="de", word_timestamps=True)
pytestmark = pytest.mark.usefixtures("polyglot")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = save_speech_model(make_speech_model(seed=5), tmp_path_factory.mktemp("speech"))
    return load_model(limit_tokens(directory, 30), "fp32")


async def all_of(transcripts: AsyncIterator[Transcript]) -> list[Transcript]:
    return [each async for each in transcripts]


def told(transcript: Transcript) -> tuple[object, ...]:
    segments = [(each.start, each.end, each.tokens, each.words) for each in transcript.segments]
    return transcript.text, transcript.language, transcript.duration, segments


def test_transcripts_grow_into_what_the_other_door_gives(model: Model) -> None:
    asked: list[tuple[np.ndarray, TranscriptionParams, SamplingParams | None]] = [
        (sound(0.3, seed=3), TranscriptionParams(language="de", task="translate"), None),
        (sound(1.0), TIMED, None),
        (
            sound(0.3, seed=1),
            TranscriptionParams(language="de"),
            SamplingParams(temperature=0.8, seed=4, max_tokens=20),
        ),
    ]
    plain = LLM(model, "suffix")
    expected = [plain.transcribe(*each)[0] for each in asked]

    async def together() -> list[list[Transcript]]:
        async with AsyncLLM(model, "suffix") as llm:
            found = await asyncio.gather(*[all_of(llm.transcribe(*each)) for each in asked])
            assert not llm._requests
            return found

    found = asyncio.run(together())
    for transcripts, wanted in zip(found, expected, strict=True):
        assert told(transcripts[-1]) == told(wanted)
        for before, after in pairwise(transcripts):
            assert after.text.startswith(before.text)
            assert after.segments[: len(before.segments)] == before.segments
    # Of one window without times each token shows.
    assert len(found[0]) > 3
    assert len({len(each.segments) for each in found[1]}) > 1


def test_recordings_end_when_they_are_aborted_or_left(model: Model) -> None:
    inner = LLM(model, "none")

    async def run() -> None:
        llm = AsyncLLM(inner)
        running = llm.transcribe(sound(1.3), TIMED, request_id="one")
        await anext(running)
        with pytest.raises(RequestError, match="request_id is 'one', which another request has"):
            await all_of(llm.transcribe(sound(0.1), request_id="one"))
        await llm.abort("one")
        with pytest.raises(RequestError, match="the request was ended before its recording was"):
            await all_of(running)
        left = llm.transcribe(sound(1.3), TIMED, request_id="one")
        await anext(left)
        await left.aclose()
        assert not llm._requests
        *_, whole = await all_of(llm.transcribe(sound(0.9), TIMED))
        assert whole.segments[-1].end <= 0.9
        llm.engine.close()
        inner.engine.check()
        assert inner.engine.idle
        with pytest.raises(ClosedError):
            await all_of(llm.transcribe(sound(0.1)))

    asyncio.run(run())


def test_growing_outputs_count_what_the_encoder_read(model: Model) -> None:
    async def run() -> set[int]:
        async with AsyncLLM(model, "none") as llm:
            prompt = {"encoder_prompt": {"audio": sound(0.3)}, "decoder_prompt": None}
            params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
            return {output.outputs[0].stats.prompt_tokens async for output in llm.generate(prompt, params)}

    # The tiny encoder's window has 20 positions.
    assert asyncio.run(run()) == {21}


def test_what_is_wrong_gets_a_sentence(model: Model, tiny_model_dir: Path) -> None:
    async def run() -> None:
        async with AsyncLLM(model, "none") as llm:
            for recording, params, message in (
                (np.zeros(0), TranscriptionParams(), "the recording is empty"),
                ("nowhere.wav", TranscriptionParams(), "cannot be read"),
                (sound(0.1), TranscriptionParams(language="xx"), "which the model does not know"),
            ):
                with pytest.raises(RequestError, match=message):
                    await all_of(llm.transcribe(recording, params))
        async with AsyncLLM(model, "none", max_seconds=1e-6) as llm:
            with pytest.raises(WindowError, match="took longer than the 1e-06 seconds allowed"):
                await all_of(llm.transcribe(sound(0.1)))
        async with AsyncLLM(tiny_model_dir, "none", precision="fp32") as llm:
            with pytest.raises(RequestError, match="this model reads no audio; use a Whisper"):
                await all_of(llm.transcribe(sound(0.1)))

    asyncio.run(run())
