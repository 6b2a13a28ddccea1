"""Fields of other servers that are refused, because ignoring them would give a wrong answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.common.other_names import NO_SHIFT
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
    **dict.fromkeys(("grammar", "guided_grammar", "ebnf"), _STRUCTURE),
    "context_shift": NO_SHIFT,
    "stop_regex": "give stop strings",
    "logits_processors": "use logit_bias, allowed_token_ids or bad_words",
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

OTHER_NAMES = {
    "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "repeat_penalty": "repetition_penalty",
    "no_stop_trim": "include_stop_str_in_output",
}
"""llama.cpp's and SGLang's name of a field -> its name here; both are read."""

_IDLE = {"typical_p": 1, "repeat_penalty": 1, "tfs_z": 1, "top_n_sigma": -1, "n_predict": -1}
"""Values, besides null, false, 0 and empty ones, that ask for nothing: many clients send every field they know."""


def refuse_foreign(unread: Mapping[str, Any], body: object) -> None:
    """Refuse fields of a body that were not read, but must not be ignored.

    Raises:
        RequestError: names the field and what to do instead.
    """
    for name, value in unread.items():
        if not value or value == _IDLE.get(name):
            continue
        if name in _INSTEAD:
            raise RequestError(f"{name} is given, which this server does not know; {_INSTEAD[name]}.", name)
        own = OTHER_NAMES.get(name)
        if own is not None and value != getattr(body, own):
            raise RequestError(f"{name} is another name of {own}, which says something else; keep one of them.", name)
