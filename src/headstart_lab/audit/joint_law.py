"""The law of short texts drawn with speculation, against the law computed by plain passes.

Allowing a dozen tokens only makes all texts of two or three tokens countable, so that their joint law is known exactly
for a real model: one plain step for each beginning. What speculation draws is held against it by a G-test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SpeculationParams
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms
from headstart_lab.audit.goodness import Goodness, g_test
from headstart_lab.workbench import Contender, Workbench

Text = tuple[int, ...]
PROMPT = "red blue red green blue red blue yellow red blue red green red blue"
"""Repeats itself, so that drafters that look for repetitions have something to guess."""
_FROM_PROMPT = 8


@dataclass(frozen=True)
class JointLaw:
    """The texts of a given length over some tokens after one prompt, each with its probability."""

    prompt: tuple[int, ...]
    params: SamplingParams
    probabilities: dict[Text, float]


@dataclass(frozen=True)
class LawFindings:
    """What one drafter's samples under one rule have shown."""

    drafter: str
    rule: str
    goodness: Goodness
    drafted: int
    accepted: int
    drawn: bool
    """Guesses were drawn at random; else the target alone has drawn."""


def choose_tokens(bench: Workbench, prompt: Sequence[int], count: int, avoid: Collection[int] = ()) -> list[int]:
    """``count`` tokens: the prompt's most frequent ones, and the target's likeliest after it.

    Fewer where the vocabulary has no more.
    """
    (logits,) = bench.steps_after(prompt, [()])
    likely = logits.argsort(descending=True, stable=True).tolist()
    frequent = [token for token, _ in Counter(prompt).most_common()]
    candidates = [token for token in dict.fromkeys(frequent[:_FROM_PROMPT] + likely) if token not in avoid]
    return sorted(candidates[:count])


def compute_law(bench: Workbench, prompt: Sequence[int], tokens: Sequence[int], length: int, seed: int) -> JointLaw:
    """The law at temperature 1, by one plain step after each shorter text: sum of len(tokens)**i passes, i < length."""
    params = SamplingParams(
        temperature=1.0, allowed_token_ids=tuple(tokens), max_tokens=length, ignore_eos=True, seed=seed
    )
    transforms = Transforms(params, bench.backend.config.vocab_size, bench.eos_token_ids, bench.backend.kit.rows)
    probabilities: dict[Text, float] = {(): 1.0}
    for depth in range(length):
        beginnings: list[Text] = list(product(tokens, repeat=depth))
        longer: dict[Text, float] = {}
        for beginning, logits in zip(beginnings, bench.steps_after(prompt, beginnings), strict=True):
            law = transforms.law(logits)
            for token in tokens:
                longer[*beginning, token] = probabilities[beginning] * float(law[token])
        probabilities = longer
    return JointLaw(tuple(prompt), params, probabilities)


def check_law(bench: Workbench, contender: Contender, law: JointLaw, samples: int) -> list[LawFindings]:
    """Draw texts with speculation and hold them against the law; drafters that draw, under both families of rules.

    Raises:
        ConfigError, CheckpointError: the drafter cannot be built.
        RequestError: a sequence failed.
    """
    findings = [_check(bench, contender, law, samples, VerifyRule.AUTO)]
    if findings[0].drawn:
        findings.append(_check(bench, contender, law, samples, VerifyRule.REJECTION))
    return findings


def _check(bench: Workbench, contender: Contender, law: JointLaw, samples: int, rule: VerifyRule) -> LawFindings:
    engine = bench.open(contender)
    # Each rule has noise of its own.
    params = replace(law.params, seed=(law.params.seed or 0) + list(VerifyRule).index(rule))
    speculation = SpeculationParams(verify=rule)
    sequences = [bench.sequence(law.prompt, params, speculation, sample) for sample in range(samples)]
    bench.decode(engine, *sequences)
    return LawFindings(
        contender.name,
        rule.value,
        g_test([tuple(sequence.output) for sequence in sequences], law.probabilities),
        drafted=sum(sequence.stats.drafted for sequence in sequences),
        accepted=sum(sequence.stats.accepted for sequence in sequences),
        drawn=any(sequence.stats.sampled_rounds for sequence in sequences),
    )
