"""Checkers that the rules' tests and the mutants' test share: the oracle's, and one that samples real noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np
import torch
from scipy import stats

from headstart.sampling.noise import SequenceNoise, Stream, _exponentials, philox4x32_array
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import TokenHistory, Transforms
from headstart.verification.base import VerifyRule
from headstart.verification.cases import Case
from headstart.verification.oracle import Model, Propose, Tokens, largest_error, output_law, product_law, run_round
from headstart.verification.verify import verify as production_verify

TOLERANCE = 1e-12
PROMPT = (3, 1, 3)


def oracle_error(case: Case, rule: VerifyRule, *, rounds: int = 1, verify=production_verify) -> float:
    """The largest error of a probability in the output's law."""
    law = output_law(case.target, case.propose, case.length, rounds=rounds, rule=rule, verify=verify)
    return largest_error(law.probs, product_law(case.target, case.length))


class TrialNoise(SequenceNoise):
    """The noise of seeds 0, 1, ... ``trials`` - 1, computed for all of them at once; ``trial`` answers."""

    def __init__(self, trials: int) -> None:
        super().__init__(seed=0)
        self.trial = 0
        self._keys = np.arange(trials, dtype=np.uint64)
        self._uniforms: dict[tuple, list[float]] = {}
        self._rows: dict[tuple, np.ndarray] = {}

    def uniform(self, stream: Stream, root: int, index: int) -> float:
        numbers = self._uniforms.get((stream, root, index))
        if numbers is None:
            counter = (0, root, self.sample, self._tag(stream, index) | 1 << 31)
            words = philox4x32_array(counter, (self._keys, 0))[:, 0]
            numbers = self._uniforms[stream, root, index] = ((words + 0.5) / 2**32).tolist()
        return numbers[self.trial]

    def _row(self, stream, position, index, vocab_size, ids):
        rows = self._rows.get((stream, position, index, vocab_size))
        if rows is None:
            blocks = np.arange(-(-vocab_size // 4), dtype=np.uint64)[None]
            words = philox4x32_array(
                (blocks, position, self.sample, self._tag(stream, index)), (self._keys[:, None], 0)
            )
            rows = _exponentials(words).reshape(len(self._keys), -1)[:, :vocab_size]
            self._rows[stream, position, index, vocab_size] = rows
        row = rows[self.trial]
        return row.copy() if ids is None else row[ids]


def sampled_outputs(
    target: Model, propose: Propose, length: int, noise: TrialNoise, trials: int, **options
) -> list[Tokens]:
    """The first ``length`` tokens of each trial: as many rounds as it takes."""
    outputs = []
    for noise.trial in range(trials):
        tokens: Tokens = ()
        while len(tokens) < length:
            tokens += run_round(target, propose, noise, tokens, **options)
        outputs.append(tokens[:length])
    return outputs


def goodness(outputs: Sequence[Tokens], law: dict[Tokens, float]) -> float:
    """p-value of a G-test, cells expected fewer than five times merged; 0 where something impossible was said."""
    counts = Counter(outputs)
    if any(law.get(tokens, 0.0) == 0 for tokens in counts):
        return 0.0
    expected = np.array([law[tokens] for tokens in law]) * len(outputs)
    observed = np.array([counts[tokens] for tokens in law], dtype=float)
    large = expected >= 5
    if not large.all():
        expected = np.append(expected[large], expected[~large].sum())
        observed = np.append(observed[large], observed[~large].sum())
        if expected[-1] < 5:
            smallest = expected[:-1].argmin()
            expected[smallest] += expected[-1]
            observed[smallest] += observed[-1]
            expected, observed = expected[:-1], observed[:-1]
    if len(expected) < 2:
        return 1.0
    return float(stats.power_divergence(observed, expected, lambda_="log-likelihood").pvalue)


def total_variation(outputs: Sequence[Tokens], law: dict[Tokens, float]) -> float:
    counts = Counter(outputs)
    return 0.5 * sum(abs(counts[tokens] / len(outputs) - law.get(tokens, 0.0)) for tokens in law.keys() | counts.keys())


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
        generator = np.random.default_rng([seed, *tokens])
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
