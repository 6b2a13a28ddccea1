"""When words are said: transformers' times of tokens, and words put together from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from thinning import thorough_but
from tiny_speech import make_speech_model, save_speech_model, sound
from transformers import PreTrainedModel, WhisperFeatureExtractor
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from headstart import LLM, ConfigError, SamplingParams, TranscriptionParams
from headstart.backends.torch.encoder_decoder import EncoderDecoderBackend
from headstart.errors import CheckpointError
from headstart.loading.model import Model, load_model
from headstart.models.encoder_decoder_loading import load_encoder_decoder
from headstart_speech.alignment import Aligner, first_positions

HEADS = [[1, 0], [2, 3], [2, 1]]
TIMED = TranscriptionParams(language="de", word_timestamps=True)
pytestmark = pytest.mark.usefixtures("polyglot")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    model = make_speech_model(seed=5)
    model.generation_config.alignment_heads = HEADS
    return model


@pytest.fixture(scope="module")
def model(reference: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(save_speech_model(reference, tmp_path_factory.mktemp("speech")), "fp32")


def kept_times(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Of each window from now on, [token]."""
    kept, times = list[np.ndarray](), Aligner.times

    def keep(self: Aligner, *given: Any) -> np.ndarray:
        kept.append(times(self, *given))
        return kept[-1]

    monkeypatch.setattr(Aligner, "times", keep)
    return kept


def expected_times(reference: PreTrainedModel, wave: np.ndarray, **settings: Any) -> list[np.ndarray]:
    """Of transformers' segments, [token] from the beginning of the recording."""
    read = WhisperFeatureExtractor(feature_size=6)(
        wave,
        sampling_rate=16_000,
        padding="max_length",
        max_length=max(len(wave), 6400),
        return_tensors="pt",
        return_attention_mask=True,
    )
    found = reference.generate(  # type: ignore[operator]
        input_features=read.input_features,
        attention_mask=read.attention_mask,
        return_timestamps=True,
        return_segments=True,
        return_token_timestamps=True,
        do_sample=False,
        language="de",
        task="transcribe",
        **settings,
    )
    return [segment["token_timestamps"].numpy() for segment in found["segments"][0]]


@pytest.mark.parametrize("drafter", ["none", "suffix"])
@pytest.mark.parametrize(
    ("seconds", "settings"), thorough_but([(0.3, {})], [(0.3, {}), (1.304, {}), (0.6, {"num_beams": 3})])
)
def test_times_of_tokens_are_those_of_transformers(
    drafter: str,
    seconds: float,
    settings: dict[str, Any],
    model: Model,
    reference: PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wave, llm = sound(seconds), LLM(model, drafter)
    kept = kept_times(llm, monkeypatch)
    sampling = SamplingParams(beam_width=3, max_tokens=None) if settings else None
    (transcript,) = llm.transcribe(wave, TIMED, sampling)
    expected = expected_times(reference, wave, **settings)
    assert len(transcript.segments) == len(expected)
    places: dict[int, int] = {}
    seeks = sorted({segment.seek for segment in transcript.segments})
    assert len(kept) == len(seeks)
    for segment, wanted in zip(transcript.segments, expected, strict=True):
        first = places.get(segment.seek, 0)
        own = kept[seeks.index(segment.seek)][first : first + len(segment.tokens)]
        places[segment.seek] = first + len(segment.tokens)
        # transformers' last segment of a window holds the first time of the next.
        np.testing.assert_allclose(own + segment.seek / 100, wanted[: len(own)], atol=1e-4)
    assert len(np.unique(np.concatenate(expected))) > 3


def test_words_are_the_texts_within_their_segments(model: Model) -> None:
    (transcript,) = LLM(model, "suffix").transcribe(sound(1.3), TIMED)
    (plain,) = LLM(model, "none").transcribe(sound(1.3), TranscriptionParams(language="de", timestamps=True))
    assert [each.text for each in transcript.segments] == [each.text for each in plain.segments]
    assert all(each.words is None for each in plain.segments)
    assert not plain.words
    for segment in transcript.segments:
        assert segment.words
        assert "".join(word.word for word in segment.words).replace(" ", "") == segment.text.replace(" ", "")
        times = [time for word in segment.words for time in (word.start, word.end)]
        assert times == sorted(times)
        assert segment.start <= times[0]
        assert times[-1] <= segment.end
    assert transcript.words == [word for segment in transcript.segments for word in segment.words or ()]


@pytest.mark.thorough
def test_whoever_decodes_the_times_are_the_same(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    config, weights = load_encoder_decoder(model.checkpoint, torch.float32)
    backend = EncoderDecoderBackend(config, weights)
    torch_model = Model(**{**vars(model), "backend": backend})
    (said,), (own,) = (LLM(each, "none").transcribe(sound(0.9), TIMED) for each in (model, torch_model))
    assert said.words == own.words


@pytest.mark.thorough
def test_models_that_name_no_heads_use_the_last_half_of_their_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_speech_model(seed=5)
    llm = LLM(load_model(save_speech_model(plain, tmp_path), "fp32"), "none")
    kept = kept_times(llm, monkeypatch)
    llm.transcribe(sound(0.3), TIMED)
    plain.generation_config.alignment_heads = [[layer, head] for layer in (1, 2) for head in range(4)]
    np.testing.assert_allclose(kept[0][:-1], expected_times(plain, sound(0.3))[0][: len(kept[0]) - 1], atol=1e-4)


@pytest.mark.parametrize(
    ("heads", "error", "message"),
    [
        ([[7, 0]], ConfigError, "alignment head \\[7, 0\\], but its decoder has 3 layers of 4 heads"),
        ([[1]], CheckpointError, "alignment_heads is .* a list of pairs of a layer and a head"),
        ("all", CheckpointError, "alignment_heads"),
    ],
)
def test_heads_that_are_none_get_a_sentence(
    heads: object, error: type[Exception], message: str, tmp_path: Path
) -> None:
    import json

    directory = save_speech_model(make_speech_model(seed=5), tmp_path)
    path = directory / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"alignment_heads": heads}))
    with pytest.raises(error, match=message):
        LLM(directory, "none", precision="fp32").transcribe(sound(0.1), TIMED)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 9), (2, 9, 1), (3, 5, 12), (2, 30, 21), (1, 8, 8), (2, 7, 3)])
@pytest.mark.parametrize("tied", [False, True])
def test_paths_are_those_of_transformers(shape: tuple[int, int, int], tied: bool) -> None:
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 3, shape) if tied else rng.random(shape)
    weights = raw.astype(np.float32)
    scaled = torch.from_numpy(weights)
    spread = scaled.std(dim=1, keepdim=True, unbiased=False)
    scaled = torch.where(spread > 0, (scaled - scaled.mean(dim=1, keepdim=True)) / spread, 0.0)
    matrix = _median_filter(scaled[None], 7)[0].mean(dim=0)
    tokens, positions = _dynamic_time_warping(-matrix.double().numpy())
    first = positions[np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)]
    assert first_positions(weights, 7).tolist() == first.tolist()
