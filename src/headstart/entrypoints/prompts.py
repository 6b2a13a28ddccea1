"""Prompts in every form that callers have for them, as token ids."""

from __future__ import annotations

from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Required, TypedDict, cast

from headstart.errors import RequestError
from headstart.passes.batch import EncoderInput
from headstart.sampling.params import SamplingParams
from headstart.text.chat import ChatTemplate
from headstart.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as text (a chat as its template rendered it) and as token ids. Where the model has an encoder: what the
    output begins with."""

    text: str
    token_ids: list[int]
    source: EncoderInput | None = None
    """What the encoder reads; None: the model has none."""
    source_text: str | None = None
    """The same as text."""

    @property
    def source_token_ids(self) -> list[int] | None:
        """Tokens that the encoder reads, none of audio; None: the model has no encoder."""
        return None if self.source is None else list(self.source.tokens)

    def following(self, before: abc.Sequence[int], start: abc.Sequence[int]) -> EncodedPrompt:
        """The same behind other tokens, without the ``start`` that a tokenizer puts before each text."""
        own = bool(before and start) and self.token_ids[: len(start)] == list(start)
        return replace(self, token_ids=[*before, *self.token_ids[len(start) if own else 0 :]])

    def cut(self, params: SamplingParams, max_context: int, max_source: int = 0) -> EncodedPrompt:
        """What ``truncate_prompt_tokens`` leaves of the token ids; the text stays. Where the model has an encoder, the
        tokens that it reads are cut, of which there may be ``max_source``.

        Raises:
            RequestError: ``truncate_prompt_tokens`` is -1, and ``max_tokens`` leaves no room in the context.
        """
        kept = params.truncate_prompt_tokens
        if self.source is not None:
            most = max_source if kept == -1 else kept
            return (
                self if most is None else replace(self, source=replace(self.source, tokens=self.source.tokens[-most:]))
            )
        if kept == -1:
            kept = max_context - (params.max_tokens or 1)
            if kept < 1:
                raise RequestError(
                    f"truncate_prompt_tokens is -1, but max_tokens {params.max_tokens} fill the context of "
                    f"{max_context} tokens alone; lower max_tokens.",
                    "max_tokens",
                )
        return self if kept is None else EncodedPrompt(self.text, self.token_ids[-kept:])


Prompt = str | abc.Sequence[int] | EncodedPrompt | abc.Mapping[str, object]
"""A text, token ids, what ``LLM.encode`` returns, or vLLM's ``{"prompt": text}`` and ``{"prompt_token_ids": ids}``; for
models with an encoder also ``{"encoder_prompt": ..., "decoder_prompt": ...}`` (``entrypoints.encoder_prompt``)."""


class TextPrompt(TypedDict):
    """A prompt in vLLM's form."""

    prompt: str


class TokensPrompt(TypedDict, total=False):
    """The same as token ids."""

    prompt_token_ids: Required[abc.Sequence[int]]
    prompt: str | None


Message = abc.Mapping[str, Any]
"""One of a conversation, as OpenAI's API has it: ``role``, ``content`` and what else the chat template reads."""
_PROMPT_KEYS = ("prompt_token_ids", "prompt")


def listed(prompts: Prompt | abc.Sequence[Prompt]) -> abc.Sequence[Prompt]:
    """One or several prompts as a list; anything else is left for ``encode`` to refuse."""
    if isinstance(prompts, (str, bytes, bytearray, EncodedPrompt, abc.Mapping)) or not isinstance(
        prompts, abc.Iterable
    ):
        return [cast(Prompt, prompts)]
    items = list(prompts)
    return [cast(Prompt, items)] if items and all(map(_is_id, items)) else cast(abc.Sequence[Prompt], items)


def listed_chats(
    messages: abc.Sequence[Message] | abc.Sequence[abc.Sequence[Message]],
) -> abc.Sequence[abc.Sequence[Message]]:
    """One or several conversations as a list; anything else is left for the template to refuse."""
    one = not isinstance(messages, abc.Sequence) or not messages or isinstance(messages[0], abc.Mapping)
    return cast(abc.Sequence[abc.Sequence[Message]], [messages] if one else messages)


@contextmanager
def naming(index: object, several: int, what: str = "prompt") -> abc.Iterator[None]:
    """Let a refusal say which of several prompts, or of something else, it is about."""
    try:
        yield
    except RequestError as error:
        if several == 1:
            raise
        raise RequestError(f"{what} {index}: {error}", error.field) from None


def encoded(
    prompt: Prompt, tokenizer: Tokenizer, add_special_tokens: bool, may_be_empty: bool = False
) -> EncodedPrompt:
    """A prompt's token ids, with or without the special tokens that the tokenizer adds to a text. Unless it
    ``may_be_empty``, an empty text becomes the begin-of-sequence token, as in transformers.

    Raises:
        RequestError: the text has no UTF-8 form, or the prompt is neither a text nor token ids.
    """
    prompt = _bare(prompt)
    if isinstance(prompt, EncodedPrompt):
        return prompt
    if not isinstance(prompt, str):
        ids = _token_ids(prompt)
        return EncodedPrompt(tokenizer.decode(ids, skip_special_tokens=False), ids)
    ids = tokenizer.encode(prompt, add_special_tokens)
    if not ids and not may_be_empty and tokenizer.bos_token_id is not None:
        ids = [tokenizer.bos_token_id]
    return EncodedPrompt(prompt, ids)


def encoded_chat(
    messages: abc.Sequence[Message],
    tokenizer: Tokenizer,
    template: ChatTemplate,
    tools: abc.Sequence[abc.Mapping[str, Any]] | None = None,
    variables: abc.Mapping[str, Any] | None = None,
) -> EncodedPrompt:
    """A conversation's token ids, through a chat template; ``variables``: what else the template reads.

    Raises:
        RequestError: there is no template, or it cannot render these messages.
    """
    variables = dict(variables or {})
    for name in ("messages", "tools"):
        if name in variables:
            raise RequestError(f"chat_template_kwargs has {name}; leave it out there.", "chat_template_kwargs")
    begun, continued = (variables.pop(name, None) for name in ("add_generation_prompt", "continue_final_message"))
    for name, value in (("add_generation_prompt", begun), ("continue_final_message", continued)):
        if value is not None and not isinstance(value, bool):
            raise RequestError(f"{name} is {value!r:.40}; give true or false.", name)
    text = template.render(messages, tools, begun, bool(continued), variables)
    return EncodedPrompt(text, tokenizer.encode(text, add_special_tokens=False))


def _bare(prompt: Prompt) -> str | abc.Sequence[int] | EncodedPrompt:
    """The prompt inside a dictionary (token ids, if it has both them and a text); any other prompt as it is.

    Raises:
        RequestError: the dictionary holds something else.
    """
    if not isinstance(prompt, abc.Mapping):
        return prompt
    if prompt.keys() <= set(_PROMPT_KEYS):
        for held in map(prompt.get, _PROMPT_KEYS):
            if held is not None:
                return cast(str | abc.Sequence[int], held)
    if "encoder_prompt" in prompt:
        raise RequestError("a prompt has an encoder_prompt, but this model has no encoder; give a prompt.", "prompt")
    names = ", ".join(map(str, prompt)) or "nothing"
    raise RequestError(f"a prompt holds {names}; give it as prompt or as prompt_token_ids.", "prompt")


def _token_ids(prompt: abc.Sequence[int]) -> list[int]:
    """Token ids of a list or an array, as plain integers.

    Raises:
        RequestError: they are not integers.
    """
    try:
        if isinstance(prompt, (bytes, bytearray)):
            raise TypeError
        return [index(token) for token in prompt]
    except TypeError:
        raise RequestError(
            f"a prompt is {type(prompt).__name__} {prompt!s:.40}; give a text, a list of token ids, or what encode "
            "returns.",
            "prompt",
        ) from None


def _is_id(item: object) -> bool:
    try:
        index(item)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
