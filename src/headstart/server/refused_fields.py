"""Fields of other servers that are refused, because ignoring them would give a wrong answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.errors import RequestError

_STRUCTURE = "ask for a schema or an expression with structured_outputs"
_LAW = "shape the law with temperature, top_k, top_p and min_p"

_INSTEAD = {
    "chat_template": "the model's own template is used",
    "function_call": "ask with tool_choice",
    "functions": "offer them as tools",
    "prompt_embeds": "give the prompt as text or token ids",
    "web_search_options": "search yourself, and write what you find into a message",
    **dict.fromkeys(("audio", "mm_processor_kwargs"), "texts are all that is read and said here"),
    **dict.fromkeys(("grammar", "guided_grammar", "ebnf", "regex", "json_schema"), _STRUCTURE),
    "repeat_penalty": "its name here is repetition_penalty",
    "n_predict": "its name here is max_tokens",
    "min_new_tokens": "its name here is min_tokens",
    "no_stop_trim": "its name here is include_stop_str_in_output",
    "stop_regex": "give stop strings",
    "logits_processors": "use logit_bias, allowed_token_ids or bad_words",
    "thinking_token_budget": "lower max_tokens",
    **dict.fromkeys(
        (
            "typical_p",
            "tfs_z",
            "top_a",
            "top_n_sigma",
            "xtc_probability",
            "dynatemp_range",
            "mirostat",
            "mirostat_mode",
            "epsilon_cutoff",
            "eta_cutoff",
            "smoothing_factor",
            "dry_multiplier",
        ),
        _LAW,
    ),
}
"""Field -> what to do instead."""

_IDLE = {"typical_p": 1, "repeat_penalty": 1, "tfs_z": 1, "top_n_sigma": -1, "n_predict": -1}
"""Values, besides null, false, 0 and empty ones, that ask for nothing: many clients send every field they know."""


def refuse_foreign(given: Mapping[str, Any]) -> None:
    """Refuse fields that must not be ignored; ``given`` holds a request's unknown fields.

    Raises:
        RequestError: names the field and what to do instead.
    """
    for name, value in given.items():
        if name in _INSTEAD and value and value != _IDLE.get(name):
            raise RequestError(f"{name} is given, which this server does not know; {_INSTEAD[name]}.", name)
