"""Prompts of models with an encoder: what it reads, and what the decoder's output begins with."""

from __future__ import annotations

from collections import abc
from typing import cast

from headstart.entrypoints.audio import source_of_audio, source_of_features
from headstart.entrypoints.prompts import EncodedPrompt, Prompt, encoded
from headstart.errors import RequestError
from headstart.models.config import ModelConfig
from headstart.models.encoder_decoder import EncoderConfig
from headstart.passes.batch import EncoderInput
from headstart.text.languages import in_language, language_token
from headstart.text.tokenizer import Tokenizer

_KEYS = {"encoder_prompt", "decoder_prompt", "src_lang", "tgt_lang"}


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
            of them, the decoder's perhaps None; or any other prompt, which is the encoder's. ``src_lang`` and
            ``tgt_lang`` beside them name the languages of a translation, as in transformers. An encoder of audio gets
            ``{"audio": samples}`` or ``{"features": [mel bin, frame]}``, perhaps within ``multi_modal_data``.
        add_special_tokens: as the tokenizer does for the encoder's texts.

    Raises:
        RequestError: a part is neither text nor token ids, the encoder's is empty, nothing says what outputs begin
            with, or the model has no such language.
    """
    if isinstance(prompt, EncodedPrompt) and prompt.source is not None:
        return prompt
    read, begun = _halves(prompt, tokenizer, encoder)
    named = prompt if isinstance(prompt, abc.Mapping) else {}
    source_language, language = (_language(named, key) for key in ("src_lang", "tgt_lang"))
    if language is not None:
        given = [] if begun is None else encoded(begun, tokenizer, False, may_be_empty=True).token_ids
        begins = int(given[:1] == [encoder.start_token_id])
        begun = [*given[:begins], language_token(tokenizer, language, "tgt_lang"), *given[begins:]]
    if encoder.mel_bins is not None:
        return with_decoder_prompt(_heard(read, encoder), "", begun, tokenizer, encoder)
    source = encoded(cast(Prompt, read), tokenizer.for_encoder, add_special_tokens, may_be_empty=True)
    ids = source.token_ids
    if not ids:
        raise RequestError("the encoder's prompt has no tokens; give at least one.", "prompt")
    if source_language is not None:
        ids = in_language(ids, tokenizer.for_encoder, source_language)
    tokens = EncoderInput(tuple(ids), foreign=encoder.vocab_size is not None)
    return with_decoder_prompt(tokens, source.text, begun, tokenizer, encoder)


def _language(prompt: abc.Mapping[str, object], key: str) -> str | None:
    name = prompt.get(key)
    if name is not None and not isinstance(name, str):
        raise RequestError(f"{key} is {name!r:.60}; give the name of a language.", key)
    return name


def _halves(prompt: Prompt, tokenizer: Tokenizer, encoder: EncoderConfig) -> tuple[object, Prompt | None]:
    """What the encoder reads, and the decoder's prompt."""
    if not isinstance(prompt, abc.Mapping):
        return prompt, None
    if encoder.mel_bins is not None and _KEYS.isdisjoint(prompt):
        # vLLM's other form: the audio beside the decoder's prompt.
        begun = prompt.get("prompt_token_ids", prompt.get("prompt"))
        heard = {key: value for key, value in prompt.items() if key not in ("prompt", "prompt_token_ids")}
        return heard, cast("Prompt | None", begun or None)
    if _KEYS.isdisjoint(prompt):
        return prompt, None
    if not prompt.keys() <= _KEYS:
        others = ", ".join(sorted(str(key) for key in prompt.keys() - _KEYS))
        raise RequestError(f"a prompt holds {others} beside encoder_prompt; leave it out.", "prompt")
    read = prompt.get("encoder_prompt")
    if read is None:
        raise RequestError("a prompt has no encoder_prompt; give what the encoder reads.", "prompt")
    return read, cast("Prompt | None", prompt.get("decoder_prompt"))


def _heard(read: object, encoder: EncoderConfig) -> EncoderInput:
    """Audio, in ``{"multi_modal_data": {"audio": ...}}``, ``{"audio": ...}`` or ``{"features": ...}``."""
    found = read
    if isinstance(found, abc.Mapping) and isinstance(found.get("multi_modal_data"), abc.Mapping):
        found = found["multi_modal_data"]
    if isinstance(found, abc.Mapping) and "audio" in found:
        return source_of_audio(found["audio"], encoder)
    if isinstance(found, abc.Mapping) and "features" in found:
        return source_of_features(found["features"], encoder)
    raise RequestError(
        'this model\'s encoder reads audio; give {"audio": samples at 16 kHz} as encoder_prompt, or have a file '
        "transcribed (headstart transcribe, POST /v1/audio/transcriptions).",
        "prompt",
    )


def with_decoder_prompt(
    source: EncoderInput, source_text: str, begun: Prompt | None, tokenizer: Tokenizer, encoder: EncoderConfig
) -> EncodedPrompt:
    """What the output begins with, as transformers' generate has it: the start token, then the decoder's prompt; the
    token that must come first where there is none.

    Raises:
        RequestError: the model has no start token, and no prompt is given in its place.
    """
    given = [] if begun is None else encoded(begun, tokenizer, False, may_be_empty=True).token_ids
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
