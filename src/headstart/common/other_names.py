"""What vLLM and transformers write otherwise: values of options, ``speculative_config``, arguments that mean nothing
here. Names alone stand beside the options themselves (``engine_options``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from headstart.common.option_values import said
from headstart.common.options import Foreign, OptionError
from headstart.errors import ConfigError, RequestError

SPECULATION = {"method": "drafter", "model": "draft_model", "num_speculative_tokens": "draft_tokens"}
"""Keys of vLLM's ``speculative_config`` -> options; its other keys are options of the drafter."""
_PRECISIONS = {"bfloat16": "bf16", "float32": "fp32", "float": "fp32"}
_LOOKUP = {"prompt_lookup_max": "max_ngram", "prompt_lookup_min": "min_ngram"}
"""vLLM's ``ngram`` with these is what is called prompt lookup here."""

C = TypeVar("C", bound=type)


def _any(value: object) -> bool:
    return True


def _off(value: object) -> bool:
    return not value


def _one(value: object) -> bool:
    return value == 1


def _among(*values: object) -> Callable[[object], bool]:
    return lambda value: value in values


_ONE_DEVICE = "it computes on one device; leave it out, or serve replicas (headstart serve --ray)"
_FORMATS = "the format is read off the model; leave it out"
_CACHE = "the cache has the model's own format in one memory; leave it out, and say its size with cache_tokens"
NO_SHIFT = (
    "keys and values of what stays were made of what a shift drops, so the text would no longer be the model's; raise "
    "max_context (--max-context), or shorten the conversation or sum it up"
)
"""Why contexts are not shifted, and what to do: the end of a sentence."""
_BOTH = "keys and values are kept alike; say cache_type"
_TEXTS = "prompts are texts or token ids; leave it out"
_WORKINGS = (
    *("disable_log_stats", "disable_log_requests", "enable_log_requests", "use_tqdm_on_load", "max_logprobs"),
    # memory
    *("gpu_memory_utilization", "swap_space", "block_size", "preemption_mode", "use_v2_block_manager"),
    # the schedule
    *("enable_chunked_prefill", "max_num_partial_prefills", "max_long_partial_prefills"),
    *("long_prefill_token_threshold", "async_scheduling", "num_scheduler_steps", "multi_step_stream_outputs"),
    # what computes, and where
    *("attention_backend", "disable_cascade_attn", "disable_custom_all_reduce", "max_seq_len_to_capture"),
    *("compilation_config", "optimization_level"),
    *("distributed_executor_backend", "max_parallel_loading_workers", "ray_workers_use_nsight"),
    # answers of a form
    *("guided_decoding_backend", "structured_outputs_config", "enable_auto_tool_choice", "enable_reasoning"),
)
"""How an engine works, not what it says."""
FOREIGN_OPTIONS: Mapping[str, Foreign] = {
    **dict.fromkeys(
        [f"{kind}_parallel_size" for kind in ("tensor", "pipeline", "data", "decode_context", "prefill_context")],
        Foreign(_one, _ONE_DEVICE),
    ),
    "enable_expert_parallel": Foreign(_off, _ONE_DEVICE),
    **dict.fromkeys(_WORKINGS, Foreign(_any, "leave it out")),
    "context_shift": Foreign(_off, NO_SHIFT),
    "scheduling_policy": Foreign(_among("fcfs"), "requests come in their order; leave it out"),
    "load_format": Foreign(_among("auto", "hf", "safetensors", "gguf", "pt"), _FORMATS),
    "config_format": Foreign(_among("auto", "hf"), _FORMATS),
    "tokenizer_mode": Foreign(_among("auto", "hf", "slow"), "the model's own tokenizer is read; leave it out"),
    **dict.fromkeys(
        ("tokenizer_revision", "code_revision", "hf_config_path", "download_dir", "hf_token"),
        Foreign(_off, "name the model with its revision; folders and tokens of the hub are those of huggingface_hub"),
    ),
    "tokenizer": Foreign(_off, "the model's own is read; leave it out", same_as="model"),
    "skip_tokenizer_init": Foreign(_off, "texts need a tokenizer; leave it out"),
    **dict.fromkeys(("cache_type_k", "cache_type_v"), Foreign(_among("auto", "f16", "bf16"), _BOTH)),
    **dict.fromkeys(("cpu_offload_gb", "num_gpu_blocks_override", "kv_cache_memory_bytes"), Foreign(_off, _CACHE)),
    **dict.fromkeys(("enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras"), Foreign(_any, "leave it out")),
    "task": Foreign(_among("auto", "generate", "transcription"), "models write texts here"),
    "runner": Foreign(_among("auto", "generate"), "models write texts here"),
    "convert": Foreign(_among("auto", "none"), "models write texts here"),
    **dict.fromkeys(("hf_overrides", "rope_scaling", "rope_theta"), Foreign(_off, "change the model's config.json")),
    "override_generation_config": Foreign(_off, "name a file with generation_config, or give SamplingParams"),
    "logits_processors": Foreign(_off, "use logit_bias, allowed_token_ids or bad_words of SamplingParams"),
    "enable_prompt_embeds": Foreign(_off, _TEXTS),
    **dict.fromkeys(
        ("limit_mm_per_prompt", "mm_processor_kwargs", "allowed_local_media_path", "allowed_media_domains"),
        Foreign(_off, _TEXTS),
    ),
    "calculate_kv_scales": Foreign(_off, _CACHE),
    "kv_transfer_config": Foreign(_off, "prompts are read where they are answered; leave it out"),
    "enable_sleep_mode": Foreign(_off, "close the LLM, and make another"),
}
"""Arguments of vLLM's ``LLM`` and ``EngineArgs`` that are no options here."""
_IDLE: Mapping[str, Foreign] = {
    "draft_tensor_parallel_size": Foreign(_one, _ONE_DEVICE),
    "quantization": Foreign(_off, "say draft_precision"),
    "revision": Foreign(_off, "name a folder of that revision"),
    "max_model_len": Foreign(_any, "leave it out"),
    "enforce_eager": Foreign(_any, "leave it out"),
    "disable_by_batch_size": Foreign(_any, "leave it out"),
    "disable_padded_drafter_batch": Foreign(_any, "leave it out"),
    "disable_logprobs": Foreign(_any, "leave it out"),
}
"""Keys of ``speculative_config`` that are no options of a drafter here."""
FOREIGN_SAMPLING: Mapping[str, Foreign] = {
    "logits_processors": Foreign(_off, "use logit_bias, allowed_token_ids or bad_words"),
    "detokenize": Foreign(bool, "outputs have a text; take their token_ids"),
    "spaces_between_special_tokens": Foreign(_any, "leave it out"),
    "output_kind": Foreign(lambda value: getattr(value, "value", value) in (0, 2), "outputs of AsyncLLM grow"),
    "extra_args": Foreign(_off, "leave it out"),
    "flat_logprobs": Foreign(_off, "log-probabilities come as one mapping for each token"),
    "skip_clone": Foreign(_any, "leave it out"),
    "skip_reading_prefix_cache": Foreign(_any, "leave it out"),
}
"""Fields of vLLM's ``SamplingParams``."""
FOREIGN_STRUCTURES: Mapping[str, Foreign] = {
    "structural_tag": Foreign(_off, "give a JSON schema, a regex, a choice or a grammar"),
    "whitespace_pattern": Foreign(_off, "give a regex that says where spaces may stand"),
    **dict.fromkeys(("backend", "disable_fallback"), Foreign(_any, "leave it out")),
    **dict.fromkeys(
        ("disable_any_whitespace", "disable_additional_properties"),
        Foreign(_off, "say it in the schema, or in a regex"),
    ),
}
"""Fields of vLLM's ``StructuredOutputsParams`` and ``GuidedDecodingParams``."""
FOREIGN_CALLS: Mapping[str, Foreign] = {
    "use_tqdm": Foreign(_any, "leave it out"),
    "priority": Foreign(lambda value: not any(value) if isinstance(value, list) else not value, "requests are equal"),
    "chat_template": Foreign(_off, "the model's own is used; render with get_tokenizer().apply_chat_template"),
    "chat_template_content_format": Foreign(_among("auto", "string", "openai"), "leave it out"),
    "mm_processor_kwargs": Foreign(_off, _TEXTS),
    "tokenization_kwargs": Foreign(_off, "encode with llm.encode, and give its token ids"),
    "prompt_token_ids": Foreign(_off, 'give prompts as {"prompt_token_ids": [...]}'),
    "concurrency_limit": Foreign(_any, "leave it out"),
}
"""Arguments of ``generate``, ``chat`` and ``beam_search``."""


def pass_over(given: Mapping[str, Any], foreign: Mapping[str, Foreign], of: str) -> None:
    """Take arguments of another engine that ask for nothing.

    Raises:
        TypeError: ``of`` has no such argument anywhere.
        RequestError: one asks for what Headstart does not do.
    """
    for name, value in given.items():
        if name not in foreign:
            raise TypeError(f"{of} got an unexpected keyword argument {name!r}")
        if value is not None and not foreign[name].neutral(value):
            raise RequestError(f"{name} is {value!r:.60}, which Headstart does not do; {foreign[name].instead}.", name)


def passes_over(foreign: Mapping[str, Foreign]) -> Callable[[C], C]:
    """Let a class of parameters take vLLM's further fields where they ask for nothing."""

    def wrap(cls: C) -> C:
        plain: Any = cast(Any, cls).__init__

        @wraps(plain)
        def init(self: object, *args: Any, **given: Any) -> None:
            if not given.keys() <= own:
                given = _own_sampling(given)
                pass_over({name: value for name, value in given.items() if name not in own}, foreign, cls.__name__)
                given = {name: value for name, value in given.items() if name in own}
            plain(self, *args, **given)

        own = set(cast(Any, cls).__dataclass_fields__)
        cast(Any, cls).__init__ = init
        return cls

    return wrap


def _own_sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters by the names that they have here.

    Raises:
        RequestError: one asks for what Headstart does not do.
    """
    own = dict(given)
    best_of = own.pop("best_of", None)
    if best_of not in (None, 1, own.get("n", 1)):
        raise RequestError(
            f"best_of is {best_of!r:.60}, more than n; draw n={best_of!r:.60}, and keep the best.", "best_of"
        )
    if (guided := own.pop("guided_decoding", None)) is not None:
        if own.get("structured_outputs") is not None:
            raise RequestError(
                "guided_decoding and structured_outputs say the same; give one of them.", "guided_decoding"
            )
        own["structured_outputs"] = guided
    return own


def model(name: str, value: object) -> object:
    """What a model can be named by, or a loaded one.

    Raises:
        OptionError: it is neither.
    """
    if (
        isinstance(value, str | Path)
        or hasattr(value, "get_default_sampling_params")
        or hasattr(value, "chat_template")
    ):
        return value
    raise OptionError(name, f"is {value!r:.60}; give an alias, a directory, a hub id, a .gguf file or a loaded model.")


def precision(name: str, value: object) -> object:
    """A number format by PyTorch's name, or by ours.

    Raises:
        OptionError: Headstart does not compute in it.
    """
    if value is None:
        return None
    said = str(value).removeprefix("torch.")
    if said in ("float16", "half"):
        raise OptionError(name, f"is {said!r}, which Headstart does not compute in; give bfloat16 or float32.")
    return _PRECISIONS.get(said, said)


def cache_type(name: str, value: object) -> object:
    """A type of cache by vLLM's or llama.cpp's name, or by ours; theirs for 16 bits stand for what is computed with."""
    if value in ("f16", "bf16", "float16", "bfloat16"):
        return "auto"
    return "fp8" if str(value) in ("fp8_e4m3", "float8_e4m3fn", "torch.float8_e4m3fn") else value


def quantised(value: str, method: str | None) -> bool:
    """Whether a method of vLLM's ``quantization`` is the one that a model comes in."""
    plain = value.lower().replace("_", "-").removesuffix("-marlin")
    return method is not None and method.lower().replace("_", "-") == plain


def backend(name: str, value: object) -> object:
    """Whose code computes a model, by vLLM's name or ours."""
    return "headstart" if value == "vllm" else value


def assignments(name: str, value: object, like: str = "max_order=3") -> object:
    """``key=value``, one or a list of them, or JSON, as a mapping; anything else as it is.

    Raises:
        OptionError: one of them has another form.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return said(value)
    if not isinstance(value, str | list | tuple):
        return value
    found: dict[str, object] = {}
    for item in [value] if isinstance(value, str) else value:
        key, equals, text = str(item).partition("=")
        if not key or not equals:
            raise OptionError(name, f"is {item!r:.60}, which is not of the form KEY=VALUE, like {like}.")
        if key in found:
            raise OptionError(name, f"says {key!r:.60} twice; give it once.")
        found[key] = said(text)
    return found


def adapters(name: str, value: object) -> object:
    """Adapters by name, of what ``assignments`` takes, or vLLM's JSON for one. A single path without a name is a
    folder, as it is, or a file, by the name "".

    Raises:
        OptionError: one of several has no name.
    """
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, str | Path) and "{" not in str(value) and "/" in f"{value}/=".split("=")[0]:
        return {"": str(value)} if str(value).endswith(".gguf") else value
    found = assignments(name, value, like="sql=adapters/sql")
    if not isinstance(found, Mapping):
        return found
    one = {"name", "path"} <= found.keys()
    return {str(key): str(path) for key, path in ([(found["name"], found["path"])] if one else found.items())}


def speculative_config(name: str, value: object) -> object:
    """JSON as what it says.

    Raises:
        OptionError: it is none.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise OptionError(name, f"is no JSON ({error}).") from None


def speculation(config: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's ``speculative_config`` as options.

    Raises:
        ConfigError: it names no drafter.
    """
    own = {SPECULATION[name]: value for name, value in config.items() if name in SPECULATION}
    options = {name: value for name, value in config.items() if name not in SPECULATION and value is not None}
    for name in _IDLE.keys() & options.keys():
        if not _IDLE[name].neutral(options[name]):
            said_so = f"{name} is {options[name]!r:.60}, which Headstart does not do"
            raise ConfigError(f"speculative_config: {said_so}; {_IDLE[name].instead}.")
        del options[name]
    method = own.get("drafter")
    if method is None and "draft_model" not in own:
        raise ConfigError(f"speculative_config has {', '.join(map(str, config)) or 'nothing'}; it needs a method.")
    if method is not None:
        if not isinstance(method, str):
            raise ConfigError(f"speculative_config has method {method!r:.60}; give a drafter's name.")
        own["drafter"] = method.replace("_", "-")
        if method == "ngram" and _LOOKUP.keys() & options.keys():
            own["drafter"] = "prompt-lookup"
            options = {_LOOKUP.get(name, name): value for name, value in options.items()}
    if options:
        own["drafter_options"] = options
    return own
