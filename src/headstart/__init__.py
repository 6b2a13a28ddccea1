"""Headstart: lossless speculative decoding for language models.

>>> from headstart import LLM, SamplingParams
>>> llm = LLM("smollm2", drafter="ngram")
>>> out, = llm.generate(["Once upon a time"], SamplingParams(temperature=0, max_tokens=32))
>>> print(out.text, out.stats.acceptance_rate)
"""

from __future__ import annotations

from headstart.common.processor import keep_pytorch_off_hidden_tiles

TYPE_CHECKING = False
if TYPE_CHECKING:  # what the standard library's constant would take a tenth of the start to say
    from typing import Any

    from headstart.common.enumerations import VerifyRule
    from headstart.drafting.base import Drafter, RoundOutcome, SpeculationParams, TargetSignals
    from headstart.drafting.registry import available_drafters
    from headstart.engine.outputs import (
        Completion,
        FinishReason,
        Logprob,
        RequestMetrics,
        RequestOutput,
        SequenceStats,
        TokenOrigin,
    )
    from headstart.entrypoints.adapters import LoRARequest
    from headstart.entrypoints.async_llm import AsyncLLM, AsyncLLMEngine
    from headstart.entrypoints.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from headstart.entrypoints.engine_options import AsyncEngineArgs, EngineArgs
    from headstart.entrypoints.llm import LLM
    from headstart.entrypoints.prompts import EncodedPrompt, TextPrompt, TokensPrompt
    from headstart.entrypoints.request import StreamPiece
    from headstart.errors import CheckpointError, ConfigError, HeadstartError, RequestError
    from headstart.passes.draft_tree import DraftTree
    from headstart.sampling.params import SamplingParams
    from headstart.sampling.structured import GuidedDecodingParams, StructuredOutputsParams

__version__: str

keep_pytorch_off_hidden_tiles()

# Imported when first used, so that `import headstart` and `headstart --help` stay quick. Names that stand in __all__
# alone, other packages add (headstart.common.installed.LIBRARY).
_HOMES = {
    "AsyncEngineArgs": "entrypoints.engine_options", "AsyncLLM": "entrypoints.async_llm",
    "AsyncLLMEngine": "entrypoints.async_llm", "BeamSearchOutput": "entrypoints.beam_search",
    "BeamSearchParams": "entrypoints.beam_search", "BeamSearchSequence": "entrypoints.beam_search",
    "CheckpointError": "errors", "Completion": "engine.outputs", "ConfigError": "errors",
    "DraftTree": "passes.draft_tree", "Drafter": "drafting.base", "EncodedPrompt": "entrypoints.prompts",
    "EngineArgs": "entrypoints.engine_options", "FinishReason": "engine.outputs",
    "GuidedDecodingParams": "sampling.structured", "HeadstartError": "errors", "LLM": "entrypoints.llm",
    "LoRARequest": "entrypoints.adapters", "Logprob": "engine.outputs", "RequestError": "errors",
    "RequestMetrics": "engine.outputs", "RequestOutput": "engine.outputs", "RoundOutcome": "drafting.base",
    "SamplingParams": "sampling.params", "SequenceStats": "engine.outputs", "SpeculationParams": "drafting.base",
    "StreamPiece": "entrypoints.request", "StructuredOutputsParams": "sampling.structured",
    "TargetSignals": "drafting.base", "TextPrompt": "entrypoints.prompts", "TokenOrigin": "engine.outputs",
    "TokensPrompt": "entrypoints.prompts", "VerifyRule": "common.enumerations",
    "available_drafters": "drafting.registry",
}  # fmt: skip

__all__ = [
    "LLM", "AsyncEngineArgs", "AsyncLLM", "AsyncLLMEngine", "BeamSearchOutput", "BeamSearchParams",
    "BeamSearchSequence", "CheckpointError", "Completion", "ConfigError", "DraftTree", "Drafter", "EncodedPrompt",
    "EngineArgs", "FinishReason", "GuidedDecodingParams", "HeadstartError", "LoRARequest", "Logprob", "RequestError",
    "RequestMetrics", "RequestOutput", "RoundOutcome", "SamplingParams", "Segment", "SequenceStats",
    "SpeculationParams", "StreamPiece", "StructuredOutputsParams", "TargetSignals", "TextPrompt", "TokenOrigin",
    "TokensPrompt", "Transcript", "TranscriptionParams", "VerifyRule", "Word", "available_drafters",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("headstart")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _HOMES:
        from headstart.common.installed import of_library

        return of_library(name)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
