"""Draws of a server held against their laws: which laws, and how they are asked for."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from headstart_lab.audit.endpoint.answers import Answer, Listed, Position
from headstart_lab.audit.endpoint.client import Endpoint, FailedRequest, Refused
from headstart_lab.audit.endpoint.findings import Finding, Result, failed, not_offered
from headstart_lab.audit.endpoint.laws import (
    OTHER,
    Calibration,
    Cut,
    Transform,
    biased,
    joint_law,
    listed_tokens,
    min_p,
    top_k,
    top_p,
    two_samples,
    whole,
)
from headstart_lab.audit.endpoint.texts import together
from headstart_lab.audit.goodness import Goodness, g_test

T = TypeVar("T")
COIN = (
    "A coin was tossed many times: heads tails tails heads tails heads heads tails tails heads heads tails. Go on "
    "like this, with the words heads and tails alone."
)
"""What comes next is open, and yet looks like what came before: drafters that look texts up guess here."""
LONGEST = 4
"""Tokens of a text whose joint law is tested, at most."""
_MOST_UNKNOWN = 0.5
"""Of the texts: those whose probability other answers do not tell."""
_ALIEN = 1e-6
"""A p-value so small says that a field has no effect."""
WITNESS_TOKENS = 24
"""Tokens of a text whose draws are tested one by one."""
_TOPS = (20, 5)
"""Best tokens to ask for; the next where a server does not list so many."""
_COOL = 0.6
_MARGINS = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05)
"""Nats."""
_EXTENSIONS = ("top_k", "min_p")
"""Fields that OpenAI's own API does not have: a server that ignores them may never have offered them."""
TRANSFORMS = 7
"""Laws that are tested, at most."""


@dataclass
class LawChecks:
    """The law tests of a server.

    Args:
        against: another server of the same model, or none.
        prompts: for draws that are tested one by one, beside COIN.
        samples: short texts for each law.
        witnesses: longer texts with log-probabilities for each law.
        declared: request fields that the server says it has.
    """

    endpoint: Endpoint
    against: Endpoint | None
    prompts: Sequence[str]
    samples: int
    witnesses: int
    seed: int = 0
    declared: frozenset[str] = frozenset()
    _top: int = field(default=0, init=False)
    _listed: tuple[Listed, ...] = field(default=(), init=False)
    """What is listed in the first place of COIN's answers; empty: there are no log-probabilities."""

    async def run(self, on_law: Callable[[str], None] = lambda law: None) -> AsyncIterator[Finding]:
        """Everything, law by law.

        Raises:
            HeadstartError: a server failed.
        """
        transforms, missing = await self.prepare()
        for finding in missing:
            yield finding
        for transform in transforms:
            on_law(f"Law of {transform.name}")
            try:
                findings = await self.check(transform)
            except Refused as error:
                findings = [not_offered(f"law of {transform.name}", str(error))]
            except FailedRequest as error:
                yield failed(f"law of {transform.name}", 1, "requests", str(error))
                findings = []
                await self.endpoint.still_there()
            for finding in findings:
                yield finding

    async def prepare(self) -> tuple[list[Transform], list[Finding]]:
        """The transforms that can be tested, and what is not offered."""
        roots = await self._root()
        if roots is None:
            missing = [not_offered("laws by log-probabilities", "no answer has any")]
            if self.against is None:
                return [], missing
            transforms, others = await self._transforms({})
            return transforms, [*missing, *others]
        self._listed, ids = roots
        return await self._transforms(ids)

    async def _root(self) -> tuple[tuple[Listed, ...], dict[str, int]] | None:
        """What is listed in the first place of the law's prompt, and the ids of those tokens as far as they are told;
        None: no log-probabilities."""
        answer: Answer | None = None
        for self._top in _TOPS:
            try:
                answer = await self._one(temperature=1, top=self._top)
                break
            except Refused:
                continue
        if answer is None or not answer.first.positions:
            return None
        root: Position = answer.first.positions[0]
        listed = listed_tokens(root, self._top)
        ids = {each.key: int(each.key) for each in listed if each.key.isdigit() and each.key != each.text}
        if not ids:
            try:
                spelt = await self._one(temperature=1, top=self._top, return_tokens_as_token_ids=True)
            except Refused:
                spelt = None
            if spelt is not None and spelt.first.positions:
                numbered = listed_tokens(spelt.first.positions[0], self._top)
                ids = {
                    each.key: int(other.key)
                    for each, other in zip(listed, numbered, strict=False)
                    if other.key.isdigit() and abs(each.logprob - other.logprob) < 0.25
                }
        return listed, ids

    async def _one(self, **fields: Any) -> Answer:
        return await self.endpoint.ask(COIN, max_tokens=1, **fields)

    async def _transforms(self, ids: Mapping[str, int]) -> tuple[list[Transform], list[Finding]]:
        missing = []
        refused = {}
        for name in _EXTENSIONS:
            try:
                await self._one(temperature=1, **{name: 0})
            except Refused as error:
                refused[name] = str(error)
                missing.append(not_offered(f"law of {name}", str(error)))
        # Servers have defaults of their own, so what is not wanted is switched off.
        neutral: dict[str, Any] = {"temperature": 1, "top_p": 1}
        neutral |= {name: 0 for name in _EXTENSIONS if name not in refused}
        edge_p = _clearest(_halves(self._listed), top_p, self._listed)
        edge_min = _clearest(_ratios(self._listed), min_p, self._listed)
        kept = _clearest(range(2, 7), top_k, self._listed)
        found = [
            Transform("temperature 1", neutral, whole),
            Transform("temperature 1 without a seed", {**neutral, "seed": None}, whole),
            Transform(f"top_p {edge_p}", {**neutral, "top_p": edge_p}, top_p(edge_p)),
        ]
        if "top_k" not in refused:
            found.append(Transform(f"top_k {kept}", {**neutral, "top_k": kept}, top_k(kept)))
            cool = {**neutral, "top_k": kept, "temperature": _COOL}
            found.append(Transform(f"top_k {kept} at temperature {_COOL}", cool, top_k(kept, _COOL)))
        if "min_p" not in refused:
            found.append(Transform(f"min_p {edge_min}", {**neutral, "min_p": edge_min}, min_p(edge_min)))
        numbered = [each.key for each in self._listed if each.key in ids][:4]
        if len(numbered) < 3:
            missing.append(not_offered("law of logit_bias", "the server tells no token ids"))
            return found, missing
        # The best token made rarer, the next one likelier, the third one banned.
        bias = dict(zip(numbered, (-1.0, 1.0, -100.0), strict=False))
        told = {str(ids[key]): extra for key, extra in bias.items()}
        try:
            await self._one(temperature=1, logit_bias=told)
        except Refused as error:
            missing.append(not_offered("law of logit_bias", str(error)))
        else:
            found.append(Transform("logit_bias", {**neutral, "logit_bias": told}, biased(bias)))
        return found, missing

    async def check(self, transform: Transform) -> list[Finding]:
        """Draws one by one, short texts, and short texts of the other server."""
        findings: list[Finding] = []
        seeds = _seeds(self.seed, transform.name)
        witnesses: list[tuple[str, Answer]] = []
        if self._listed:
            witnesses = await self._witnesses(transform, seeds)
            seen = Calibration(transform, self._top)
            for _, answer in witnesses:
                seen.add(answer)
            said = f"{seen.impossible} draws of what has no probability" if seen.impossible else ""
            findings.append(self._judged("draws", transform, seen.draws, "draws", seen.goodness(), said))
        seeds = seeds[self.witnesses :]
        length, law = LONGEST, dict[str, float]()
        if witnesses:
            length, law = _telling([answer for text, answer in witnesses if text == COIN], transform, self._top)
        ours = await self._short_texts(self.endpoint, transform, seeds, length)
        if law:
            outcomes = [text if text in law else OTHER for text in ours]
            findings.append(self._judged("short texts", transform, len(ours), "texts", g_test(outcomes, law)))
        if self.against is not None:
            theirs = await self._short_texts(self.against, transform, seeds[self.samples :], length)
            goodness = two_samples(ours, theirs)
            both = "short texts of both servers"
            findings.append(self._judged(both, transform, len(ours) + len(theirs), "texts", goodness))
        return findings

    def _judged(
        self, check: str, transform: Transform, trials: int, unit: str, goodness: Goodness, said: str = ""
    ) -> Finding:
        """A law test. One that fails for a field that the server never declared is none of its promises."""
        check, name = f"{check}, {transform.name}", transform.name.split()[0]
        if name in _EXTENSIONS and name not in self.declared and goodness.p_value < _ALIEN:
            return not_offered(check, f"not declared, and without its effect (p = {goodness.p_value:.1e})")
        return Finding(check, trials, unit, Result.PASS, said, goodness)

    async def _witnesses(self, transform: Transform, seeds: Sequence[int]) -> list[tuple[str, Answer]]:
        """(prompt, answer with log-probabilities): half of them of the short texts' prompt, whose laws they tell."""
        prompts = [COIN, *self.prompts]
        asked = [COIN if i % 2 else prompts[i // 2 % len(prompts)] for i in range(self.witnesses)]
        work = [
            partial(self._draw, self.endpoint, transform, seed, text, WITNESS_TOKENS, self._top)
            for text, seed in zip(asked, seeds, strict=False)
        ]
        return list(zip(asked, await together(work, self.endpoint.concurrency), strict=True))

    async def _short_texts(
        self, endpoint: Endpoint, transform: Transform, seeds: Sequence[int], length: int
    ) -> list[str]:
        work = [partial(self._draw, endpoint, transform, seed, COIN, length, None) for seed in seeds[: self.samples]]
        return [answer.text.strip() for answer in await together(work, endpoint.concurrency)]

    async def _draw(
        self, endpoint: Endpoint, transform: Transform, seed: int, prompt: str, max_tokens: int, top: int | None
    ) -> Answer:
        fields = {"seed": seed, **transform.fields, "max_tokens": max_tokens, "top": top}
        return await endpoint.draw(prompt, **fields)


def _telling(witnesses: Sequence[Answer], transform: Transform, asked: int) -> tuple[int, dict[str, float]]:
    """The greatest length of texts whose joint law is known for the most part, and the law; else the best known one."""
    laws = {length: joint_law(transform, witnesses, asked, length) for length in range(LONGEST, 0, -1)}
    known = [length for length, law in laws.items() if law[OTHER] <= _MOST_UNKNOWN]
    best = known[0] if known else min(laws, key=lambda length: laws[length][OTHER])
    return best, laws[best]


def _clearest(candidates: Sequence[T], cut: Callable[[T], Cut], listed: Sequence[Listed]) -> T:
    """The parameter whose law in the first place rounding is least able to change."""

    def clearness(candidate: T) -> tuple[float, int]:
        margins = [margin for margin in _MARGINS if cut(candidate)(listed, margin) is not None] if listed else []
        law = cut(candidate)(listed, margins[0]) if margins else None
        return (margins[0] if law and sum(chance > 0 for chance in law.values()) > 1 else 0.0), len(law or ())

    return max(candidates, key=clearness)


def _halves(listed: Sequence[Listed]) -> list[float]:
    """Probabilities half-way through each token: top_p at one of them keeps that token and no more."""
    reached, halves = 0.0, [0.5]
    for each in listed:
        halves.append(round(reached + math.exp(each.logprob) / 2, 4))
        reached += math.exp(each.logprob)
    return [half for half in halves if 0.2 < half < 0.98] or [0.5]


def _ratios(listed: Sequence[Listed]) -> list[float]:
    """Shares of the best token's probability half-way between neighbours."""
    pairs = pairwise(each.logprob - listed[0].logprob for each in listed)
    return [round(math.exp((one + other) / 2), 4) for one, other in pairs if one + other > -8] or [0.1]


def _seeds(seed: int, name: str) -> list[int]:
    """Seeds of requests, far from each other, and others for each law."""
    generator = np.random.default_rng([seed, *name.encode()])
    seeds: list[int] = generator.integers(1, 2**31 - 1, size=100_000).tolist()
    return seeds
