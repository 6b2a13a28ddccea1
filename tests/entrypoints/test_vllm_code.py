"""Code that was written for vLLM: it works as it stands, or is refused by the name of what cannot be had."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

import headstart as vllm
from headstart import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    ConfigError,
    GuidedDecodingParams,
    RequestError,
    SamplingParams,
    TokensPrompt,
)

NEUTRAL: dict[str, Any] = {
    "tokenizer": None, "tokenizer_mode": "auto", "tensor_parallel_size": 1, "pipeline_parallel_size": 1,
    "gpu_memory_utilization": 0.9, "seed": 0, "swap_space": 4, "disable_log_stats": False,
    "enable_chunked_prefill": True, "scheduling_policy": "fcfs",
    "quantization": None, "load_format": "auto", "kv_cache_dtype": "auto", "enable_lora": True, "hf_overrides": None,
    "max_num_batched_tokens": 256, "enforce_eager": False, "distributed_executor_backend": "mp", "task": "generate",
    "block_size": 16, "cpu_offload_gb": 0, "compilation_config": {}, "limit_mm_per_prompt": None,
}  # fmt: skip
ASKING: dict[str, Any] = {
    "tensor_parallel_size": 2, "load_format": "dummy",
    "cpu_offload_gb": 4,
    "hf_overrides": {"rope_scaling": {}}, "task": "embed", "tokenizer": "other/model", "quantization": "awq",
    "skip_tokenizer_init": True, "enable_prompt_embeds": True, "logits_processors": [print],
}  # fmt: skip


@pytest.fixture(scope="module")
def llm(tiny_model_dir: Path) -> LLM:
    """Built as a vLLM user builds it."""
    lookup = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    return vllm.LLM(
        model=str(tiny_model_dir), dtype="float32", max_model_len=128, max_num_seqs=4, speculative_config=lookup,
        **NEUTRAL,
    )  # fmt: skip


def test_thirty_lines_of_a_vllm_user(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("one two one two one two")
    assert tokenizer.eos_token_id is None or isinstance(tokenizer.eos_token_id, int)
    params = SamplingParams(
        n=1, best_of=1, temperature=0.0, max_tokens=12, logprobs=2, prompt_logprobs=1, ignore_eos=True, detokenize=True,
        spaces_between_special_tokens=True, guided_decoding=None, logits_processors=None,
    )  # fmt: skip
    prompts = [TokensPrompt(prompt_token_ids=ids), {"prompt": "one two one two one two"}]
    outputs = llm.generate(prompts, params.clone(), use_tqdm=False, lora_request=None)
    for output in outputs:
        assert (output.finished, output.request_id != "", output.lora_request) == (True, True, None)
        assert output.num_cached_tokens == 0
        (completion,) = output.outputs
        assert completion.finished()
        assert completion.finish_reason == "length"
        for token_id, place in zip(completion.token_ids, completion.logprobs, strict=True):
            assert place[token_id].rank == 1
            assert place[token_id].decoded_token == llm.model.tokenizer.token_text(token_id)
            assert [entry.rank for entry in place.values()] == [1, 2]
        assert math.isclose(
            completion.cumulative_logprob,
            sum(place[token].logprob for token, place in zip(completion.token_ids, completion.logprobs, strict=True)),
        )
        assert output.prompt_logprobs[0] is None
        assert set(ids[1:2]) <= set(output.prompt_logprobs[1])
        assert output.metrics.queued_ts <= output.metrics.scheduled_ts <= output.metrics.first_token_ts
        assert output.metrics.first_token_ts <= output.metrics.last_token_ts
        assert output.metrics.num_generation_tokens == 12
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids

    found = {metric.name: metric for metric in llm.get_metrics()}
    stats = [output.stats for output in outputs]
    assert found["vllm:generation_tokens"].value == 24
    assert found["vllm:spec_decode_num_draft_tokens"].value == sum(each.drafted for each in stats)
    accepted = found["vllm:spec_decode_num_accepted_tokens"].value
    assert sum(found["vllm:spec_decode_num_accepted_tokens_per_pos"].values) == accepted


def test_chats_take_vllms_arguments(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    greedy = SamplingParams(temperature=0, max_tokens=4)
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.encode(text, add_special_tokens=False) == ids
    (said,) = llm.chat(
        messages, greedy, use_tqdm=False, lora_request=None, chat_template=None, add_generation_prompt=True,
        continue_final_message=False, chat_template_content_format="auto",
    )  # fmt: skip
    assert said.prompt_token_ids == ids
    assert len(tokenizer.apply_chat_template(messages)) < len(ids)
    begun = [*messages, {"role": "assistant", "content": "well"}]
    (said,) = llm.chat(begun, greedy, add_generation_prompt=False, continue_final_message=True)
    assert said.prompt.endswith("well")
    assert (tokenizer.eos_token_id, tokenizer.eos_token) == (
        tokenizer.convert_tokens_to_ids(tokenizer.eos_token),
        tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id),
    )
    with pytest.raises(RequestError, match="return_tensors"):
        tokenizer.apply_chat_template(messages, return_tensors="pt")


def test_structures_by_their_former_name(llm: LLM) -> None:
    guided = GuidedDecodingParams(choice=["yes", "no"], backend="xgrammar")
    assert SamplingParams(guided_decoding=guided).structured_outputs == guided
    with pytest.raises(RequestError, match="grammar"):
        GuidedDecodingParams(choice=["yes"], grammar="root ::= 'x'")


def test_an_asynchronous_engine_of_arguments(tiny_model_dir: Path) -> None:
    async def talk() -> list[Any]:
        args = AsyncEngineArgs(
            model=str(tiny_model_dir), dtype="float32", max_model_len=64, max_num_seqs=2, tensor_parallel_size=1,
            speculative_config={"method": "ngram", "num_speculative_tokens": 3},
        )  # fmt: skip
        async with AsyncLLMEngine.from_engine_args(args) as engine:
            assert engine.llm.drafter_name == "ngram"
            params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
            return [output async for output in engine.generate("one two", params, request_id="a")]

    outputs = asyncio.run(talk())
    assert outputs[-1].metrics.num_generation_tokens == 5
    assert len(outputs[-1].outputs[0].token_ids) == 5


@pytest.mark.parametrize("name", ASKING)
def test_what_cannot_be_had_is_refused_by_name(name: str, tiny_model_dir: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} is .*\.$"):
        vllm.LLM(tiny_model_dir, max_model_len=64, max_num_seqs=1, **{name: ASKING[name]})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"best_of": 3}, "best_of"),
        ({"logits_processors": [print]}, "logits_processors"),
        ({"detokenize": False}, "detokenize"),
        ({"output_kind": 1}, "output_kind"),
    ],
)
def test_sampling_that_cannot_be_had_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=rf"^{named} is .*\.$") as refused:
        SamplingParams(**given)
    assert refused.value.field == named


def test_calls_refuse_by_name_and_know_no_other_words(llm: LLM) -> None:
    for call in (llm.generate, lambda *args, **given: llm.chat([{"role": "user", "content": "a"}], **given)):
        with pytest.raises(RequestError, match="lora_request"):
            call("abc", lora_request=object())
        with pytest.raises(TypeError, match="no_such_thing"):
            call("abc", no_such_thing=None)
    with pytest.raises(TypeError, match="no_such_thing"):
        SamplingParams(no_such_thing=1)


def test_a_seed_of_the_engine_repeats_its_draws(tiny_model_dir: Path) -> None:
    free = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True)

    def drawn(seed: int | None) -> list[list[int]]:
        with vllm.LLM(str(tiny_model_dir), drafter="none", max_model_len=64, max_num_seqs=2, seed=seed) as engine:
            return [output.token_ids for _ in range(2) for output in engine.generate("abc", free)]

    first = drawn(3)
    assert first == drawn(3)
    assert first[0] != first[1]
    assert first != drawn(4)


def test_sampling_parameters_are_copied_and_made_of_what_is_given() -> None:
    params = SamplingParams.from_optional(temperature=None, top_p=0.5, seed=None)
    assert params == SamplingParams(top_p=0.5) == params.clone()
