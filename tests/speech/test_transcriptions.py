"""Recordings over HTTP, to a tiny Whisper with random weights."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soxr
from serving import SETTINGS, ask, assert_openai_error, events
from tiny_speech import as_file, limit_tokens, make_speech_model, save_speech_model, sound

from headstart import LLM, SamplingParams, Transcript, TranscriptionParams
from headstart.entrypoints.audio import source_of_audio
from headstart.loading.model import Model, load_model
from headstart_server.settings import ServerSettings
from headstart_speech.recordings import read_recording

SHORT, LONG = as_file(sound(0.3)), as_file(sound(1.0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return limit_tokens(save_speech_model(make_speech_model(seed=5), tmp_path_factory.mktemp("speech")), 30)


@pytest.fixture(scope="module")
def heard(folder: Path) -> Model:
    return load_model(folder, "fp32")


def send(
    llm: LLM, data: bytes = SHORT, path: str = "transcriptions", settings: ServerSettings = SETTINGS, **fields: Any
) -> httpx.Response:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(f"/v1/audio/{path}", files={"file": ("speech.wav", data)}, data=fields)

    return ask(llm, work, settings)


def expected(llm: LLM, data: bytes, sampling: SamplingParams | None = None, **params: Any) -> Transcript:
    (transcript,) = llm.transcribe([read_recording(data)], TranscriptionParams(**params), sampling)
    return transcript


def test_a_recording_is_written_down(heard: Model) -> None:
    llm = LLM(heard, "suffix")
    files = (SHORT, LONG, as_file(sound(0.3), kind="FLAC"), as_file(sound(0.8), rate=44_100, channels=2))
    for data in files:
        reply = send(llm, data).json()
        transcript = expected(llm, data)
        assert reply == {"text": transcript.text, "usage": {"type": "duration", "seconds": 1}}
        assert send(llm, data, response_format="text").text == transcript.text + "\n"
    drawn = send(llm, LONG, temperature="0.8", seed="4").json()["text"]
    assert drawn == expected(llm, LONG, SamplingParams(temperature=0.8, seed=4, max_tokens=30)).text
    beams = send(llm, LONG, beam_width="3", length_penalty="0.5").json()["text"]
    assert beams == expected(llm, LONG, SamplingParams(beam_width=3, length_penalty=0.5, max_tokens=30)).text


@pytest.mark.usefixtures("polyglot")
def test_languages_are_asked_for_or_heard(heard: Model) -> None:
    llm = LLM(heard, "none")
    told = send(llm, language="de", response_format="verbose_json", prompt="before this").json()
    wanted = expected(llm, SHORT, language="de", prompt="before this", timestamps=True, speech_probability=True)
    assert told["text"] == wanted.text
    assert (told["language"], told["duration"], told["task"]) == ("de", 0.3, "transcribe")
    found = send(llm, response_format="verbose_json").json()
    assert found["language"] == expected(llm, SHORT).language
    assert send(llm, language="xx").json()["error"]["param"] == "language"


@pytest.mark.usefixtures("polyglot")
def test_segments_and_subtitles(heard: Model) -> None:
    llm = LLM(heard, "suffix")
    wanted = expected(llm, LONG, language="de", timestamps=True, speech_probability=True)
    fields = {"language": "de", "response_format": "verbose_json", "timestamp_granularities[]": "segment"}
    segments = send(llm, LONG, **fields).json()["segments"]
    assert [each["text"] for each in segments] == [segment.text for segment in wanted.segments]
    for each, segment in zip(segments, wanted.segments, strict=True):
        assert tuple(each["tokens"]) == segment.tokens
        assert (each["start"], each["end"], each["seek"], each["id"]) == (
            *(segment.start, segment.end, segment.seek, segment.id),
        )
        assert each["no_speech_prob"] == pytest.approx(segment.no_speech_prob)
        assert each["avg_logprob"] == pytest.approx(segment.avg_logprob)
    srt = send(llm, LONG, language="de", response_format="srt")
    assert srt.text.count(" --> ") == len(segments)
    assert srt.text.startswith("1\n00:00:00,")
    vtt = send(llm, LONG, language="de", response_format="vtt")
    assert vtt.text.startswith("WEBVTT\n\n00:00:00.")
    assert vtt.headers["content-type"].startswith("text/vtt")


@pytest.mark.usefixtures("polyglot")
def test_times_of_words(heard: Model) -> None:
    llm = LLM(heard, "suffix")
    wanted = expected(llm, LONG, language="de", word_timestamps=True)
    words = [{"word": word.word, "start": word.start, "end": word.end} for word in wanted.words]
    assert len(words) > 1
    fields = {"language": "de", "response_format": "verbose_json"}
    alone = send(llm, LONG, **fields, **{"timestamp_granularities[]": "word"}).json()
    assert alone["words"] == words
    assert "segments" not in alone
    both = send(llm, LONG, **fields, **{"timestamp_granularities[]": ["word", "segment"]}).json()
    assert both["words"] == words
    assert [each["text"] for each in both["segments"]] == [segment.text for segment in wanted.segments]
    assert "words" not in send(llm, LONG, **fields).json()


@pytest.mark.usefixtures("polyglot")
def test_translations(heard: Model) -> None:
    llm = LLM(heard, "none")
    told = send(llm, LONG, "translations", response_format="verbose_json").json()
    wanted = expected(llm, LONG, task="translate", timestamps=True)
    assert (told["text"], told["task"], told["language"]) == (wanted.text, "translate", wanted.language)
    assert told["text"] != send(llm, LONG).json()["text"]


def test_a_model_of_one_language_translates_nothing(heard: Model) -> None:
    reply = send(LLM(heard, "none"), path="translations")
    assert reply.status_code == 400
    assert "writes English alone" in reply.json()["error"]["message"]


@pytest.mark.parametrize("data", [SHORT, LONG], ids=["one window", "several"])
def test_texts_stream_as_they_become_final(data: bytes, heard: Model) -> None:
    llm = LLM(heard, "ngram")
    reply = send(llm, data, stream="true")
    assert reply.headers["content-type"].startswith("text/event-stream")
    told = events(reply)
    *deltas, done = told
    assert {event["type"] for event in deltas} == {"transcript.text.delta"}
    assert (done["type"], done["usage"]["type"]) == ("transcript.text.done", "duration")
    assert done["text"] == expected(llm, data).text
    assert "".join(event["delta"] for event in deltas).strip() == done["text"]
    assert len(deltas) > 1


@pytest.mark.parametrize(
    ("data", "fields", "message"),
    [
        (b"no audio", {}, "holds no audio"),
        (as_file(sound(0.3)[:0]), {}, "the recording is empty; give one that has samples"),
        (as_file(np.full(99, np.nan, np.float32), subtype="FLOAT"), {}, "samples that are no finite numbers"),
        (SHORT, {"response_format": "docx"}, "response_format is 'docx'"),
        (SHORT, {"temperature": "warm"}, "temperature is 'warm'"),
        (SHORT, {"temperature": "-1"}, "temperature"),
        (SHORT, {"temperature": "nan"}, "temperature"),
        (SHORT, {"seed": "1.5"}, "seed is '1.5'; give a number"),
        (SHORT, {"beam_width": "99"}, "beam_width is 99, and this engine decodes 16 sequences together"),
        (SHORT, {"stream": "perhaps"}, "stream is 'perhaps'; give true or false"),
        (SHORT, {"stream": "true", "response_format": "srt"}, "srt cannot be streamed"),
        (SHORT, {"stream": "true", "language": "xy"}, "knows English alone"),
        (
            SHORT,
            {"timestamp_granularities[]": "line", "response_format": "verbose_json"},
            "'line'; give word or segment",
        ),
        (SHORT, {"timestamp_granularities[]": "word"}, "json shows no times"),
        (SHORT, {"include[]": "logprobs"}, "include[] is given"),
        (SHORT, {"chunking_strategy": "auto"}, "chunking_strategy is given"),
        (SHORT, {"model": "other"}, "is not served here"),
    ],
)
def test_what_is_wrong_gets_a_sentence(data: bytes, fields: dict[str, str], message: str, heard: Model) -> None:
    reply = send(LLM(heard, "none"), data, **fields)
    assert reply.status_code in (400, 404)
    assert message in reply.json()["error"]["message"]


def test_recordings_are_bounded(heard: Model) -> None:
    llm = LLM(heard, "none")
    reply = send(llm, LONG, settings=ServerSettings("tiny", max_audio_bytes=1000))
    assert reply.status_code == 413
    assert "longer than 1000 bytes" in reply.json()["error"]["message"]
    assert send(llm, LONG, settings=ServerSettings("tiny", max_body_bytes=1000)).status_code == 200
    # A few bytes that unpack to minutes.
    silence = as_file(sound(0.1)[:1].repeat(16_000 * 100), kind="FLAC")
    reply = send(llm, silence, settings=ServerSettings("tiny", max_audio_seconds=60))
    assert reply.status_code == 400
    assert "more than the 60 seconds that are read; cut it" in reply.json()["error"]["message"]


def test_recordings_are_bounded_together(heard: Model) -> None:
    llm = LLM(heard, "none")
    length = len(read_recording(LONG)[0]) / 16_000
    settings = ServerSettings("tiny", max_audio_seconds=1 + int(length))

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        asked = [client.post("/v1/audio/transcriptions", files={"file": ("speech.wav", LONG)}) for _ in range(12)]
        replies = await asyncio.gather(*asked)
        return [*replies, await client.post("/v1/audio/transcriptions", files={"file": ("speech.wav", LONG)})]

    *beside, after = ask(llm, work, settings)
    statuses = [reply.status_code for reply in beside]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 4
    assert after.status_code == 200


def test_a_recording_that_takes_too_long_ends_with_504(heard: Model) -> None:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/audio/transcriptions", files={"file": ("speech.wav", LONG)})

    reply = ask(LLM(heard, "none"), work, max_seconds=1e-6)
    assert reply.status_code == 504
    assert reply.json()["error"]["code"] == "timeout"


def test_two_recordings_at_once_are_as_if_alone(heard: Model) -> None:
    llm = LLM(heard, "suffix")

    async def work(client: httpx.AsyncClient) -> list[str]:
        import asyncio

        files = [{"file": ("speech.wav", data)} for data in (LONG, SHORT, LONG)]
        replies = await asyncio.gather(*[client.post("/v1/audio/transcriptions", files=each) for each in files])
        return [reply.json()["text"] for reply in replies]

    assert ask(llm, work) == [expected(llm, data).text for data in (LONG, SHORT, LONG)]


def test_forms_without_a_file_and_other_bodies_are_refused(heard: Model, tiny_model_dir: Path) -> None:
    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [
            await client.post("/v1/audio/transcriptions", json={"file": "x"}),
            await client.post("/v1/audio/translations", files={"other": b"x"}),
        ]

    replies = ask(LLM(heard, "none"), work)
    assert [reply.status_code for reply in replies] == [400, 400]
    assert "send multipart/form-data" in replies[0].json()["error"]["message"]
    assert "there is no file" in replies[1].json()["error"]["message"]
    assert "reads no audio" in send(LLM(tiny_model_dir, "none")).json()["error"]["message"]


def test_other_rates_are_resampled(heard: Model) -> None:
    encoder = heard.config.encoder
    assert encoder is not None
    samples = sound(0.3)[:3000]
    resampled = soxr.resample(samples, 8000, 16_000)
    read, rate = read_recording(as_file(samples, rate=8000))
    assert rate == 16_000
    np.testing.assert_allclose(read, resampled, atol=1e-3)  # the file's samples have 16 bits
    assert source_of_audio((samples, 8000), encoder) == source_of_audio(resampled, encoder)


def test_bytes_of_replies_are_ascii(heard: Model) -> None:
    assert json.loads(send(LLM(heard, "none")).content.decode("ascii"))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data; boundary=x"),
        (b"--x", "multipart/form-data"),
        (b"--y\r\n", "multipart/form-data; boundary=x"),
        (b"--x\r\nbroken\r\n\r\n", "multipart/form-data; boundary=x"),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--", "multipart/form-data; boundary=x"),
        (b"{}", "application/json"),
        (b"--x--", "multipart/form-data; boundary=x; charset=none"),
        (b"--" + b"x" * 300 + b"--", "multipart/form-data; boundary=" + "x" * 300),
    ],
)
def test_a_broken_form_is_called_a_form(body: bytes, kind: str, heard: Model) -> None:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/audio/transcriptions", content=body, headers={"content-type": kind})

    error = assert_openai_error(ask(LLM(heard, "none"), work), 400)
    assert "form" in error["message"]
    assert "JSON" not in error["message"]
