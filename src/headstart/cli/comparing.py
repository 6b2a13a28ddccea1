"""Speculative decoding beside plain decoding of the same requests: are they the same, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from headstart.common.enumerations import VerifyRule
from headstart.common.ratio import Ratio
from headstart.drafting.base import SpeculationParams
from headstart.engine.outputs import Completion, RequestOutput
from headstart.entrypoints.llm import LLM
from headstart.entrypoints.prompts import EncodedPrompt
from headstart.passes.batch import EncoderInput
from headstart.sampling.params import SamplingParams

FINE_TIE_GAP, COARSE_TIE_GAP = 1e-3, 0.25
"""Log-probabilities nearer than this may change places by rounding, in fp32 and in anything coarser: bf16 steps by
1/8 among logits of 16 to 32, and two of them are compared. A backend with exact numerics has no ties."""

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Difference:
    """Where two outputs part."""

    sample: int
    position: int
    """Output token, from 0."""
    plain_token_id: int | None
    """None: the output had ended."""
    speculative_token_id: int | None
    top2_gap: float | None
    """Distance of the target's two best log-probabilities there, before any transform; None where it samples."""
    float_tie: bool | None
    """The two tokens are the two best, and rounding may turn them round; None where that cannot be told."""


@dataclass(frozen=True)
class Comparison:
    """What a request's two outputs have to say."""

    identical: bool
    """Token for token, in every sample."""
    comparable: bool
    """They had to be: every token was the target's own choice, or its own draw at that position."""
    speedup: float | None
    """Ratio of the first samples' decoding speeds, prefill apart, the median over the turns that both ways took; None
    where nothing was decoded after prefill."""
    speedup_range: tuple[float, float] | None
    """Between which values it lay."""
    turns: int
    first_difference: Difference | None


class Comparator:
    """Compares the outputs of one model's requests.

    Args:
        llm: has decoded both.
        params: of every request; a seed is given.
        speculation: of the speculative ones.
    """

    def __init__(self, llm: LLM, params: SamplingParams, speculation: SpeculationParams) -> None:
        self._llm = llm
        self._params = params
        self._speculation = speculation
        self._lossy = speculation.lossy_for(params)

    def warm_up(self) -> None:
        """Decode a little both ways, so that neither is charged for what only happens once."""
        short = SamplingParams(temperature=self._params.temperature, seed=0, max_tokens=WARM_UP_TOKENS)
        for enabled in (True, False):
            speculation = replace(self._speculation, enabled=enabled)
            self._llm.generate("Warm up, warm up.", short, speculation=speculation, strict=False)

    def compare(self, speculative: RequestOutput, plain: RequestOutput, ratio: Ratio | None = None) -> Comparison:
        """A difference that greedy decoding must not have is looked into with one more pass."""
        pairs = list(zip(speculative.outputs, plain.outputs, strict=True))
        identical = all(a.token_ids == b.token_ids for a, b in pairs)
        return Comparison(
            identical=identical,
            comparable=self._comparable(speculative.outputs),
            speedup=None if ratio is None else ratio.middle,
            speedup_range=None if ratio is None else (ratio.low, ratio.high),
            turns=0 if ratio is None else ratio.turns,
            first_difference=None if identical else self._first_difference(speculative, plain),
        )

    def explain(self, comparison: Comparison) -> str:
        """Whether two outputs are the same token for token; if not, where they part and whether they may."""
        difference = comparison.first_difference
        if difference is None:
            same = "Speculative and plain decoding say the same, token for token"
            if comparison.comparable:
                return f"{same}."
            return f"{same}, though {self._promise()}."
        parted = (
            f"Speculative and plain decoding differ from output token {difference.position} on: "
            f"{self._token(difference.speculative_token_id)} instead of {self._token(difference.plain_token_id)}"
        )
        return f"{parted}; {_cause(difference) if comparison.comparable else 'they may, as ' + self._promise()}."

    def _promise(self) -> str:
        if self._lossy is not None:
            return f"{self._lossy} is lossy"
        return "guesses drawn at random keep the distribution alone (--verify coupled keeps the tokens too)"

    def _comparable(self, samples: Sequence[Completion]) -> bool:
        if self._lossy is not None:
            return False
        drawn = any(sample.stats.sampled_rounds for sample in samples)
        return self._params.greedy or self._speculation.verify is VerifyRule.COUPLED or not drawn

    def _first_difference(self, speculative: RequestOutput, plain: RequestOutput) -> Difference:
        pairs = [(a.token_ids, b.token_ids) for a, b in zip(speculative.outputs, plain.outputs, strict=True)]
        sample, (ours, theirs) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
        tokens = enumerate(zip_longest(ours, theirs))
        position, (said, due) = next((at, pair) for at, pair in tokens if pair[0] != pair[1])
        gap, tie = None, None
        if self._params.greedy:
            best = self._two_best(plain, theirs[:position])
            gap = abs(best[0][1] - best[1][1])
            if not _reshaped(self._params):
                tie = gap <= self._tie_gap() and {said, due} == {token for token, _ in best}
        return Difference(sample, position, due, said, gap, tie)

    def _two_best(self, plain: RequestOutput, output_ids: list[int]) -> list[tuple[int, float]]:
        """The target's two best tokens after prompt and output, with their log-probabilities."""
        read = plain.encoder_prompt_token_ids
        encoder = self._llm.model.config.encoder
        foreign = encoder is not None and encoder.vocab_size is not None
        source = None if read is None else EncoderInput(tuple(read), foreign=foreign)
        prompt = EncodedPrompt(plain.prompt, [*plain.prompt_token_ids, *output_ids], source, plain.encoder_prompt)
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=2)
        (output,) = self._llm.generate(prompt, params, speculation=SpeculationParams(enabled=False))
        assert output.logprobs is not None
        return list(output.logprobs[0].top.items())

    def _tie_gap(self) -> float:
        backend = self._llm.model.backend
        if backend.exact_rows:
            return 0.0
        return FINE_TIE_GAP if backend.name.endswith("fp32") else COARSE_TIE_GAP

    def _token(self, token: int | None) -> str:
        return "the end" if token is None else f"{self._llm.model.tokenizer.token_text(token)!r} ({token})"


def _cause(difference: Difference) -> str:
    if difference.top2_gap is None:
        return "both drew with the same noise, so rounding has turned a draw, or this is a fault"
    gap = f"the target's two best tokens lie {difference.top2_gap:.2g} apart there (log-probability)"
    if difference.float_tie is None:
        return f"{gap}, before penalties and biases"
    if difference.float_tie:
        return f"{gap}, a float tie that rounding decides"
    return f"{gap}, which rounding does not explain, so this looks like a fault"


def _reshaped(params: SamplingParams) -> bool:
    """Whether transforms may put another token than the likeliest one first."""
    return bool(
        params.logit_bias
        or params.allowed_token_ids is not None
        or params.banned_token_ids
        or params.bad_words
        or params.banned_sequences
        or params.min_tokens
        or params.repetition_penalty != 1
        or params.presence_penalty
        or params.frequency_penalty
    )
