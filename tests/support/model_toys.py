"""Toy targets and draft models for drafters that run one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np
from toys import Context, LogitsOf, ToyBackend, ToyStorage, hashed_logits, run_all, toy_sequence

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView, SpeculationParams
from headstart.drafting.context import DraftContext, LoadedModel
from headstart.drafting.registry import create_drafter
from headstart.engine.engine import Engine
from headstart.engine.outputs import SequenceStats
from headstart.engine.schedule import Limits
from headstart.models.config import LayerConfig
from headstart.passes.batch import PassBatch, PassOutput
from headstart.passes.draft_tree import DraftTree
from headstart.passes.runner import ModelRunner, Span
from headstart.sampling.params import SamplingParams


class LayeredToy(ToyBackend):
    """A target of six layers whose first ones say something else."""

    def __init__(self, vocab_size: int, logits_of: LogitsOf, early: LogitsOf, max_positions: int = 4096) -> None:
        super().__init__(vocab_size, logits_of, max_positions)
        self.config = replace(self.config, layers=(LayerConfig(),) * 6)
        self.whole, self.early = logits_of, early
        self.depths_run: Counter[int | None] = Counter()
        """Layers of a pass -> passes."""
        self.lent: list[int] | None = None

    def forward(self, batch: PassBatch, storage: ToyStorage) -> PassOutput:
        self.depths_run[batch.num_layers] += 1
        self.logits_of = self.whole if batch.num_layers is None else self.early
        return super().forward(batch, storage)

    def with_layers(self, layers: Sequence[int]) -> ToyBackend:
        self.lent = list(layers)
        return ToyBackend(self.config.vocab_size, self.early, self.config.max_positions)

    def in_bits(self, bits: int | str, layers: int | None) -> ToyBackend:
        """Says what the first layers do, on the same storage."""
        return ToyBackend(self.config.vocab_size, self.early, self.config.max_positions)


class ToyTokenizer:
    """Knows its vocabulary by name only."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def compatible_with(self, other: ToyTokenizer) -> str | None:
        return None if self.name == other.name else f"token 7 is {self.name!r} in the first and {other.name!r} here"


def blurred(logits_of: LogitsOf, seed: int, scale: float) -> LogitsOf:
    """A model that resembles another one; the larger ``scale``, the less."""

    @lru_cache(1 << 14)
    def noise_after(seen: Context, vocab_size: int) -> np.ndarray:
        return np.random.default_rng([seed, 77, *seen]).normal(size=vocab_size) * scale

    def blurred_logits_of(context: Context) -> np.ndarray:
        logits = np.asarray(logits_of(context))
        return logits + noise_after(tuple(context[-3:]), len(logits))

    return blurred_logits_of


def memoised(logits_of: LogitsOf) -> LogitsOf:
    """The same, each context computed once."""
    known: dict[Context, np.ndarray] = {}

    def lookup(context: Context) -> np.ndarray:
        logits = known.get(context)
        if logits is None:
            logits = known[context] = logits_of(context)
        return logits

    return lookup


def model_context(target: ModelRunner, drafts: Mapping[str, ToyBackend]) -> DraftContext:
    """The surroundings of a drafter whose draft models are toys."""
    tokenizer = ToyTokenizer("toy")
    return DraftContext(
        vocab_size=target.backend.config.vocab_size,
        runner=target,
        tokenizer=tokenizer,
        load_model=lambda name: LoadedModel(drafts[name], tokenizer),
        lend_layers=target.backend.with_layers if isinstance(target.backend, LayeredToy) else None,
        lend_itself=target.backend.in_bits if isinstance(target.backend, LayeredToy) else None,
    )


def model_engine(
    target: ToyBackend,
    name: str,
    drafts: Mapping[str, ToyBackend] | None = None,
    *,
    limits: Limits | None = None,
    target_tokens: int = 4096,
    **options: object,
) -> Engine:
    """An engine with a drafter that runs a model."""
    runner = ModelRunner(target, target_tokens, block_size=8)
    drafter = create_drafter(name, model_context(runner, drafts or {}), **options)
    return Engine(runner, drafter, limits or Limits(max_context=target.config.max_positions))


@cache
def _contract_models(vocab_size: int) -> list[LogitsOf]:
    """A target's and three draft models' logits, computed once for all tests."""
    logits_of = hashed_logits(vocab_size, seed=3, order=2)
    return [memoised(model) for model in (logits_of, *(blurred(logits_of, i, 1.0) for i in range(3)))]


def greedy_texts(
    engine: Engine, prompts: Sequence[Sequence[int]], wishes: Sequence[SpeculationParams]
) -> list[list[int]]:
    """What an engine says to prompts, greedily, 6 to 30 tokens each, so that sequences end at different times."""
    sequences = [
        toy_sequence(
            engine,
            prompt,
            sequence_id=i,
            params=SamplingParams(temperature=0, max_tokens=6 + 7 * i % 25),
            speculation=wishes[i % len(wishes)],
        )
        for i, prompt in enumerate(prompts)
    ]
    return run_all(engine, sequences)


def coupled_texts(
    engine: Engine, prompts: Sequence[Sequence[int]], rule: VerifyRule = VerifyRule.COUPLED, **params: object
) -> tuple[list[list[int]], list[SequenceStats]]:
    """What an engine samples under a rule, 25 tokens for each prompt with its own seed, and the counts."""
    sequences = [
        toy_sequence(
            engine,
            prompt,
            sequence_id=i,
            params=replace(SamplingParams(max_tokens=25, seed=i), **params),
            speculation=SpeculationParams(verify=rule),
        )
        for i, prompt in enumerate(prompts)
    ]
    return run_all(engine, sequences), [sequence.stats for sequence in sequences]


def contract_context(vocab_size: int) -> DraftContext:
    """A target and the draft models that the contract suite's options name."""
    whole, small, other, early = _contract_models(vocab_size)
    drafts: dict[str, ToyBackend] = {
        "small": ToyBackend(vocab_size, small),
        "other": ToyBackend(vocab_size, other),
        "deep": LayeredToy(vocab_size, small, early),
    }
    target = LayeredToy(vocab_size, whole, early)
    return model_context(ModelRunner(target, cache_tokens=4096, block_size=8), drafts)


def with_target_cache(name: str, context: DraftContext, options: Mapping[str, object]) -> WithTargetCache:
    """A drafter for the contract suite."""
    return WithTargetCache(create_drafter(name, context, **options), context.require_runner())


class WithTargetCache:
    """A drafter with the engine's part for the target's cache, which the contract suite's toy target lacks."""

    def __init__(self, drafter: Drafter, runner: ModelRunner) -> None:
        self.needs = drafter.needs
        self.drafter = drafter
        self._runner = runner

    def begin(self, sequence: SequenceView) -> None:
        self.drafter.begin(sequence)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        for sequence in sequences:
            self._read(sequence)
        trees = self.drafter.propose(sequences, budgets)
        for sequence in sequences:
            assert self._runner.cache.length(sequence.id) == len(sequence.tokens) - 1
        return trees

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self.drafter.observe(outcomes)

    def end(self, sequence_id: int) -> None:
        self.drafter.end(sequence_id)
        if sequence_id in self._runner.cache:
            self._runner.cache.remove(sequence_id)

    def _read(self, sequence: SequenceView) -> None:
        target = self._runner.cache
        if sequence.id not in target:
            target.add(sequence.id)
        span = Span.chain(sequence.id, sequence.tokens[target.length(sequence.id) : -1])
        if len(span):
            with target.reserve({sequence.id: len(span)}):
                self._runner.forward([span])
                target.commit(sequence.id, range(len(span)))
