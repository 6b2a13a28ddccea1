"""Requests of every kind at once in a cache that is too small for them, on tiny models of three kinds: each says what
it says alone, and nothing of it is left behind."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="needs the extra 'structured'")

from thinning import thorough_but
from tiny_checkpoint import write_tiny_model
from tiny_encoder_decoders import make_model as make_encoder_decoder
from tiny_encoder_decoders import save_model as save_encoder_decoder
from tiny_models import make_model

from headstart import LLM, SamplingParams, SpeculationParams, StructuredOutputsParams, VerifyRule
from headstart.engine.outputs import FinishReason
from headstart.entrypoints.request import Sample
from headstart.loading.model import Model, load_model

KINDS = ["dense", "hybrid", "encoder-decoder"]
WORDS = "abc abc abc hello there abc"


def model_of(kind: str, directory: Path) -> Model:
    if kind == "encoder-decoder":
        return load_model(save_encoder_decoder(make_encoder_decoder("bart"), directory), "fp32")
    write_tiny_model(directory)
    if kind == "hybrid":
        states = make_model("qwen3_next", vocab_size=259, eos_token_id=258)
        (directory / "model.safetensors").unlink()
        states.save_pretrained(directory)
    return load_model(directory, "fp32")


def params_of(rng: np.random.Generator) -> SamplingParams:
    """Of one of the kinds of requests, as the number drawn has it."""
    some = {"max_tokens": int(rng.integers(8, 40)), "seed": int(rng.integers(99)), "ignore_eos": True}
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.0, "n": 3},
        {"temperature": 0, "beam_width": 3, "n": 2},
        {"temperature": 0.7, "logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 0, "repetition_penalty": 1.3, "min_tokens": 4},
        {"temperature": 1.0, "structured_outputs": StructuredOutputsParams(regex="[a-f]{3,30}"), "ignore_eos": False},
        {"temperature": 0, "beam_width": 2, "logprobs": 1, "length_penalty": 0.5},
    ]
    return SamplingParams(**{**some, **kinds[rng.integers(len(kinds))]})


def prompt_of(rng: np.random.Generator) -> str:
    """Many begin alike."""
    return WORDS[: rng.integers(1, len(WORDS))] * int(rng.integers(1, 3)) + str(rng.integers(3))


def same(sample: Sample, plain: Sample) -> bool:
    """Whether two requests are told the same, numbers up to what PyTorch's products owe to their size."""
    one, two = sample.sequence, plain.sequence
    numbers = [
        [*(() if each.score is None else (each.score,)), *(said.logprob for said in each.logprobs)]
        + [said.logprob for said in each.prompt_logprobs]
        for each in (one, two)
    ]
    return (
        (one.output, one.finish_reason, one.error) == (two.output, two.finish_reason, two.error)
        and len(numbers[0]) == len(numbers[1])
        and np.allclose(*numbers, atol=1e-4)
    )


def finished(llm: LLM, samples: list[Sample]) -> list[Sample]:
    for sample in samples:
        llm.engine.add(sample.sequence)
    while not llm.engine.idle:
        llm.engine.step()
    return samples


@pytest.mark.parametrize("kind", thorough_but(["dense"], KINDS))
def test_nobody_hears_of_the_others(kind: str, tmp_path: Path) -> None:
    model = model_of(kind, tmp_path)
    alone = LLM(model, "none", max_context=120, max_batch_size=8, cache_tokens=2000)
    wishes = [SpeculationParams(enabled=False), SpeculationParams(verify=VerifyRule.COUPLED)]
    seen: Counter[str] = Counter()
    rng = np.random.default_rng(4)
    llm = LLM(model, "suffix", max_context=120, max_batch_size=8, cache_tokens=384, prefix_caching=True, max_rows=48)
    engine, asked = llm.engine, list[tuple[str, SamplingParams, list[Sample]]]()
    for turn in count():
        if turn < 40 and rng.integers(2) == 0:
            prompt, params = prompt_of(rng), params_of(rng)
            samples = llm.samples(llm.encode(prompt), params, wishes[int(rng.integers(4) > 0)])
            for sample in samples:
                engine.add(sample.sequence)
            asked.append((prompt, params, samples))
        elif asked and rng.integers(25) == 0:
            engine.abort(asked[rng.integers(len(asked))][2][0].sequence)
        engine.step(0)
        engine.check()
        if turn >= 40 and engine.idle:
            break
    cache = engine.runner.cache
    assert cache.allocator.num_free == cache.allocator.num_blocks
    assert cache.free == cache.size
    assert not engine.runner.failed_passes
    for prompt, params, samples in asked:
        expected = finished(alone, alone.samples(alone.encode(prompt), params, wishes[0]))
        for sample, plain in zip(samples, expected, strict=True):
            stats = sample.sequence.stats
            aborted = sample.sequence.finish_reason is FinishReason.ABORT
            if aborted:
                assert plain.sequence.output[: sample.sequence.num_output] == sample.sequence.output
            else:
                assert same(sample, plain), (prompt, params, sample.sequence.error)
            seen.update(
                aborted=aborted,
                preempted=stats.preemptions,
                searches_preempted=stats.preemptions if params.beam_width else 0,
                cached=stats.cached_tokens,
                accepted=stats.accepted,
            )
    # What a decoder has read of another source is of no use.
    wanted = ["aborted", "preempted", "searches_preempted", "accepted", *(["cached"] if kind != KINDS[2] else [])]
    assert all(seen[event] for event in wanted), seen
