"""Caches of 8 bits, as users ask for them: what is said with guesses is what is said without."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import headstart, refusal, rows
from native_here import needs_native
from thinning import thorough_but
from tiny_encoder_decoders import WIDE
from tiny_encoder_decoders import make_model as make_encoder_decoder
from tiny_encoder_decoders import save_model as save_encoder_decoder

from headstart import LLM, ConfigError, SamplingParams, SpeculationParams, VerifyRule
from headstart.loading.model import Model, load_model

WORDS = "abc abc abc hello there abc"
ALONE: dict[str, Any] = {"max_context": 120, "cache_tokens": 2000, "cache_type": "q8_0"}
CROWDED: dict[str, Any] = ALONE | {"cache_tokens": 128, "max_batch_size": 8, "max_rows": 48, "prefix_caching": True}
PLAIN, COUPLED = SpeculationParams(enabled=False), SpeculationParams(verify=VerifyRule.COUPLED)


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Model:
    return load_model(tiny_model_dir, "bf16")


def storm(llm: LLM, alone: LLM, requests: int = 16) -> tuple[int, int]:
    """Requests that begin alike come and go in a cache that is too small for all: how many answers differ from those
    of plain decoding alone, and how many preemptions it took."""
    rng, asked, engine = np.random.default_rng(4), [], llm.engine
    for turn in count():
        for _ in range(8 if turn < requests and turn % 8 == 0 else 0):
            prompt = WORDS[: rng.integers(1, len(WORDS))] * int(rng.integers(1, 3)) + str(rng.integers(3))
            how: dict[str, Any] = {"temperature": 0} if rng.integers(2) else {"temperature": 0.8, "n": 2}
            params = SamplingParams(max_tokens=int(rng.integers(8, 64)), seed=len(asked), ignore_eos=True, **how)
            samples = llm.samples(llm.encode(prompt), params, COUPLED if rng.integers(4) else PLAIN)
            for sample in samples:
                engine.add(sample.sequence)
            asked.append((prompt, params, samples))
        engine.step(0)
        engine.check()
        if turn > requests and engine.idle:
            break
    preempted = different = 0
    for prompt, params, samples in asked:
        outputs = alone.generate(prompt, params, speculation=PLAIN)[0].outputs
        for sample, output in zip(samples, outputs, strict=True):
            assert sample.sequence.error is None
            different += sample.sequence.output != output.token_ids
            preempted += sample.sequence.stats.preemptions
    return different, preempted


@needs_native
@pytest.mark.parametrize("drafter", ["suffix", "auto", "recycling", "self", "draft-model:layers=1", "lookahead"])
def test_nobody_hears_of_the_others(drafter: str, model: Model) -> None:
    llm = LLM(model, drafter, draft_cache_type="q8_0", **CROWDED)
    different, preempted = storm(llm, LLM(model, "none", **ALONE))
    assert not different
    assert preempted


@needs_native
@pytest.mark.parametrize("precision", ["fp32", "int8", "int8-fast", "int4", "int4-fast", "blocks"])
def test_nor_in_any_precision(precision: str, tiny_model_dir: Path) -> None:
    model = load_model(tiny_model_dir, precision)
    assert not storm(LLM(model, "suffix", **CROWDED), LLM(model, "none", **ALONE), 6)[0]


@pytest.mark.parametrize("cache_type", thorough_but(["q8_0"], ["q8_0", "fp8"]))
def test_by_pytorch(cache_type: str, torch_model_dir: Path) -> None:
    """Whose products may decide a level between two, and so a token now and then."""
    model = load_model(torch_model_dir, "fp32")
    assert model.backend.name == "torch-fp32"
    kind = {"cache_type": cache_type}
    assert storm(LLM(model, "suffix", **CROWDED | kind), LLM(model, "none", **ALONE | kind), 6)[0] <= 1


@needs_native
@pytest.mark.parametrize("drafter", ["none", "suffix", "early-exit"])
def test_encoder_memories_are_kept_alike(drafter: str, tmp_path: Path) -> None:
    """After preemptions, too."""
    directory = save_encoder_decoder(make_encoder_decoder("bart", **WIDE["bart"]), tmp_path)
    model, params = load_model(directory, "bf16"), SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = [f"{letter * 40} and so on" for letter in "abcd"]
    alone = LLM(model, "none", cache_type="q8_0")
    llm = LLM(model, drafter, cache_type="q8_0", cache_tokens=6 * 32, max_context=80)
    assert llm.generate(prompts, params)[0].token_ids == alone.generate(prompts[0], params)[0].token_ids
    said, expected = (
        [out.token_ids for out in each]
        for each in (llm.generate(prompts, params), [alone.generate(prompt, params)[0] for prompt in prompts])
    )
    assert said == expected
    assert model.backend.name.startswith("native")


@needs_native
def test_it_is_said_to_be_lossy_and_takes_half_the_memory(model: Model) -> None:
    few, usual = (LLM(model, "none", cache_tokens=1024, max_context=64, cache_type=each) for each in ("q8_0", "auto"))
    assert any("cache_type q8_0" in sentence and "LOSSY" in sentence for sentence in few.notices)
    assert not any("LOSSY" in sentence for sentence in usual.notices)
    assert usual.memory.cache / few.memory.cache == pytest.approx(64 / 34)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"cache_type": "fp8"}, "cache_type is 'fp8', which native"),
        ({"cache_type": "q8_0", "numerics": "exact"}, "cache_type q8_0 is LOSSY, but numerics is 'exact'"),
        ({"cache_type_k": "q8_0"}, "say cache_type"),
        ({"draft_cache_type": "fp8", "drafter": "draft-model:layers=1"}, "cache_type is 'fp8', which native"),
    ],
)
@needs_native
def test_what_cannot_be_had_is_told(given: dict[str, Any], complaint: str, model: Model) -> None:
    with pytest.raises(ConfigError, match=complaint):
        LLM(model, **given)


@needs_native
def test_other_programs_names_and_values(model: Model, tiny_model_dir: Path) -> None:
    assert LLM(model, "none", kv_cache_dtype="q8_0").notices
    assert LLM(model, "none", cache_type="f16", cache_type_k="f16").notices == LLM(model, "none").notices
    run = headstart("generate", "abc", "--model", str(tiny_model_dir), "--cache-type", "q8_0", "--max-tokens", "2")
    assert run.exit_code == 0, run.output
    assert "LOSSY" in run.stderr
    assert "cache_type is 'q4_0'" in refusal(headstart("serve", "--cache-type", "q4_0"))


@pytest.mark.parametrize("types", [("auto", "q8_0"), ("q8_0", "fp8")])
def test_prefixes_in_files_are_those_of_one_type(
    types: tuple[str, str], tiny_model_dir: Path, torch_model_dir: Path, tmp_path: Path
) -> None:
    directory, prompt = torch_model_dir if "fp8" in types else tiny_model_dir, [*range(3, 153)]
    found, said = [], []
    for cache_type in (*types, *types):
        with LLM(directory, "suffix", cache_type=cache_type, prefix_cache_dir=tmp_path, precision="fp32") as llm:
            (output,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
        found.append(output.stats.cached_tokens)
        said.append(output.token_ids)
    assert found == [0, 0, 128, 128]
    assert said[:2] == said[2:]


@needs_native
def test_what_it_costs_is_measured(tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("abc hello there " * 20)
    model = ["--model", tiny_model_dir, "--text", tmp_path / "text", "--per-group", 1, "--max-tokens", 4]
    run = headstart("quality", *model, "--precisions", "bf16", "--cache-type", "q8_0", "--json")
    assert run.exit_code == 0, run.output
    (said,) = rows(run)[0]["precisions"]
    assert "q8_0" in said["precision"]
    assert 0 < said["mean_kl"] < 0.05
