"""Prompts and parameters become samples: what is given and what the model has are put together, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from headstart.common.enumerations import Numerics
from headstart.drafting.base import SpeculationParams
from headstart.engine.beams import BeamGroup
from headstart.engine.constraint import TokenConstraint
from headstart.engine.schedule import Limits
from headstart.engine.thought_rules import ThoughtRules
from headstart.entrypoints.adapters import Adapters, AdapterWish
from headstart.entrypoints.prompts import EncodedPrompt, naming
from headstart.entrypoints.request import Sample, require_lossless
from headstart.errors import RequestError
from headstart.loading.model import Model
from headstart.passes.adapters import Adapter
from headstart.sampling.params import SamplingParams
from headstart.text.answers.model_answers import ModelAnswers
from headstart.text.grammar import GrammarCompiler


@dataclass(frozen=True)
class SampleMaker:
    """Makes the samples of one engine's requests."""

    model: Callable[[], Model]
    """Gives the target, as long as it is there."""
    limits: Limits
    answers: ModelAnswers
    adapters: Adapters
    numerics: Numerics
    speculation: SpeculationParams
    """Of requests that do not say."""
    fresh_seed: Callable[[], int]
    grammars: Callable[[], GrammarCompiler]
    adapter: Adapter | None = None
    """Of requests that name none."""
    ids: Iterator[int] = field(default_factory=count)

    def adapted(self, wish: AdapterWish) -> SampleMaker:
        """The same, with this adapter for requests that name none; None: as it is here."""
        adapter = self.adapters.of(wish)
        return self if adapter is None else replace(self, adapter=adapter)

    def of_prompts(
        self,
        prompts: Sequence[EncodedPrompt],
        params: SamplingParams | Sequence[SamplingParams],
        speculation: SpeculationParams | None,
        cache_salt: str = "",
        lora_request: AdapterWish | Sequence[AdapterWish] = None,
    ) -> list[Sample]:
        """Those of several prompts, with parameters and an adapter for all, or for each.

        Raises:
            RequestError: there is another number of these, or one does not fit the model; it names the prompt.
        """
        each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise RequestError(
                f"{len(each)} sampling parameters were given for {len(prompts)} prompts; give one for each."
            )
        wishes = lora_request if isinstance(lora_request, list | tuple) else [lora_request] * len(prompts)
        if len(wishes) != len(prompts):
            said = f"{len(wishes)} adapters were given for {len(prompts)} prompts"
            raise RequestError(f"{said}; give one for each.", "lora_request")
        samples = []
        for index, (prompt, wanted, wish) in enumerate(zip(prompts, each, wishes, strict=True)):
            with naming(index, len(prompts)):
                thinks = self.answers.thinks(prompt.text) is True
                samples += self.adapted(wish)(
                    prompt, wanted, speculation, prompt_index=index, cache_salt=cache_salt, thinks=thinks
                )
        return samples

    def __call__(
        self,
        prompt: EncodedPrompt,
        params: SamplingParams,
        speculation: SpeculationParams | None = None,
        *,
        prompt_index: int = 0,
        cache_salt: str = "",
        trace: bool = False,
        constraint: Callable[[], TokenConstraint] | None = None,
        shown: frozenset[int] = frozenset(),
        thinks: bool | None = False,
    ) -> list[Sample]:
        """The samples of one prompt.

        ``constraint`` makes what limits the output of a sample, where ``params`` ask for no structure; ``shown``:
        special tokens that are seen in its text (``answers.shown``); ``thinks``: whether it begins inside a thought,
        behind which what is demanded of it begins (None: it may begin with one).

        Raises:
            RequestError: a parameter does not fit the model.
        """
        if not isinstance(params, SamplingParams):
            raise RequestError(
                f"sampling_params is {type(params).__name__} {params!s:.40}; give SamplingParams.", "sampling_params"
            )
        model, speculation = self.model(), speculation or self.speculation
        require_lossless(self.numerics, speculation, params)
        prompt = prompt.cut(params, self.limits.max_context, self.limits.max_source)
        seed = self.fresh_seed() if params.seed is None else params.seed
        wanted = params.structured_outputs
        if wanted is not None:
            constraint = partial(self.grammars().constraint, wanted)
        constraint = self._behind_thoughts(model, prompt, params, constraint, thinks)
        samples = [
            Sample(
                model,
                prompt,
                prompt_index,
                index,
                next(self.ids),
                params,
                seed,
                speculation,
                cache_salt,
                trace,
                None if constraint is None else constraint(),
                shown,
                self.adapter,
            )
            for index in range(params.n)
        ]
        if params.beam_width is not None:
            if speculation.lossy is not None:
                raise RequestError(
                    f"{speculation.lossy} is a rule for sampling, and beam search draws nothing; leave it out.",
                    speculation.lossy,
                )
            BeamGroup([sample.sequence for sample in samples])
            return samples
        for sample in samples[1:]:
            sample.sequence.leader = samples[0].sequence
        return samples

    def _behind_thoughts(
        self,
        model: Model,
        prompt: EncodedPrompt,
        params: SamplingParams,
        inner: Callable[[], TokenConstraint] | None,
        thinks: bool | None,
    ) -> Callable[[], TokenConstraint] | None:
        """What limits an output that may think before: thoughts have a budget, and nothing else is demanded of them."""
        marks, budget = self.answers.thought_marks, params.thinking_token_budget
        if budget is not None and marks is None:
            raise RequestError(
                "thinking_token_budget is given, but nothing shows how this model marks its thoughts; leave it out, or "
                "name a reasoning_parser.",
                "thinking_token_budget",
            )
        if marks is None or (budget is None and (inner is None or thinks is False)):
            return inner
        if budget is not None and thinks is False:
            thinks = self.answers.thinks(prompt.text)
        return lambda: ThoughtRules(
            model.config.vocab_size,
            marks,
            thinks is True,
            thinks is None,
            budget,
            None if inner is None else inner(),
            model.eos_token_ids,
        )
