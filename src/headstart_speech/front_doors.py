"""What the speech wing adds to the library's front doors (entry points of the group ``headstart.library``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from headstart.drafting.base import SpeculationParams
from headstart.entrypoints.llm import LLM
from headstart.entrypoints.prompts import naming
from headstart.sampling.params import SamplingParams
from headstart_server.async_llm import AsyncLLM
from headstart_speech.alignment import Aligner
from headstart_speech.async_transcription import AsyncTranscription
from headstart_speech.params import TranscriptionParams
from headstart_speech.segments import Segment
from headstart_speech.windows import Transcript, Transcription

_ALIGNER = "headstart_speech.aligner"


def transcribe(
    llm: LLM,
    recordings: object,
    params: TranscriptionParams | None = None,
    sampling_params: SamplingParams | None = None,
    *,
    speculation: SpeculationParams | None = None,
    on_segment: Callable[[int, Segment], None] | None = None,
) -> list[Transcript]:
    """``LLM.transcribe``: what recordings of any length say, by a model whose encoder reads audio. Several are written
    down together.

    Args:
        recordings: a file's path, samples in [-1, 1] at 16 kHz [sample], or a pair of samples and their rate; or a list
            of such.
        params: language, task, times; None: ``TranscriptionParams()``.
        sampling_params: of each window; None: the model's own, and as many tokens as there is room for.
        speculation: overrides the engine's for this call.
        on_segment: called with the place of a recording and each of its segments, as they come.

    Raises:
        RequestError: a recording is none, the model cannot do what is asked for, or a window failed.
        ConfigError: a package that this takes is not installed.
    """
    several = recordings if isinstance(recordings, list) else [recordings]
    works = list[Transcription]()
    for index, each in enumerate(several):
        with naming(index, len(several), "recording"):
            works.append(transcription(llm, each, params or TranscriptionParams(), sampling_params))
    while open_works := [(place, work) for place, work in enumerate(works) if not work.done]:
        asked = [(place, work, work.samples(llm, speculation)) for place, work in open_works]
        llm.decode([sample for _, _, samples in asked for sample in samples])
        for place, work, samples in asked:
            for segment in work.take(samples):
                if on_segment is not None:
                    on_segment(place, segment)
    return [work.transcript() for work in works]


async def transcribe_async(
    llm: AsyncLLM,
    recording: object,
    params: TranscriptionParams | None = None,
    sampling_params: SamplingParams | None = None,
    request_id: str | None = None,
    *,
    speculation: SpeculationParams | None = None,
) -> AsyncGenerator[Transcript, None]:
    """``AsyncLLM.transcribe``: what a recording of any length says, as it becomes final: token by token in one that
    fits into a window and of which no times are wanted, else segment by segment. Each transcript holds everything so
    far; the last one is what ``LLM.transcribe`` returns. Leaving the loop early ends the request.

    Args:
        recording: as for ``LLM.transcribe``.
        params: likewise.
        sampling_params: likewise.
        request_id: a name for ``abort``, which no other request has at the time.
        speculation: overrides the engine's for this request.

    Raises:
        RequestError: the recording is none, the model cannot do what is asked for, a window failed, or the request was
            aborted.
        BusyError, ClosedError: as for ``generate``.
        ConfigError: a package that this takes is not installed, or memory is short.
    """
    work = await asyncio.to_thread(transcription, llm.llm, recording, params or TranscriptionParams(), sampling_params)
    decoded = AsyncTranscription(llm.engine, work, speculation)
    shown = Transcript("", "", 0.0, [])
    with llm.enlisted(request_id, decoded.cancel):
        async with aclosing(decoded.texts()) as texts:
            async for text in texts:
                # What ended a window may be broken off, and is final all the same.
                grown = replace(work.transcript(), text=max(shown.text, text, key=len))
                if grown.text != shown.text or len(grown.stats) > len(shown.stats):
                    yield grown
                shown = grown


def transcription(
    llm: LLM, recording: object, params: TranscriptionParams, sampling_params: SamplingParams | None = None
) -> Transcription:
    """``LLM.transcription``: a recording that has not been heard yet, for callers that run the engine themselves.

    Raises:
        RequestError, ConfigError: as ``transcribe``.
    """
    llm.engine.home.require()
    sampling = sampling_params or llm.sampling_defaults.params({}, {"max_tokens": None})
    # Kept, since it may have read weights of its own.
    aligner = llm.beside.setdefault(_ALIGNER, Aligner(llm.model))
    return Transcription(llm.model, aligner, recording, params, sampling)
