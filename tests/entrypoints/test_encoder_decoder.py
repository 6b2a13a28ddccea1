"""Models with an encoder through the library's front door: transformers' tokens, with every drafter, in every batch."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from thinning import thorough_but
from tiny_encoder_decoders import (
    FAMILIES,
    START,
    WIDE,
    features,
    inputs_of,
    make_model,
    reference_tokens,
    save_model,
)
from transformers import GenerationMixin, PreTrainedModel, WhisperFeatureExtractor

from headstart import LLM, CheckpointError, ConfigError, RequestError, SamplingParams
from headstart.backends.native.loader import load_library
from headstart.drafting.registry import available_drafters
from headstart.loading.model import Model, load_model

PROMPTS = ["Hello world", "Once upon a time, there was a house.", "abc abc abc", "x", "Hello world"]
GREEDY = SamplingParams(temperature=0, max_tokens=20)
TEXTS = [family for family in FAMILIES if family != "whisper"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def reference(family: str, **changes: Any) -> PreTrainedModel:
    return make_model(family, **changes)


@pytest.fixture(scope="module", params=thorough_but(["native"], ["native", "torch"]))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """One whose heads are wide enough for the native pass, and one that PyTorch computes."""
    if request.param == "native" and load_library() is None:
        pytest.skip("no native path on this machine")
    changes = WIDE["t5"] if request.param == "native" else {}
    loaded = load_model(save_model(reference("t5", **changes), tmp_path_factory.mktemp("t5")), "fp32")
    assert loaded.backend.name.startswith(request.param)
    return loaded


@pytest.fixture(scope="module")
def plain(model: Model) -> LLM:
    return LLM(model, "none")


@pytest.fixture(scope="module")
def small_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the same vocabulary, with an encoder of its own."""
    draft = make_model("bart", seed=4, encoder_layers=1, decoder_layers=1, **WIDE["bart"])
    return save_model(draft, tmp_path_factory.mktemp("draft"))


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("family", TEXTS)
def test_greedy_tokens_are_those_of_transformers(family: str, wide: bool, tmp_path: Path) -> None:
    model = reference(family, **WIDE[family] if wide else {})
    llm = LLM(save_model(model, tmp_path), "suffix", precision="fp32")
    assert llm.engine.runner.runs_stretches is (wide and load_library() is not None)
    outputs = llm.generate(PROMPTS, GREEDY)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.token_ids == reference_tokens(model, list(prompt.encode()), 20)
        assert (output.encoder_prompt, output.encoder_prompt_token_ids) == (prompt, list(prompt.encode()))
        assert (output.prompt, output.prompt_token_ids) == ("<|end|>", [START])
    assert len({tuple(output.token_ids) for output in outputs}) > 1


@pytest.mark.parametrize("family", thorough_but(("bart", "t5", "whisper"), FAMILIES))
def test_every_family_keeps_its_tokens_in_a_small_cache(family: str, tmp_path: Path) -> None:
    """Greedy and beams are transformers', draws are plain ones: guessed at, together, preempted, read again."""
    model = reference(family, seed=7, **WIDE[family])
    read: list[Any] = [list(prompt.encode()) for prompt in ("Hello world", "abc abc abc abc", "x" * 30)]
    prompts: list[Any] = read
    if family == "whisper":
        read = [features(seed) for seed in (1, 2, 3)]
        prompts = [{"features": each} for each in read]
    loaded = load_model(save_model(model, tmp_path), "fp32")
    greedy = [reference_tokens(model, each, 24) for each in read]
    beams = GenerationMixin.generate(
        model, **inputs_of(model, read[0]), max_new_tokens=10, do_sample=False, num_beams=3, num_return_sequences=3,
        use_cache=False,
    )[:, 1:].tolist()  # fmt: skip
    drawing = SamplingParams(temperature=0.9, seed=5, max_tokens=24, ignore_eos=True)
    drawn = [output.token_ids for output in LLM(loaded, "none").generate(prompts, drawing)]
    for drafter in ("recycling", "early-exit"):
        llm = LLM(loaded, drafter, cache_tokens=5 * 32, max_context=64, prefix_caching=True)
        for _ in range(2):
            outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24))
            assert [output.token_ids for output in outputs] == greedy
            outputs = llm.generate(prompts, drawing)
            if not any(output.stats.sampled_rounds for output in outputs):
                assert [output.token_ids for output in outputs] == drawn
            (found,) = llm.generate(prompts[0], SamplingParams(beam_width=3, n=3, max_tokens=10))
            for beam, row in zip(found.outputs, beams, strict=True):
                assert beam.token_ids == row[: len(beam.token_ids)]
            llm.engine.check()


def _options(name: str, draft: Path, text: Path) -> dict[str, object]:
    needed: dict[str, dict[str, object]] = {
        "draft-model": {"model": str(draft)},
        "multi-draft": {"layers": 2},
        "hierarchical": {"layers": 1},
        "rest": {"texts": str(text)},
        "synthetic": {"rates": "0.8,0.6"},
    }
    return needed.get(name, {})


@pytest.mark.parametrize("name", sorted(available_drafters()))
def test_every_drafter_keeps_plain_tokens(
    name: str, model: Model, plain: LLM, small_draft: Path, tmp_path: Path
) -> None:
    info = available_drafters()[name]
    if info.kind == "head" or name == "self":
        with pytest.raises((ConfigError, CheckpointError)):
            LLM(model, name)
        return
    text = tmp_path / "text.txt"
    text.write_text("Hello world, hello house.\n")
    llm = LLM(model, name, drafter_options=_options(name, small_draft, text))
    sampled = SamplingParams(temperature=0.8, seed=3, max_tokens=20)
    for params in (GREEDY, sampled):
        expected = plain.generate(PROMPTS, params)
        outputs = llm.generate(PROMPTS, params)
        if params is GREEDY or all(output.stats.sampled_rounds == 0 for output in outputs):
            assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    llm.engine.check()
    assert llm.engine.runner.cache.allocator.num_free == llm.engine.runner.cache.allocator.num_blocks


def test_a_draft_models_encoder_reads_once_and_only_if_guesses_are_wanted(
    model: Model, plain: LLM, small_draft: Path
) -> None:
    llm = LLM(model, "draft-model", drafter_options={"model": str(small_draft)})
    runner = llm.engine.drafter._model.runner  # type: ignore[attr-defined]
    llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=1))
    assert runner.encoder_passes == 0
    outputs = llm.generate(PROMPTS, GREEDY)
    assert runner.encoder_passes == len(set(PROMPTS))
    assert runner.encoder_seconds > 0
    assert sum(output.stats.drafted for output in outputs) > 0
    runner.cache.check()
    assert runner.cache.allocator.num_free == runner.cache.allocator.num_blocks


def test_a_draft_model_without_room_for_its_memories_changes_nothing(
    model: Model, plain: LLM, small_draft: Path
) -> None:
    expected = [output.token_ids for output in plain.generate(PROMPTS, GREEDY)]
    for room in (32, 96, 160):
        llm = LLM(model, "draft-model", drafter_options={"model": str(small_draft), "cache_tokens": room})
        assert [output.token_ids for output in llm.generate(PROMPTS, GREEDY)] == expected
        llm.engine.drafter._model.runner.cache.check()  # type: ignore[attr-defined]


def test_a_draft_model_without_encoder_guesses_from_the_output_alone(
    model: Model, plain: LLM, tiny_model_dir: Path
) -> None:
    llm = LLM(model, "draft-model", drafter_options={"model": str(tiny_model_dir)})
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain.generate(PROMPTS, GREEDY)]
    assert sum(output.stats.drafted for output in outputs) > 0


def test_equal_inputs_and_samples_share_a_memory(model: Model, plain: LLM) -> None:
    before = plain.engine.runner.encoder_passes
    params = SamplingParams(temperature=1.0, seed=1, n=3, max_tokens=8)
    outputs = plain.generate(["shared words", "shared words", "other words"], params)
    assert plain.engine.runner.encoder_passes == before + 2
    assert len({tuple(each.token_ids) for each in outputs[0].outputs}) == 3
    # A request of another salt learns nothing of it.
    plain.generate("shared words", GREEDY, cache_salt="tenant")
    assert plain.engine.runner.encoder_passes == before + 3


def test_a_small_cache_preempts_and_changes_nothing(model: Model, plain: LLM) -> None:
    prompts = [f"{letter * 40} and so on" for letter in "abcd"] * 2
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    expected = [output.token_ids for output in plain.generate(prompts, params)]
    preemptions = 0
    for drafter in ("suffix", "early-exit"):
        # 7 blocks, with those of drafts; 2 of memory and 2 of output each: two fit until they grow.
        llm = LLM(model, drafter, cache_tokens=6 * 32, max_context=100)
        outputs = llm.generate(prompts, params)
        assert [output.token_ids for output in outputs] == expected
        preemptions += sum(output.stats.preemptions for output in outputs)
        llm.engine.check()
    assert preemptions > 0


def test_kept_memories_are_found_again(model: Model, plain: LLM) -> None:
    llm = LLM(model, "none", prefix_caching=True, cache_tokens=12 * 32, max_context=100)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = ["first " * 8, "second " * 8, "third " * 8]
    expected = [plain.generate(prompt, params)[0].token_ids for prompt in prompts]
    for prompt, tokens in zip(prompts, expected, strict=True):
        for _ in range(2):
            (output,) = llm.generate(prompt, params)
            assert output.token_ids == tokens
            llm.engine.check()
    assert llm.engine.runner.encoder_passes == 3
    # Tokens that follow another source are other states: a decoder's prompt alone finds nothing.
    begun = {"encoder_prompt": prompts[0], "decoder_prompt": [START, *expected[1]]}
    assert llm.generate(begun, params)[0].token_ids == plain.generate(begun, params)[0].token_ids
    llm.generate([f"{letter * 60}" for letter in "abcdefgh"], params)
    assert llm.generate(prompts[0], params)[0].token_ids == expected[0]
    llm.engine.check()


def test_outputs_go_on_with_a_decoder_prompt(plain: LLM) -> None:
    (whole,) = plain.generate("Hello world", GREEDY)
    begun = whole.token_ids[:5]
    text = plain.get_tokenizer().decode(begun)
    forms: list[Any] = [begun, [START, *begun], {"prompt_token_ids": begun}]
    if plain.encode(text, add_special_tokens=False).source is not None and text.isascii():
        forms += [text, {"prompt": text}]
    for form in forms:
        for read in ("Hello world", {"prompt": "Hello world"}, list(b"Hello world")):
            (rest,) = plain.generate({"encoder_prompt": read, "decoder_prompt": form}, GREEDY)
            assert rest.prompt_token_ids == [START, *begun]
            assert rest.token_ids[:15] == whole.token_ids[5:]
    for nothing in (None, "", [], {"prompt": ""}):
        (alone,) = plain.generate({"encoder_prompt": "Hello world", "decoder_prompt": nothing}, GREEDY)
        assert alone.prompt_token_ids == [START]
        assert alone.token_ids == whole.token_ids


def test_what_generation_settings_force_is_said(tmp_path: Path) -> None:
    model = make_model("bart")
    model.generation_config.forced_bos_token_id = 7
    model.generation_config.forced_eos_token_id = 258
    model.generation_config.bad_words_ids = [[200], [104, 105]]
    model.generation_config.begin_suppress_tokens = reference_tokens(model, list(b"Hello"), 2)[1:]
    llm = LLM(save_model(model, tmp_path), "suffix")
    expected = reference_tokens(model, list(b"Hello"), 12)
    (output,) = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=11))
    assert output.prompt_token_ids == [START, 7]
    assert [7, *output.token_ids] == expected
    assert output.token_ids[-1] == 258


@pytest.mark.parametrize("family", thorough_but(("bart", "t5"), ["bart", "mbart", "marian", "pegasus", "t5"]))
def test_a_forced_end_comes_whatever_forbids_it(family: str, tmp_path: Path) -> None:
    """As transformers has it; guesses, whoever makes them, neither bring it forward nor keep it away."""
    forcing = make_model(family)
    settings = forcing.generation_config
    settings.forced_eos_token_id, settings.forced_bos_token_id = 258, 7
    model = load_model(save_model(forcing, tmp_path), "fp32")
    llms = [LLM(model, drafter) for drafter in ("none", "auto", "random")]
    for more, asked in (
        ({"min_tokens": 16}, {"min_new_tokens": 17}),
        ({"banned_token_ids": (258,)}, {"bad_words_ids": [[258]]}),
        ({"max_tokens": 1}, {}),
    ):
        params = SamplingParams(**{"temperature": 0, "max_tokens": 16, **more})
        plain, *guessed = [llm.generate("Hello", params)[0].outputs[0] for llm in llms]
        assert plain.finish_reason == "stop"
        for each in guessed:
            assert (each.token_ids, each.finish_reason) == (plain.token_ids, plain.finish_reason)
        count = 1 + (params.max_tokens or 0)
        assert [7, *plain.token_ids] == reference_tokens(forcing, list(b"Hello"), count, **asked)
        drawn = replace(params, temperature=0.9, seed=3)
        plain, guessed = [llm.generate("Hello", drawn)[0].outputs[0] for llm in llms[:2]]
        assert plain.token_ids == guessed.token_ids
        assert plain.token_ids[-1] == 258


@pytest.mark.parametrize("family", ["t5", "bart"])
@pytest.mark.parametrize("drafter", ["none", "suffix"])
def test_beams_share_a_memory_and_are_those_of_transformers(family: str, drafter: str, tmp_path: Path) -> None:
    model = make_model(family)
    settings = model.generation_config
    if family == "bart":
        settings.forced_eos_token_id = 258
        settings.begin_suppress_tokens = reference_tokens(model, list(b"Hello world"), 1)
    llm = LLM(save_model(model, tmp_path), drafter)
    for prompt in PROMPTS[:2]:
        (output,) = llm.generate(prompt, SamplingParams(temperature=0, beam_width=3, n=3, max_tokens=10))
        ids = torch.tensor([list(prompt.encode())])
        beams = {"num_beams": 3, "num_return_sequences": 3, "do_sample": False, "use_cache": False}
        expected = model.generate(ids, max_new_tokens=10, **beams)[:, 1:].tolist()
        for beam, row in zip(output.outputs, expected, strict=True):
            assert beam.token_ids == row[: len(beam.token_ids)]
            assert set(row[len(beam.token_ids) :]) <= {settings.pad_token_id}
    assert llm.engine.runner.encoder_passes == 2
    llm.engine.check()
    assert llm.engine.runner.cache.allocator.num_free == llm.engine.runner.cache.allocator.num_blocks


@pytest.mark.parametrize("precision", thorough_but(["int8"], ["auto", "fp32", "int8"]))
def test_exact_numerics_on_the_native_pass(precision: str, tmp_path: Path) -> None:
    """What each prompt gets alone and plainly it gets among others, guessed at, in stretches, after a preemption."""
    if load_library() is None:
        pytest.skip("no native path on this machine")
    loaded = load_model(save_model(reference("bart", **WIDE["bart"]), tmp_path), precision)
    plain = LLM(loaded, "none", numerics="exact")
    params = [SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)]
    params += [SamplingParams(temperature=0.9, top_p=0.95, seed=5, max_tokens=40, ignore_eos=True)]
    prompts = [f"{letter * 40} and so on" for letter in "abcd"]
    for each in params:
        expected = [plain.generate(prompt, each)[0] for prompt in prompts]
        assert all(output.stats.preemptions == 0 for output in expected)
        for drafter in ("none", "suffix", "early-exit"):
            llm = LLM(loaded, drafter, numerics="exact", cache_tokens=6 * 32, max_context=80)
            outputs = llm.generate(prompts, each)
            if each.temperature == 0 or all(output.stats.sampled_rounds == 0 for output in outputs):
                assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
            assert drafter != "none" or sum(output.stats.preemptions for output in outputs) > 0
            llm.engine.check()
            assert llm.engine.runner.cache.allocator.num_free == llm.engine.runner.cache.allocator.num_blocks


def test_exact_numerics_need_the_native_pass(tmp_path: Path) -> None:
    loaded = load_model(save_model(reference("t5"), tmp_path))
    with pytest.raises(ConfigError, match="head_dim 8 is no multiple of 32"):
        LLM(loaded, "none", numerics="exact")


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [{"no_repeat_ngram_size": 2}, {"encoder_no_repeat_ngram_size": 1}])
@pytest.mark.parametrize("drafter", ["none", "recycling", "early-exit"])
def test_repeated_n_grams_are_those_of_transformers(settings: dict[str, int], drafter: str, model: Model) -> None:
    llm, before, after = LLM(model, drafter), [], []
    theirs = reference("t5", **(WIDE["t5"] if model.backend.name.startswith("native") else {}))
    prompts = [*PROMPTS[:2], "".join(map(chr, range(32, 127)))]
    for prompt in prompts:
        (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, **settings))
        free = reference_tokens(theirs, list(prompt.encode()), 24, eos_token_id=None)
        expected = reference_tokens(theirs, list(prompt.encode()), 24, eos_token_id=None, **settings)
        assert output.token_ids == expected
        before.append(free)
        after.append(expected)
    assert before != after
    (found,) = llm.generate(PROMPTS[0], SamplingParams(beam_width=3, n=3, max_tokens=12, **settings))
    beams = theirs.generate(
        torch.tensor([list(PROMPTS[0].encode())]), num_beams=3, num_return_sequences=3, do_sample=False,
        max_new_tokens=12, use_cache=False, **settings,
    )  # fmt: skip
    for beam, row in zip(found.outputs, beams[:, 1:].tolist(), strict=True):
        assert beam.token_ids == row[: len(beam.token_ids)]


def test_n_grams_that_a_models_files_bar_are_barred_where_a_request_leaves_them_out(tmp_path: Path) -> None:
    model = make_model("bart")
    model.generation_config.no_repeat_ngram_size = 1
    llm = LLM(save_model(model, tmp_path), "suffix")
    expected = reference_tokens(model, list(b"Hello"), 20)
    (output,) = llm.generate("Hello", llm.sampling_defaults.params({"max_tokens": 20}))
    assert output.token_ids == expected
    assert len(set(expected)) == len(expected)
    (free,) = llm.generate("Hello", llm.sampling_defaults.params({"max_tokens": 20, "no_repeat_ngram_size": 0}))
    assert len(set(free.token_ids)) < len(free.token_ids)


def test_samples_of_one_seed_are_the_same_alone_and_together(plain: LLM) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=11, max_tokens=12)
    together = [output.token_ids for output in plain.generate(PROMPTS, params)]
    assert together == [plain.generate(prompt, params)[0].token_ids for prompt in PROMPTS]
    assert together[0] == together[4] != plain.generate(PROMPTS[0], GREEDY)[0].token_ids


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(save_model(reference("whisper"), tmp_path_factory.mktemp("whisper")), "suffix")


def test_audio_is_read_as_transformers_reads_it(whisper: LLM) -> None:
    wave = np.sin(np.arange(5000) * 0.3).astype(np.float32) * np.linspace(0, 1, 5000, dtype=np.float32)
    extractor = WhisperFeatureExtractor(feature_size=6)
    read = extractor(wave, sampling_rate=16_000, max_length=6400, return_tensors="np")["input_features"][0]
    params = SamplingParams(temperature=0, max_tokens=10)
    expected = reference_tokens(reference("whisper"), read, 10)
    forms: list[Any] = [{"audio": wave}, {"multi_modal_data": {"audio": (wave, 16_000)}}, {"features": read}]
    for form in forms:
        for prompt in (form, {"encoder_prompt": form, "decoder_prompt": None}):
            assert whisper.generate(prompt, params)[0].token_ids == expected
    for begun in ({"prompt_token_ids": expected[:4]}, {"prompt_token_ids": [START, *expected[:4]]}):
        assert whisper.generate({**forms[0], **begun}, params)[0].token_ids[:6] == expected[4:]


def test_equal_features_share_a_memory(whisper: LLM) -> None:
    before = whisper.engine.runner.encoder_passes
    heard = [{"features": features(seed)} for seed in (1, 1, 2)]
    outputs = whisper.generate(heard, GREEDY)
    assert whisper.engine.runner.encoder_passes == before + 2
    for output, seed in zip(outputs, (1, 1, 2), strict=True):
        assert output.token_ids == reference_tokens(reference("whisper"), features(seed), 20)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("text", "encoder reads audio"),
        ({"audio": "x.wav"}, "audio must be an array of 1 dimension"),
        ({"audio": [[0.0]]}, "audio must be an array of 1 dimension"),
        ({"audio": [float("nan")]}, "finite"),
        ({"audio": ([0.0], "fast")}, "has .fast. samples a second"),
        ({"audio": np.zeros(7000)}, "0.4 seconds and the encoder reads at most 0.4; cut it"),
        ({"features": np.zeros((5, 4))}, "give 6 mel bins of 1 to 40 frames"),
        ({"features": np.zeros((6, 41))}, "give 6 mel bins of 1 to 40 frames"),
    ],
)
def test_bad_audio_gets_a_sentence(prompt: Any, message: str, whisper: LLM) -> None:
    with pytest.raises(RequestError, match=message):
        whisper.generate(prompt, GREEDY)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"encoder_prompt": []}, "encoder's prompt has no tokens"),
        ("", "encoder's prompt has no tokens"),
        ({"encoder_prompt": None}, "no encoder_prompt"),
        ({"decoder_prompt": "x"}, "no encoder_prompt"),
        ({"encoder_prompt": "x", "image": 1}, "a prompt holds image beside encoder_prompt"),
        ({"encoder_prompt": 3.5}, "a prompt is float"),
        ({"encoder_prompt": [999]}, "token 999"),
        ({"encoder_prompt": "x", "decoder_prompt": [999]}, "token 999"),
        ("y" * 2049, "the encoder reads at most 2048; shorten it, or raise max_context"),
    ],
)
def test_bad_prompts_get_a_sentence(prompt: Any, message: str, plain: LLM) -> None:
    with pytest.raises(RequestError, match=message):
        plain.generate(prompt, GREEDY)
    assert plain.generate("Hello world", GREEDY)[0].token_ids


@pytest.mark.thorough
def test_a_larger_context_is_one_for_what_is_read_too(model: Model) -> None:
    llm = LLM(model, "none", max_context=2100)
    assert llm.generate("y" * 2100, SamplingParams(temperature=0, max_tokens=2))[0].token_ids
    assert LLM(model, "none", max_context=64).engine.limits.max_source == 2048


def test_what_does_not_fit_beside_the_output_gets_a_sentence(model: Model) -> None:
    llm = LLM(model, "none", cache_tokens=96, max_context=32)
    with pytest.raises(RequestError, match=r"encoder's prompt has 500 tokens.*raise cache_tokens"):
        llm.generate("z" * 500, GREEDY)


def test_a_model_that_names_no_start_token_needs_a_decoder_prompt(tmp_path: Path) -> None:
    model = make_model("mbart", decoder_start_token_id=None, bos_token_id=None)
    llm = LLM(save_model(model, tmp_path), "none")
    with pytest.raises(RequestError, match="give a decoder_prompt"):
        llm.generate("Hello", GREEDY)
    (output,) = llm.generate({"encoder_prompt": "Hello", "decoder_prompt": [START]}, GREEDY)
    assert output.token_ids == reference_tokens(model, list(b"Hello"), 20, decoder_start_token_id=START)


def test_a_decoder_alone_refuses_an_encoder_prompt(tiny_model_dir: Path) -> None:
    llm = LLM(tiny_model_dir, "none")
    with pytest.raises(RequestError, match="this model has no encoder"):
        llm.generate({"encoder_prompt": "x", "decoder_prompt": "y"}, GREEDY)


def test_a_draft_model_with_an_encoder_needs_a_target_with_one(tiny_model_dir: Path, small_draft: Path) -> None:
    with pytest.raises(ConfigError, match="has an encoder"):
        LLM(tiny_model_dir, "draft-model", draft_model=small_draft)


@pytest.mark.parametrize(
    ("family", "changes"),
    thorough_but(
        [("t5", {}), ("bart", {"forced_eos_token_id": 258})],
        [("t5", {}), ("bart", {}), ("bart", {"forced_eos_token_id": 258}), ("mt5", {})],
    ),
)
def test_beams_and_scores_are_those_of_transformers(
    family: str, changes: dict[str, Any], tmp_path: Path, small_draft: Path
) -> None:
    """Beams fork over one encoder memory, which is computed once. A forced end counts as certain."""
    folder = save_model(reference(family, **changes), tmp_path)
    doors = [LLM(folder, "none"), LLM(folder, "recycling"), LLM(folder, "draft-model", draft_model=small_draft)]
    params = SamplingParams(beam_width=4, n=4, max_tokens=10, length_penalty=0.6)
    for llm in doors:
        before = llm.engine.runner.encoder_passes
        for prompt, output in zip(PROMPTS[:3], llm.generate(PROMPTS[:3], params), strict=True):
            found = reference(family, **changes).generate(
                torch.tensor([list(prompt.encode())]), num_beams=4, num_return_sequences=4, do_sample=False,
                max_new_tokens=10, length_penalty=0.6, output_scores=True, return_dict_in_generate=True,
                use_cache=False,
            )  # fmt: skip
            rows = found.sequences[:, 1:].tolist()
            for beam, row, score in zip(output.outputs, rows, found.sequences_scores.tolist(), strict=True):
                assert beam.token_ids == row[: len(beam.token_ids)]
                assert beam.score == pytest.approx(score, rel=1e-5)
        assert llm.engine.runner.encoder_passes == before + 3
        llm.engine.check()
        assert llm.engine.runner.cache.allocator.num_free == llm.engine.runner.cache.allocator.num_blocks
