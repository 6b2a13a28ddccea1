"""How a drafter that runs others shows them a sequence."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.drafting.base import BeamView, SequenceView, SpeculationParams, beam_of
from headstart.passes.adapters import Adapter
from headstart.passes.batch import EncoderInput
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams


@dataclass
class InnerSequence:
    """A sequence as an inner drafter sees it (``SequenceView``): what differs from the outer one is given."""

    outer: SequenceView
    id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    speculation: SpeculationParams
    noise: SequenceNoise
    source: EncoderInput | None

    @property
    def beam(self) -> BeamView | None:
        """See ``beam_of``."""
        return beam_of(self.outer)

    @classmethod
    def of(
        cls,
        outer: SequenceView,
        *,
        tokens: list[int] | None = None,
        params: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
    ) -> InnerSequence:
        """``outer`` but for what is given; without ``tokens`` it grows with the outer one."""
        return cls(
            outer,
            outer.id,
            outer.tokens if tokens is None else tokens,
            outer.prompt_length,
            outer.params if params is None else params,
            outer.speculation if speculation is None else speculation,
            outer.noise,
            outer.source,
        )


def request_of(sequence: SequenceView) -> SequenceView:
    """The request's own sequence, whoever made this one of it."""
    while isinstance(sequence, InnerSequence):
        sequence = sequence.outer
    return sequence


def adapter_of(sequence: SequenceView) -> Adapter | None:
    """What the request named beside the model."""
    adapter: Adapter | None = getattr(request_of(sequence), "adapter", None)
    return adapter
