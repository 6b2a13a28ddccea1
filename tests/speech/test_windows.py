"""Recordings longer than the encoder's window: transformers' long form, with every drafter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from thinning import thorough_but
from tiny_encoder_decoders import END, START, reference_logits
from tiny_speech import FIRST, SILENT, as_file, make_speech_model, save_speech_model, sound
from transformers import PreTrainedModel, WhisperFeatureExtractor

from headstart import (
    LLM,
    ConfigError,
    RequestError,
    SamplingParams,
    Segment,
    StructuredOutputsParams,
    TranscriptionParams,
)
from headstart.loading.model import Model, load_model
from headstart_speech import vocabulary

TIMED = TranscriptionParams(language="de", timestamps=True)
pytestmark = pytest.mark.usefixtures("polyglot")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    return make_speech_model(seed=5)


@pytest.fixture(scope="module")
def model(reference: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(save_speech_model(reference, tmp_path_factory.mktemp("speech")), "fp32")


@pytest.fixture(scope="module")
def llm(model: Model) -> LLM:
    return LLM(model, "suffix")


def features(wave: np.ndarray, shortest: int = 0) -> torch.Tensor:
    """[1, mel bin, frame]."""
    read = WhisperFeatureExtractor(feature_size=6)(
        wave, sampling_rate=16_000, padding="max_length", max_length=max(len(wave), shortest), return_tensors="pt"
    )
    found: torch.Tensor = read["input_features"]
    return found


def long_form(reference: PreTrainedModel, read: torch.Tensor, **settings: Any) -> list[dict[str, Any]]:
    """The segments of transformers."""
    asked = {"language": "de", "task": "transcribe"} | settings
    found = reference.generate(  # type: ignore[operator]
        input_features=read, return_timestamps=True, return_segments=True, do_sample=False, **asked
    )
    segments: list[dict[str, Any]] = found["segments"][0]
    return segments


def require_equal(segments: list[Segment], expected: list[dict[str, Any]], seconds: float) -> None:
    texts = [[token for token in each["tokens"].tolist() if token < 256] for each in expected]
    spoken = [(each, text) for each, text in zip(expected, texts, strict=True) if bytes(text).strip()]
    assert [[token for token in segment.tokens if token < 256] for segment in segments] == [text for _, text in spoken]
    for segment, (each, _) in zip(segments, spoken, strict=True):
        assert segment.start == pytest.approx(min(float(each["start"]), seconds), abs=0.006)
        assert segment.end == pytest.approx(min(float(each["end"]), seconds), abs=0.006)


def told(segments: list[Segment]) -> list[Segment]:
    """Less the last bits of floats, which PyTorch's passes of other rows may round otherwise."""
    return [
        replace(each, avg_logprob=None if each.avg_logprob is None else round(each.avg_logprob, 3)) for each in segments
    ]


@pytest.mark.parametrize("seconds", thorough_but([0.57], [0.57, 1.304]))
@pytest.mark.parametrize("condition", [False, True])
def test_windows_are_those_of_transformers(
    llm: LLM, reference: PreTrainedModel, seconds: float, condition: bool
) -> None:
    wave = sound(seconds)
    params = TranscriptionParams(language="de", timestamps=True, condition_on_previous_text=condition)
    (transcript,) = llm.transcribe(wave, params)
    expected = long_form(reference, features(wave), condition_on_prev_tokens=condition)
    require_equal(transcript.segments, expected, seconds)
    said = bytes(token for each in expected for token in each["tokens"].tolist() if token < 256)
    assert transcript.text == said.decode(errors="replace").strip()
    assert len(transcript.stats) > 1
    assert transcript.duration == pytest.approx(seconds)
    llm.engine.check()


def test_a_prompt_stands_before_every_window(llm: LLM, reference: PreTrainedModel) -> None:
    wave = sound(0.9)
    (transcript,) = llm.transcribe(wave, TranscriptionParams(language="de", prompt="a name", task="translate"))
    prompt = torch.tensor([SILENT - 2, *b" a name"])
    expected = long_form(reference, features(wave), prompt_ids=prompt, task="translate")
    said = bytes(token for each in expected for token in each["tokens"].tolist() if token < 256)
    assert transcript.text == said.decode(errors="replace").strip()
    (other,) = llm.transcribe(wave, TranscriptionParams(language="de"))
    assert other.text != transcript.text


@pytest.mark.parametrize("drafter", thorough_but(["recycling"], ["recycling", "suffix", "early-exit"]))
def test_drafters_change_nothing(model: Model, drafter: str) -> None:
    waves = [sound(0.9), sound(0.3, seed=1), sound(0.7, seed=2)]
    for sampling in (
        SamplingParams(temperature=0, max_tokens=40),
        SamplingParams(temperature=0.7, seed=3, max_tokens=40),
    ):
        plain = LLM(model, "none").transcribe(waves, TIMED, sampling)
        guessed = LLM(model, drafter).transcribe(waves, TIMED, sampling)
        if sampling is None or not any(stats.sampled_rounds for each in guessed for stats in each.stats):
            assert [(each.text, told(each.segments)) for each in guessed] == [
                (each.text, told(each.segments)) for each in plain
            ]
        assert len({each.text for each in plain}) == 3


@pytest.mark.thorough
def test_several_recordings_are_as_if_alone(llm: LLM, tmp_path: Path) -> None:
    waves = [sound(0.9), sound(0.2, seed=1), sound(1.3, seed=2)]
    heard = list[tuple[int, Segment]]()
    together = llm.transcribe(waves, TIMED, on_segment=lambda place, segment: heard.append((place, segment)))
    for place, (wave, transcript) in enumerate(zip(waves, together, strict=True)):
        path = tmp_path / f"{place}.wav"
        path.write_bytes(as_file(wave))
        (alone,) = llm.transcribe(str(path), TIMED)
        (pair,) = llm.transcribe([(wave, 16_000)], TIMED)
        assert transcript.segments == [segment for own, segment in heard if own == place]
        assert told(pair.segments) == told(transcript.segments)
        # A file of 16 bits rounds.
        assert alone.duration == transcript.duration
        assert [segment.id for segment in transcript.segments] == list(range(len(transcript.segments)))


@pytest.mark.thorough
def test_beams_follow_the_rules_of_times(model: Model, reference: PreTrainedModel) -> None:
    params = SamplingParams(beam_width=3, max_tokens=30)
    (whole,) = LLM(model, "none").transcribe(sound(0.6), TIMED, SamplingParams(beam_width=3, max_tokens=None))
    require_equal(whole.segments, long_form(reference, features(sound(0.6)), num_beams=3), 0.6)
    found = [LLM(model, drafter).transcribe(sound(0.9), TIMED, params)[0] for drafter in ("none", "recycling")]
    assert told(found[0].segments) == told(found[1].segments)
    for segment in found[0].segments:
        assert segment.tokens[0] > SILENT
        assert 0 <= segment.start <= segment.end <= 0.9


def test_languages_are_heard_in_the_first_window(llm: LLM, reference: PreTrainedModel) -> None:
    wave = sound(1.0)
    (transcript,) = llm.transcribe(wave)
    first = features(wave)[0, :, :40].numpy()
    logits = reference_logits(reference, first, [START])[-1]
    assert transcript.language == ("de" if logits[FIRST] > logits[FIRST + 1] else "en")
    assert transcript.text == llm.transcribe(wave, TranscriptionParams(language=transcript.language))[0].text


def test_the_probability_that_nobody_speaks(llm: LLM, reference: PreTrainedModel) -> None:
    wave = sound(0.3)
    params = TranscriptionParams(language="de", timestamps=True, speech_probability=True, prompt="x")
    (transcript,) = llm.transcribe(wave, params)
    logits = reference_logits(reference, features(wave, 6400)[0].numpy(), [SILENT - 2, *b" x", START])[-1]
    expected = float(logits.softmax(-1)[SILENT - 1])
    assert transcript.segments[0].no_speech_prob == pytest.approx(expected, rel=1e-4)
    assert transcript.segments[0].avg_logprob is not None
    assert transcript.segments[0].compression_ratio > 0
    assert llm.transcribe(wave, TIMED)[0].segments[0].no_speech_prob is None


def test_short_recordings_without_times_are_one_request(llm: LLM) -> None:
    wave = sound(0.3)
    (transcript,) = llm.transcribe(wave, TranscriptionParams(language="de"))
    begun = [START, FIRST, FIRST + 3, SILENT]
    prompt = {"encoder_prompt": {"audio": wave}, "decoder_prompt": begun}
    (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=None))
    assert transcript.text == output.text.strip()
    (segment,) = transcript.segments
    assert (segment.start, segment.end, segment.text) == (0.0, 0.3, transcript.text)
    assert list(segment.tokens) == [token for token in output.token_ids if token != END]


def test_text_grows_as_it_becomes_final(llm: LLM) -> None:
    from headstart_speech.alignment import Aligner
    from headstart_speech.windows import Transcription

    sampling = llm.sampling_defaults.params({}, {"max_tokens": None})
    work = Transcription(llm.model, Aligner(llm.model), sound(1.0), TIMED, sampling)
    shown, seen = "", 0
    while not work.done:
        (wanted,) = work.wanted()
        samples = llm.samples(wanted.prompt, wanted.params, constraint=wanted.constraint)
        for sample in samples:
            llm.engine.add(sample.sequence)
        while not llm.engine.idle:
            llm.engine.step()
            text = work.text_so_far(samples[0].sequence.output)
            assert text.startswith(shown)
            shown, seen = text, seen + (text != shown)
        assert 0 <= work.progress < 1
        work.take(samples)
    assert work.progress == 1
    assert work.transcript().text.startswith(shown)
    assert seen > 1


@pytest.mark.parametrize(
    ("audio", "params", "sampling", "message"),
    [
        (sound(0.1), {"language": "dee"}, {}, "language is 'dee', which the model does not know; did you mean 'de'"),
        (sound(0.1), {"language": 3}, {}, "language is 3; give a text"),
        (sound(0.1), {"task": "sing"}, {}, "task is 'sing'; give transcribe or translate"),
        (sound(0.1), {"timestamps": 1}, {}, "timestamps is 1; it must be True or False"),
        (sound(0.1), {"prompt": "\ud800"}, {}, "half of a surrogate pair"),
        (sound(0.1), {}, {"n": 2}, "a recording has one transcript"),
        (sound(0.1), {}, {"stop": "x"}, "a transcript ends with its recording"),
        (sound(0.1), {}, {"structured_outputs": StructuredOutputsParams(regex="a")}, "speech follows no grammar"),
        (np.zeros((2, 2)), {}, {}, "audio must be an array of 1 dimension"),
        (np.zeros(0), {}, {}, "the recording is empty; give one that has samples"),
        ([sound(0.1), np.zeros(0)], {}, {}, "recording 1: the recording is empty"),
        ("/nowhere/speech.wav", {}, {}, "speech.wav cannot be read: No such file or directory"),
    ],
)
def test_what_is_wrong_gets_a_sentence(
    audio: object, params: dict[str, Any], sampling: dict[str, Any], message: str, llm: LLM
) -> None:
    with pytest.raises(RequestError, match=message):
        llm.transcribe(audio, TranscriptionParams(**params), SamplingParams(**sampling))
    assert llm.engine.idle


def test_models_that_cannot_are_refused(
    llm: LLM, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestError, match="this model reads no audio; use a Whisper"):
        LLM(tiny_model_dir, "none").transcribe(sound(0.1))
    monkeypatch.setattr(vocabulary, "MULTILINGUAL", 1 << 20)
    for params, message in (
        ({"language": "de"}, "knows English alone"),
        ({"task": "translate"}, "writes English alone"),
    ):
        with pytest.raises(RequestError, match=message):
            llm.transcribe(sound(0.1), TranscriptionParams(**params))
    assert llm.transcribe(sound(0.1), TranscriptionParams(language="en"))[0].language == "en"
    monkeypatch.setattr(llm.model.tokenizer, "vocabulary", {})
    for wave, params in ((sound(0.5), {}), (sound(0.1), {"timestamps": True})):
        with pytest.raises(RequestError, match="vocabulary has no times"):
            llm.transcribe(wave, TranscriptionParams(**params))


def test_the_package_of_audio_is_named(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "soxr", None)
    with pytest.raises(ConfigError, match=r"needs the package soxr; install it: pip install headstart\[audio\]"):
        llm.transcribe((sound(0.1), 8000))
