"""Checkers that the rules' tests and the mutants' test share: the oracle's, and one that samples real noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import TypeVar

import numpy as np
import torch
from scipy import stats

from headstart.common.enumerations import VerifyRule
from headstart.sampling.history import TokenHistory
from headstart.sampling.noise import SequenceNoise, Stream, philox4x32_array
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms
from headstart.verification.verify import verify as production_verify
from headstart_lab.audit.cases import Case, draft_guesses
from headstart_lab.audit.oracle import (
    ComparedUniform,
    Model,
    Propose,
    Tokens,
    largest_error,
    output_law,
    product_law,
    run_round,
)

T = TypeVar("T")
TOLERANCE = 1e-12
PROMPT = (3, 1, 3)


def oracle_error(case: Case, rule: VerifyRule, *, rounds: int = 1, verify=production_verify) -> float:
    """The largest error of a probability in the output's law."""
    law = output_law(case.target, case.propose, case.length, rounds=rounds, rule=rule, verify=verify)
    return largest_error(law.probs, product_law(case.target, case.length))


class CrowdNoise(SequenceNoise):
    """The noise of many seeds at once. Trials that decide alike share one run of the production code.

    ``run_all`` replays a function: at its first open decision the trials part by what their own noise says, and each
    party goes on by itself. Every trial gets what ``SequenceNoise`` with its seed would have given it.
    """

    def __init__(self, sample: int = 0) -> None:
        super().__init__(0, sample)

    def run_all(self, run: Callable[[SequenceNoise], T], seeds: np.ndarray) -> Iterator[tuple[np.ndarray, T]]:
        """(seeds, result) for every party."""
        waiting: list[tuple[np.ndarray, list]] = [(seeds, [])]
        while waiting:
            self._seeds, self._decisions = waiting.pop()
            self._waiting, self._step = waiting, 0
            result = run(self)
            yield self._seeds, result

    def uniform(self, stream: Stream, root: int, index: int) -> float:
        return ComparedUniform(self, (stream, root, index))

    def below(self, key, threshold: float) -> bool:
        return self._decide(lambda: self.uniforms(*key) < threshold)

    def draw_distinct(self, stream: Stream, root: int, index: int, weights: torch.Tensor, count: int) -> list[int]:
        count = min(count, int((weights > 0).sum()))
        return list(self._decide(lambda: self._race(stream, root, index, weights.numpy(), count)))

    def draw_at(self, position: int, vocab_size: int, weights, ids=None) -> int:
        winner = self._decide(lambda: self._race(Stream.TARGET, position, 0, weights, 1))[0]
        return winner if ids is None else int(ids[winner])

    def uniforms(self, stream: Stream, root: int, index: int) -> np.ndarray:
        words = philox4x32_array((0, root, self.sample, self._tag(stream, index) | 1 << 31), (self._seeds, 0))
        return (words[:, 0] + 0.5) / 2**32

    def rows(self, stream: Stream, position: int, index: int, vocab_size: int) -> np.ndarray:
        blocks = np.arange(-(-vocab_size // 4), dtype=np.uint64)[None]
        counter = (blocks, position, self.sample, self._tag(stream, index))
        rows = np.empty((len(self._seeds), 4 * blocks.size))
        for start in range(0, len(rows), 4096):  # pieces that stay in the processor's cache
            part = slice(start, start + 4096)
            words = philox4x32_array(counter, (self._seeds[part, None], 0))
            rows[part] = -np.log((words + 0.5) / 2**32).reshape(words.shape[0], -1)
        return rows[:, :vocab_size]

    def _race(self, stream: Stream, position: int, index: int, weights: np.ndarray, count: int) -> np.ndarray:
        with np.errstate(divide="ignore"):
            ratios = self.rows(stream, position, index, len(weights)) / weights
        return ratios.argmin(axis=1)[:, None] if count == 1 else ratios.argsort(axis=1)[:, :count]

    def _decide(self, decide: Callable[[], np.ndarray]):
        if self._step == len(self._decisions):
            outcomes = decide()
            seeds, self._seeds = self._seeds, self._seeds[:0]
            for outcome in _distinct(outcomes):
                party = seeds[(outcomes == outcome).reshape(len(seeds), -1).all(axis=1)]
                if len(self._seeds):
                    self._waiting.append((party, [*self._decisions[:-1], outcome.tolist()]))
                else:
                    self._seeds = party
                    self._decisions.append(outcome.tolist())
        self._step += 1
        return self._decisions[self._step - 1]


def _distinct(outcomes: np.ndarray) -> np.ndarray:
    """The different rows; sorting whole rows is slow where they hold one number."""
    if outcomes.ndim == 1 or outcomes.shape[1] > 1:
        return np.unique(outcomes, axis=0)
    return np.unique(outcomes)[:, None]


def sampled_outputs(
    target: Model,
    propose: Propose,
    length: int,
    trials: int,
    *,
    noise: CrowdNoise | None = None,
    rounds: int | None = None,
    **options,
) -> np.ndarray:
    """[seed, length] the first tokens of each trial: as many rounds as it takes, plain ones after ``rounds``."""
    noise = noise or CrowdNoise()
    outputs = np.zeros((trials, length), dtype=np.int64)
    reached: dict[Tokens, list[np.ndarray]] = {(): [np.arange(trials, dtype=np.uint64)]}
    number = 0
    while reached:
        before, reached = reached, {}
        drafter = propose if rounds is None or number < rounds else draft_guesses()
        for tokens, parties in before.items():
            for seeds, said in noise.run_all(
                partial(_round, target, drafter, tokens, options), np.concatenate(parties)
            ):
                after = (tokens + said)[:length]
                if len(after) == length:
                    outputs[seeds] = after
                else:
                    reached.setdefault(after, []).append(seeds)
        number += 1
    return outputs


def _round(target: Model, propose: Propose, tokens: Tokens, options: dict, noise: SequenceNoise) -> Tokens:
    return run_round(target, propose, noise, tokens, **options)


def counted(outputs: np.ndarray) -> dict[Tokens, int]:
    """Sequence -> how often it was said."""
    base = int(outputs.max()) + 1
    codes, counts = np.unique(outputs @ base ** np.arange(outputs.shape[1]), return_counts=True)
    sequences = codes[:, None] // base ** np.arange(outputs.shape[1]) % base
    return {tuple(tokens): count for tokens, count in zip(sequences.tolist(), counts.tolist(), strict=True)}


def goodness(outputs: np.ndarray, law: dict[Tokens, float]) -> float:
    """p-value of a G-test, cells expected fewer than five times merged; 0 where something impossible was said."""
    counts = counted(outputs)
    if any(law.get(tokens, 0.0) == 0 for tokens in counts):
        return 0.0
    expected = np.array(list(law.values())) * len(outputs)
    observed = np.array([counts.get(tokens, 0) for tokens in law], dtype=float)
    ascending = expected.argsort()
    merged = max(
        int(np.searchsorted(expected[ascending], 5)), int(np.searchsorted(expected[ascending].cumsum(), 5) + 1)
    )
    if merged > 1:
        rare, common = ascending[:merged], ascending[merged:]
        expected = np.append(expected[common], expected[rare].sum())
        observed = np.append(observed[common], observed[rare].sum())
    if len(expected) < 2:
        return 1.0
    return float(stats.power_divergence(observed, expected * (observed.sum() / expected.sum()), lambda_=0).pvalue)


def total_variation(outputs: np.ndarray, law: dict[Tokens, float]) -> float:
    counts = counted(outputs)
    return 0.5 * sum(
        abs(counts.get(tokens, 0) / len(outputs) - law.get(tokens, 0.0)) for tokens in law.keys() | counts.keys()
    )


def holm_rejects(p_values: Iterable[float], family_wise: float) -> bool:
    """Whether Holm's procedure rejects any hypothesis: its first step decides that."""
    p_values = list(p_values)
    return min(p_values) * len(p_values) < family_wise


def marginal(law: dict[Tokens, float], position: int) -> dict[Tokens, float]:
    out: Counter = Counter()
    for tokens, probability in law.items():
        out[tokens[position : position + 1]] += probability
    return dict(out)


Logits = Callable[[Tokens], torch.Tensor]


def random_logits(vocab_size: int, seed: int, scale: float = 1.5) -> Logits:
    """Logits drawn for every prefix."""

    @cache
    def logits(tokens: Tokens) -> torch.Tensor:
        generator = np.random.default_rng([seed, len(tokens), *tokens])
        return torch.from_numpy(generator.normal(scale=scale, size=vocab_size).astype(np.float32))

    return logits


def path_model(logits: Logits, vocab_size: int, params: SamplingParams) -> Model:
    """The transformed law, all tokens so far given as the path to a node."""
    transforms, history = Transforms(params, vocab_size, (0,)), TokenHistory(PROMPT)
    return cache(lambda tokens: transforms.law(logits(tokens), history.along(tokens)))


def committed_model(logits: Logits, vocab_size: int, params: SamplingParams) -> Model:
    """The transformed law, all tokens so far committed: plain decoding."""
    transforms = Transforms(params, vocab_size, (0,))
    return cache(lambda tokens: transforms.law(logits(tokens), TokenHistory(PROMPT, tokens).along()))
