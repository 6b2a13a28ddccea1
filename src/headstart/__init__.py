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

    from headstart.common.enumerations import VerifyRule as VerifyRule
    from headstart.drafting.base import Drafter as Drafter
    from headstart.drafting.base import RoundOutcome as RoundOutcome
    from headstart.drafting.base import SpeculationParams as SpeculationParams
    from headstart.drafting.base import TargetSignals as TargetSignals
    from headstart.drafting.registry import available_drafters as available_drafters
    from headstart.engine.outputs import Completion as Completion
    from headstart.engine.outputs import FinishReason as FinishReason
    from headstart.engine.outputs import Logprob as Logprob
    from headstart.engine.outputs import RequestMetrics as RequestMetrics
    from headstart.engine.outputs import RequestOutput as RequestOutput
    from headstart.engine.outputs import SequenceStats as SequenceStats
    from headstart.engine.outputs import TokenOrigin as TokenOrigin
    from headstart.entrypoints.adapters import LoRARequest as LoRARequest
    from headstart.entrypoints.beam_search import BeamSearchOutput as BeamSearchOutput
    from headstart.entrypoints.beam_search import BeamSearchParams as BeamSearchParams
    from headstart.entrypoints.beam_search import BeamSearchSequence as BeamSearchSequence
    from headstart.entrypoints.engine_options import AsyncEngineArgs as AsyncEngineArgs
    from headstart.entrypoints.engine_options import EngineArgs as EngineArgs
    from headstart.entrypoints.llm import LLM as LLM
    from headstart.entrypoints.prompts import EncodedPrompt as EncodedPrompt
    from headstart.entrypoints.prompts import TextPrompt as TextPrompt
    from headstart.entrypoints.prompts import TokensPrompt as TokensPrompt
    from headstart.entrypoints.request import StreamPiece as StreamPiece
    from headstart.errors import CheckpointError as CheckpointError
    from headstart.errors import ConfigError as ConfigError
    from headstart.errors import HeadstartError as HeadstartError
    from headstart.errors import RequestError as RequestError
    from headstart.passes.draft_tree import DraftTree as DraftTree
    from headstart.sampling.params import SamplingParams as SamplingParams
    from headstart.sampling.structured import GuidedDecodingParams as GuidedDecodingParams
    from headstart.sampling.structured import StructuredOutputsParams as StructuredOutputsParams

__version__: str

keep_pytorch_off_hidden_tiles()

_NAMES = {
    "common.enumerations": ("VerifyRule",),
    "drafting.base": ("Drafter", "RoundOutcome", "SpeculationParams", "TargetSignals"),
    "drafting.registry": ("available_drafters",),
    "engine.outputs": (
        *("Completion", "FinishReason", "Logprob", "RequestMetrics", "RequestOutput", "SequenceStats", "TokenOrigin"),
    ),
    "entrypoints.adapters": ("LoRARequest",),
    "entrypoints.beam_search": ("BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence"),
    "entrypoints.engine_options": ("AsyncEngineArgs", "EngineArgs"),
    "entrypoints.llm": ("LLM",),
    "entrypoints.prompts": ("EncodedPrompt", "TextPrompt", "TokensPrompt"),
    "entrypoints.request": ("StreamPiece",),
    "errors": ("CheckpointError", "ConfigError", "HeadstartError", "RequestError"),
    "passes.draft_tree": ("DraftTree",),
    "sampling.params": ("SamplingParams",),
    "sampling.structured": ("GuidedDecodingParams", "StructuredOutputsParams"),
}
"""Module -> names that it hands out, imported when first used, so that `import headstart` and `headstart --help` stay
quick."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_ADDED = ("AsyncLLM", "AsyncLLMEngine", "Segment", "Transcript", "TranscriptionParams", "Word")
"""Names that other packages add (``headstart.common.installed.LIBRARY``)."""
__all__ = [*_HOMES, *_ADDED]


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
