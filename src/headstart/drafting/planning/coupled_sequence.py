"""How a planner shows its drafters a sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headstart.drafting.base import SequenceView, SpeculationParams
from headstart.enumerations import VerifyRule
from headstart.passes import EncoderInput
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams


@dataclass
class CoupledSequence:
    """A sequence as the drafters see it: it asks them to share the target's noise, so that they guess point masses."""

    outer: SequenceView
    id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    speculation: SpeculationParams
    noise: SequenceNoise
    source: EncoderInput | None

    @classmethod
    def of(cls, sequence: SequenceView) -> CoupledSequence:
        return cls(
            sequence,
            sequence.id,
            sequence.tokens,
            sequence.prompt_length,
            sequence.params,
            replace(sequence.speculation, verify=VerifyRule.COUPLED),
            sequence.noise,
            sequence.source,
        )
