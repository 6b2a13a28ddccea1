"""A tiny Whisper with random weights that knows two languages, tasks and times, and sounds for it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import soundfile
from tiny_encoder_decoders import END, make_model, save_model
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedModel

SPECIAL = [
    *("<|de|>", "<|en|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
]
TIMES = 21
"""0 to 0.4 seconds: a window of the tiny encoder."""
FIRST = 259
SILENT = FIRST + len(SPECIAL) - 1
SPEECH_VOCAB = SILENT + 1 + TIMES
RATE = 16_000


def make_speech_model(seed: int = 0) -> PreTrainedModel:
    """With the generation settings that transformers wants of a Whisper."""
    model = make_model("whisper", seed, vocab_size=SPEECH_VOCAB)
    ids = {name: FIRST + place for place, name in enumerate(SPECIAL)}
    settings = model.generation_config
    settings.is_multilingual = True
    settings.lang_to_id = {name: ids[name] for name in SPECIAL[:2]}
    settings.task_to_id = {"translate": ids["<|translate|>"], "transcribe": ids["<|transcribe|>"]}
    settings.no_timestamps_token_id = ids["<|notimestamps|>"]
    settings.prev_sot_token_id = ids["<|startofprev|>"]
    settings.max_initial_timestamp_index = 10
    settings.max_length = 128
    # Of the special tokens none is ever said but the end.
    settings.suppress_tokens = [token for token in range(256, SILENT + 1) if token != END]
    settings.begin_suppress_tokens = None
    # Random weights seldom end an output: the end and times are made likelier.
    return model


def save_speech_model(model: PreTrainedModel, directory: Path) -> Path:
    """With its tokenizer."""
    save_model(model, directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def limit_tokens(directory: Path, most: int) -> Path:
    """Let the model's settings say how long an output may be."""
    path = directory / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_new_tokens": most}))
    return directory


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    """float32 [sample] at 16 kHz: tones that come and go."""
    rng = np.random.default_rng(seed)
    times = np.arange(int(seconds * RATE)) / RATE
    wave = sum(
        np.sin(2 * np.pi * rng.uniform(100, 4000) * times) * (np.sin(2 * np.pi * rng.uniform(0.5, 4) * times) > 0)
        for _ in range(5)
    )
    return (0.1 * wave + 0.01 * rng.standard_normal(len(times))).astype(np.float32)


def as_file(
    wave: np.ndarray, rate: int = RATE, kind: str = "WAV", channels: int = 1, subtype: str | None = None
) -> bytes:
    """The content of a file."""
    written = io.BytesIO()
    soundfile.write(written, np.stack([wave] * channels, axis=1), rate, subtype, format=kind)
    return written.getvalue()
