"""Recordings over HTTP, to a tiny Whisper with random weights."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
import soxr
from serving import ask
from tokenizers import AddedToken, Tokenizer

from headstart import LLM, SamplingParams
from headstart.audio import read_recording, source_of_audio
from headstart.loading import Model, load_model
from headstart.server import transcriptions
from headstart.server.transcriptions import transcription_prompt
from tiny_encoder_decoders import START, make_model, save_model

SPECIAL = ["<|de|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>", "<|startofprev|>"]


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Its vocabulary knows two languages, and what else a prompt is made of."""
    model = make_model("whisper", vocab_size=264)
    directory = save_model(model, tmp_path_factory.mktemp("whisper"))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(directory / "tokenizer.json"))
    generation = json.loads((directory / "generation_config.json").read_text())
    (directory / "generation_config.json").write_text(json.dumps(generation | {"max_new_tokens": 10}))
    return load_model(directory, "fp32")


def recording(rate: int = 16_000, kind: str = "WAV", channels: int = 1) -> bytes:
    times = np.arange(int(0.3 * rate)) / rate
    wave = (0.5 * np.sin(2 * np.pi * 440 * times)).astype(np.float32)
    written = io.BytesIO()
    soundfile.write(written, np.stack([wave] * channels, axis=1), rate, format=kind)
    return written.getvalue()


def send(llm: LLM, data: bytes | None = None, **fields: Any) -> httpx.Response:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        files = {"file": ("speech.wav", recording() if data is None else data)}
        return await client.post("/v1/audio/transcriptions", files=files, data=fields)

    return ask(llm, work)


def expected(llm: LLM, data: bytes, language: int | None, before: str = "") -> str:
    encoder = llm.model.config.encoder
    assert encoder is not None
    source = source_of_audio(read_recording(data), encoder)
    prompt = transcription_prompt(source, llm.get_tokenizer(), encoder, language, before)
    return llm.generate(prompt, SamplingParams(temperature=0, max_tokens=10))[0].text.strip()


def test_a_recording_is_written_down(heard: Model) -> None:
    llm = LLM(heard, "suffix")
    for data in (recording(), recording(kind="FLAC"), recording(rate=44_100, channels=2)):
        assert send(llm, data).json() == {"text": expected(llm, data, None)}
    assert send(llm, response_format="text").text == expected(llm, recording(), None) + "\n"


def test_languages_are_asked_for_or_heard(heard: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcriptions, "MULTILINGUAL", 264)
    llm = LLM(heard, "none")
    names = llm.get_tokenizer().vocabulary
    told = send(llm, language="de", response_format="verbose_json", prompt="before this").json()
    assert told["text"] == expected(llm, recording(), names["<|de|>"], "before this")
    assert (told["language"], told["duration"], told["task"]) == ("de", 0.3, "transcribe")
    found = send(llm, response_format="verbose_json").json()
    assert found["language"] in ("de", "en")
    assert found["text"] == expected(llm, recording(), names[f"<|{found['language']}|>"])
    assert send(llm, language="xx").json()["error"]["param"] == "language"


def test_a_prompt_holds_what_came_before_language_and_task(heard: Model) -> None:
    llm = LLM(heard, "none")
    names, encoder = llm.get_tokenizer().vocabulary, heard.config.encoder
    assert encoder is not None
    source = source_of_audio(np.zeros(1600), encoder)
    prompt = transcription_prompt(source, llm.get_tokenizer(), encoder, names["<|de|>"], "ab")
    first = names["<|startofprev|>"], *b" ab"
    assert prompt.token_ids == [*first, START, *(names[f"<|{name}|>"] for name in ("de", "transcribe", "notimestamps"))]


@pytest.mark.parametrize(
    ("data", "fields", "message"),
    [
        (b"no audio", {}, "holds no audio"),
        (None, {"response_format": "srt"}, "response_format is 'srt'"),
        (None, {"temperature": "warm"}, "temperature is 'warm'"),
        (None, {"temperature": "-1"}, "temperature"),
        (None, {"stream": "true"}, "stream is given"),
        (None, {"model": "other"}, "is not served here"),
    ],
)
def test_what_is_wrong_gets_a_sentence(data: bytes | None, fields: dict[str, str], message: str, heard: Model) -> None:
    reply = send(LLM(heard, "none"), data, **fields)
    assert reply.status_code in (400, 404)
    assert message in reply.json()["error"]["message"]


def test_forms_without_a_file_and_other_bodies_are_refused(heard: Model, llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [
            await client.post("/v1/audio/transcriptions", json={"file": "x"}),
            await client.post("/v1/audio/transcriptions", files={"other": b"x"}),
        ]

    replies = ask(LLM(heard, "none"), work)
    assert [reply.status_code for reply in replies] == [400, 400]
    assert "send multipart/form-data" in replies[0].json()["error"]["message"]
    assert "there is no file" in replies[1].json()["error"]["message"]
    assert "reads no audio" in send(llm).json()["error"]["message"]


def test_other_rates_are_resampled(heard: Model) -> None:
    encoder = heard.config.encoder
    assert encoder is not None
    samples, rate = read_recording(recording(rate=8000))
    assert rate == 8000
    resampled = soxr.resample(samples, 8000, 16_000)
    assert source_of_audio((samples, rate), encoder) == source_of_audio(resampled, encoder)
