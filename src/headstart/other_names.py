"""What vLLM and transformers write otherwise: values of options, ``speculative_config``, arguments that mean nothing
here. Names alone stand beside the options themselves (``engine_options``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.errors import ConfigError
from headstart.options import OptionError, said

SPECULATION = {"method": "drafter", "model": "draft_model", "num_speculative_tokens": "draft_tokens"}
"""Keys of vLLM's ``speculative_config`` -> options; its other keys are options of the drafter."""
_PRECISIONS = {"bfloat16": "bf16", "float32": "fp32", "float": "fp32"}
_LOOKUP = {"prompt_lookup_max": "max_ngram", "prompt_lookup_min": "min_ngram"}
"""vLLM's ``ngram`` with these is what is called prompt lookup here."""


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


def backend(name: str, value: object) -> object:
    """Whose code computes a model, by vLLM's name or ours."""
    return "headstart" if value == "vllm" else value


def assignments(name: str, value: object) -> object:
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
            raise OptionError(name, f"is {item!r:.60}, which is not of the form KEY=VALUE, like max_order=3.")
        found[key] = said(text)
    return found


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
