"""What an engine can never serve, which is refused when it comes."""

from __future__ import annotations

from headstart.engine.schedule import Limits
from headstart.engine.sequence import Sequence
from headstart.errors import RequestError
from headstart.passes.batch import EncoderInput
from headstart.passes.cache.paged import PagedCache


def require_servable(sequence: Sequence, limits: Limits, cache: PagedCache, vocab_size: int) -> None:
    """Refuse a sequence that does not fit into the engine, or has tokens that the model lacks.

    Raises:
        RequestError: why.
    """
    require_fit(sequence.prompt_length, limits.max_context)
    require_source_fit(sequence.source, limits)
    _require_room(sequence, cache)
    for token in sequence.tokens:
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"the prompt holds token {token}; this model's ids go from 0 to {vocab_size - 1}.", "prompt"
            )
    sequence.params.check_vocabulary(vocab_size)
    if slots(sequence) > limits.max_sequences:
        raise RequestError(
            f"beam_width is {slots(sequence)}, and this engine decodes {limits.max_sequences} sequences together; give "
            "fewer beams, or raise max_batch_size.",
            "beam_width",
        )


def slots(sequence: Sequence) -> int:
    """How many of the sequences that decode together it may become."""
    return 1 if sequence.group is None else sequence.group.width


def require_fit(prompt: int, context: int) -> None:
    """Refuse a prompt of so many tokens that a context can never serve.

    Raises:
        RequestError: it is empty, or leaves no room for output.
    """
    if not prompt:
        raise RequestError("the prompt has no tokens; give at least one.", "prompt")
    if prompt >= context:
        raise RequestError(
            f"the prompt has {prompt} tokens and the context holds {context}, at least one of them for output; "
            "shorten the prompt.",
            "prompt",
        )


def require_source_fit(source: EncoderInput | None, limits: Limits) -> None:
    """Refuse what an encoder can never read.

    Raises:
        RequestError: it is too long, missing, or there is no encoder.
    """
    if source is None and limits.max_source:
        raise RequestError("this model has an encoder, which has nothing to read; give an encoder_prompt.", "prompt")
    if source is None:
        return
    if not limits.max_source:
        raise RequestError("a prompt has an encoder_prompt, but this model has no encoder; give a prompt.", "prompt")
    if source.positions > limits.max_source:
        raise RequestError(
            f"the encoder's prompt has {source.positions} tokens and the encoder reads at most {limits.max_source}; "
            "shorten it, or raise max_context if the model reads more.",
            "prompt",
        )


def _require_room(sequence: Sequence, cache: PagedCache) -> None:
    """Refuse what a cache can never hold.

    Raises:
        RequestError: the prompt, or it and what the encoder reads, is too long.
    """
    tokens, prompt = cache.size.blocks * cache.block_size, sequence.prompt_length
    if prompt + 1 > tokens:
        raise RequestError(
            f"the prompt has {prompt} tokens and the cache holds {tokens}; raise cache_tokens.", "prompt"
        )
    positions = 0 if sequence.source is None else sequence.source.positions
    if -(-positions // cache.block_size) + -(-(prompt + 1) // cache.block_size) > cache.size.blocks:
        raise RequestError(
            f"the encoder's prompt has {positions} tokens, which do not fit into a cache of {tokens} beside the "
            "output; raise cache_tokens.",
            "prompt",
        )
