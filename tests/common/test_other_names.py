"""Names from elsewhere mean what they say there, and nothing is said twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headstart import LLM, ConfigError, SamplingParams
from headstart.entrypoints.engine_options import EngineOptions


def changed(**given: object) -> dict[str, object]:
    """The options that are not left at their defaults."""
    usual, asked = EngineOptions().given(), EngineOptions(**given).given()  # type: ignore[arg-type]
    return {name: value for name, value in asked.items() if value != usual[name]}


def test_names_are_translated() -> None:
    assert changed(max_model_len=9, max_num_seqs=2, enable_prefix_caching=True, max_num_batched_tokens=7) == {
        "max_context": 9, "max_batch_size": 2, "prefix_caching": True, "max_rows": 7,
    }  # fmt: skip
    assert changed(dtype=torch.bfloat16) == changed(torch_dtype="bfloat16") == changed(precision="bf16")
    assert changed(enforce_eager=True) == {"cuda_graphs": False}
    assert changed(dtype="int4") == {"precision": "int4"}
    assert changed(model_impl="transformers") == {"backend": "transformers"}
    assert changed(model_impl="vllm") == {"backend": "headstart"}
    config = {"method": "draft_model", "model": "./small", "num_speculative_tokens": 3, "temperature": 0.5}
    assert changed(speculative_config=config) == {
        "drafter": "draft-model", "draft_model": "./small", "draft_tokens": 3, "drafter_options": {"temperature": 0.5},
    }  # fmt: skip
    assert changed(speculative_config=None) == {}
    assert changed(speculative_config='{"method": "suffix"}') == {"drafter": "suffix"}
    lookup = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    assert changed(speculative_config=lookup) == {
        "drafter": "prompt-lookup", "draft_tokens": 5, "drafter_options": {"max_ngram": 4, "min_ngram": 2},
    }  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {"max_model_len": 9, "max_context": 9},
        {"dtype": "float16"},
        {"context_shift": True},
        {"enforce_eager": True, "cuda_graphs": True},
        {"dtype": "bfloat16", "precision": "bf16"},
        {"speculative_config": {"method": "suffix"}, "drafter": "ngram"},
        {"speculative_config": {}},
        {"speculative_config": {"method": 3}},
        {"speculative_config": "suffix"},
        {"speculative_config": "{method: suffix}"},
        {"speculative_config": 3},
    ],
)
def test_what_is_said_twice_or_means_nothing_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"\.$"):
        changed(**given)


def test_a_library_that_is_asked_in_vllms_words(tiny_model_dir: Path) -> None:
    llm = LLM(
        model=tiny_model_dir,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=2,
        enable_prefix_caching=True,
        speculative_config={"method": "suffix", "num_speculative_tokens": 2},
    )
    assert llm.drafter_name == "suffix"
    assert llm.engine.limits.max_context == 64
    outputs = llm.generate(["Once upon", "a time"], SamplingParams(temperature=0, max_tokens=8, logprobs=1))
    assert len({out.request_id for out in outputs}) == 2
    assert all(out.finished and out.request_id for out in outputs)
    completion = outputs[0].outputs[0]
    assert completion.logprobs is not None
    assert completion.cumulative_logprob == sum(token.logprob for token in completion.logprobs)
    with pytest.raises(TypeError, match="no_such_thing"):
        LLM(tiny_model_dir, no_such_thing=1)
