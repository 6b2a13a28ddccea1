"""Prompts of models with an encoder: what it reads, and what the decoder's output begins with."""

from __future__ import annotations

from collections import abc
from typing import cast

from headstart.errors import RequestError
from headstart.models.config import ModelConfig
from headstart.models.encoder_decoder import EncoderConfig
from headstart.passes import EncoderInput
from headstart.request import EncodedPrompt, Prompt, encoded
from headstart.text.tokenizer import Tokenizer

_KEYS = {"encoder_prompt", "decoder_prompt"}


def encoded_for(
    config: ModelConfig, prompt: Prompt, tokenizer: Tokenizer, add_special_tokens: bool = True
) -> EncodedPrompt:
    """A prompt's token ids for a model with an encoder or without.

    Raises:
        RequestError: as ``encoded`` or ``encoded_pair``.
    """
    if config.encoder is None:
        return encoded(prompt, tokenizer, add_special_tokens)
    return encoded_pair(prompt, tokenizer, config.encoder, add_special_tokens)


def encoded_pair(
    prompt: Prompt, tokenizer: Tokenizer, encoder: EncoderConfig, add_special_tokens: bool = True
) -> EncodedPrompt:
    """A prompt's token ids on both sides.

    Args:
        prompt: vLLM's ``{"encoder_prompt": ..., "decoder_prompt": ...}``, each a text, token ids or a dictionary of one
            of them, the decoder's perhaps None; or any other prompt, which is the encoder's.
        add_special_tokens: as the tokenizer does for the encoder's texts.

    Raises:
        RequestError: a part is neither text nor token ids, the encoder's is empty, or nothing says what outputs begin
            with.
    """
    if isinstance(prompt, EncodedPrompt) and prompt.source is not None:
        return prompt
    read, begun = prompt, None
    if isinstance(prompt, abc.Mapping) and not _KEYS.isdisjoint(prompt):
        if not prompt.keys() <= _KEYS:
            others = ", ".join(sorted(str(key) for key in prompt.keys() - _KEYS))
            raise RequestError(f"a prompt holds {others} beside encoder_prompt; leave it out.", "prompt")
        read, begun = cast(Prompt, prompt.get("encoder_prompt")), cast("Prompt | None", prompt.get("decoder_prompt"))
        if read is None:
            raise RequestError("a prompt has no encoder_prompt; give the text that the encoder reads.", "prompt")
    if encoder.mel_bins is not None:
        raise RequestError("this model's encoder reads audio, not text; give it audio.", "prompt")
    source = encoded(read, tokenizer, add_special_tokens)
    if not source.token_ids:
        raise RequestError("the encoder's prompt has no tokens; give at least one.", "prompt")
    return with_decoder_prompt(EncoderInput(tuple(source.token_ids)), source.text, begun, tokenizer, encoder)


def with_decoder_prompt(
    source: EncoderInput, source_text: str, begun: Prompt | None, tokenizer: Tokenizer, encoder: EncoderConfig
) -> EncodedPrompt:
    """What the output begins with, as transformers' generate has it: the start token, then the decoder's prompt; the
    token that must come first where there is none.

    Raises:
        RequestError: the model has no start token, and no prompt is given in its place.
    """
    given = [] if begun is None else encoded(begun, tokenizer, False).token_ids
    ids = list(given)
    if encoder.start_token_id is not None and ids[:1] != [encoder.start_token_id]:
        ids.insert(0, encoder.start_token_id)
    if not ids:
        raise RequestError(
            "the model's files do not say what outputs begin with (decoder_start_token_id); give a decoder_prompt.",
            "prompt",
        )
    if encoder.forced_first_token_id is not None and ids == [encoder.start_token_id]:
        ids.append(encoder.forced_first_token_id)
    return EncodedPrompt(tokenizer.decode(ids, skip_special_tokens=False), ids, source, source_text)
