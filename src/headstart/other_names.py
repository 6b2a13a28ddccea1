"""Names that vLLM and transformers have for arguments of ``LLM``, where they mean the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

from headstart.errors import ConfigError

ARGUMENTS = {
    "max_model_len": "max_context",
    "max_num_seqs": "max_batch_size",
    "max_num_batched_tokens": "max_rows",
    "enable_prefix_caching": "prefix_caching",
    "dtype": "precision",
    "torch_dtype": "precision",
    "enforce_eager": "cuda_graphs",
}
"""Elsewhere -> here."""
SPECULATION = {"method": "drafter", "model": "draft_model", "num_speculative_tokens": "draft_tokens"}
"""Keys of vLLM's ``speculative_config`` -> here; its other keys are options of the drafter."""
_PRECISIONS = {"bfloat16": "bf16", "float32": "fp32", "float": "fp32"}

Initialiser = TypeVar("Initialiser", bound=Callable[..., None])


def own_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names that they have here.

    Raises:
        ConfigError: one is given under two names, or means nothing here.
    """
    own = {name: value for name, value in given.items() if name not in ARGUMENTS and name != "speculative_config"}
    for name, value in given.items():
        if name in ARGUMENTS:
            _set(own, ARGUMENTS[name], _own_value(name, value), name)
    if given.get("speculative_config") is not None:
        for name, value in _speculation(given["speculative_config"]).items():
            _set(own, name, value, "speculative_config")
    return own


def takes_other_names(init: Initialiser) -> Initialiser:
    """Let an initialiser understand ``ARGUMENTS`` and ``speculative_config``."""

    @wraps(init)
    def wrapped(self: object, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **own_arguments(kwargs))

    return cast(Initialiser, wrapped)


def parse_speculation(text: str) -> dict[str, Any]:
    """A ``speculative_config`` as JSON.

    Raises:
        ConfigError: it is none.
    """
    try:
        return _speculation(json.loads(text))
    except ValueError as error:
        raise ConfigError(f"speculative_config is no JSON ({error}).") from None


def _set(own: dict[str, Any], name: str, value: Any, elsewhere: str) -> None:
    if name in own:
        raise ConfigError(f"{elsewhere} and {name} say the same; give one of them.")
    own[name] = value


def _own_value(name: str, value: Any) -> Any:
    if name == "enforce_eager":
        return not value
    return _precision(name, value) if ARGUMENTS[name] == "precision" else value


def _precision(name: str, value: object) -> object:
    """A number format by PyTorch's name, or by ours."""
    said = str(value).removeprefix("torch.")
    if said in ("float16", "half"):
        raise ConfigError(f"{name} is {said!r}, which Headstart does not compute in; give bfloat16 or float32.")
    return _PRECISIONS.get(said, said)


def _speculation(config: object) -> dict[str, Any]:
    """vLLM's ``speculative_config`` as arguments of ours.

    Raises:
        ConfigError: it is no mapping, or names no drafter.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"speculative_config is {config!r:.60}; give a mapping with method and what it needs.")
    own = {SPECULATION[name]: value for name, value in config.items() if name in SPECULATION}
    options = {name: value for name, value in config.items() if name not in SPECULATION}
    method = own.get("drafter")
    if method is None and "draft_model" not in own:
        raise ConfigError(f"speculative_config has {', '.join(map(str, config)) or 'nothing'}; it needs a method.")
    if method is not None:
        if not isinstance(method, str):
            raise ConfigError(f"speculative_config has method {method!r:.60}; give a drafter's name.")
        own["drafter"] = method.replace("_", "-")
    if options:
        own["drafter_options"] = options
    return own
