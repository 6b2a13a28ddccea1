"""Beam search in the form that vLLM has for it: its parameters, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from headstart.engine.outputs import Completion, RequestOutput, TokenLogprobs
from headstart.errors import RequestError
from headstart.sampling.params import SamplingParams


@dataclass(frozen=True)
class BeamSearchParams:
    """What ``LLM.beam_search`` is told; named as in vLLM, meant as in transformers."""

    beam_width: int
    """Beams that are searched, and outputs that are returned for each prompt."""
    max_tokens: int
    """Most output tokens."""
    ignore_eos: bool = False
    temperature: float = 0.0
    """0 or 1, which mean the same: nothing is drawn."""
    length_penalty: float = 1.0
    """Scores are divided by the output's length to this power: above 0 favours long outputs."""
    include_stop_str_in_output: bool = False
    """Keep the text of the end-of-sequence token, if it is shown at all."""

    def sampling(self) -> SamplingParams:
        """The same as parameters of ``LLM.generate``.

        Raises:
            RequestError: a value is out of range.
        """
        return SamplingParams(
            use_beam_search=True,
            beam_width=self.beam_width,
            n=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            length_penalty=self.length_penalty,
            include_stop_str_in_output=self.include_stop_str_in_output,
            logprobs=0,
        )


@dataclass(frozen=True)
class BeamSearchSequence:
    """One output of a search."""

    tokens: list[int]
    """Of the prompt and the output."""
    logprobs: list[dict[int, TokenLogprobs]]
    """[output token] its log-probability, by its id."""
    cum_logprob: float
    """Their sum."""
    score: float
    """That over the output's length to the power of ``length_penalty``: what outputs are ranked by."""
    text: str
    """Of the output, without the prompt."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @classmethod
    def of(cls, prompt: list[int], completion: Completion) -> BeamSearchSequence:
        """One output after a prompt."""
        logprobs = completion.logprobs or []
        return cls(
            tokens=[*prompt, *completion.token_ids],
            logprobs=[{token.token_id: token} for token in logprobs],
            cum_logprob=sum(token.logprob for token in logprobs),
            score=completion.score or 0.0,
            text=completion.text,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
        )


@dataclass(frozen=True)
class BeamSearchOutput:
    """The outputs of one prompt, the best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)

    @classmethod
    def of(cls, output: RequestOutput) -> BeamSearchOutput:
        """What ``LLM.generate`` has found.

        Raises:
            RequestError: the search failed.
        """
        failed = output.outputs[0].error
        if failed is not None:
            raise RequestError(failed)
        found = [completion for completion in output.outputs if completion.error is None]
        return cls([BeamSearchSequence.of(output.prompt_token_ids, completion) for completion in found])
