"""An audit of a server: what is asked, in which order, and how much of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from headstart.errors import ConfigError, HeadstartError
from headstart_lab.audit.endpoint.answers import CHAT, COMPLETIONS
from headstart_lab.audit.endpoint.client import Endpoint, FailedRequest, Refused
from headstart_lab.audit.endpoint.draws import TRANSFORMS, LawChecks
from headstart_lab.audit.endpoint.findings import EndpointAudit, Finding, failed, not_offered
from headstart_lab.audit.endpoint.forms import check_grammar, check_logprobs, check_tools
from headstart_lab.audit.endpoint.texts import (
    Greedy,
    check_against,
    check_counts,
    check_ends,
    check_greedy,
    check_samples,
    check_seeds,
    check_stops,
    check_streams,
)

_PER_PROMPT = 34
"""Requests for texts of each prompt, at most, and of every further server."""
LEAST_SAMPLES = 40


@dataclass(frozen=True)
class EndpointSettings:
    """How much is asked."""

    max_tokens: int = 48
    """Of each compared text."""
    samples: int = 300
    """Short texts drawn for each law."""
    budget: int | None = None
    """Requests at most, to all servers together: fewer texts are drawn so that they are enough."""
    seed: int = 0

    def witnesses(self) -> int:
        """Longer texts with log-probabilities that are drawn for each law."""
        return max(self.samples // 4, 16)

    def planned(self, prompts: int, servers: int) -> int:
        """Requests that an audit takes, at most."""
        laws = TRANSFORMS * (servers * self.samples + self.witnesses()) + self.samples if self.samples else 0
        return servers * prompts * _PER_PROMPT + laws + 16

    def fitted(self, prompts: int, servers: int) -> tuple[EndpointSettings, int]:
        """What the budget allows, and of how many of the prompts: first fewer samples are drawn, then fewer prompts are
        asked, and where one is too many nothing is drawn, and as many are asked as there is room for.

        Raises:
            ConfigError: the budget is too small for one prompt.
        """
        if self.budget is None:
            return self, prompts
        for fewest in (prompts, *range(prompts - 1, 0, -1)):
            fitted = self._with_fewer_samples(fewest, servers)
            if fitted.planned(fewest, servers) <= self.budget:
                return fitted, fewest
        without = replace(self, samples=0)
        room = (self.budget - without.planned(0, servers)) // (servers * _PER_PROMPT)
        if room < 1:
            raise ConfigError(
                f"--budget is {self.budget}; to compare the texts of one prompt takes {without.planned(1, servers)} "
                "requests. Allow them."
            )
        return without, min(room, prompts)

    def _with_fewer_samples(self, prompts: int, servers: int) -> EndpointSettings:
        assert self.budget is not None
        samples = self.samples
        while samples > LEAST_SAMPLES and replace(self, samples=samples).planned(prompts, servers) > self.budget:
            samples = max(LEAST_SAMPLES, samples - max(samples // 20, 1))
        return replace(self, samples=samples)


@dataclass
class EndpointRun:
    """One audit under way; ``audit`` keeps what was found, whatever happens."""

    endpoint: Endpoint
    against: Endpoint | None
    prompts: Sequence[str]
    settings: EndpointSettings
    required: frozenset[str] = frozenset()
    """Fields that the server is known to offer, beside those that it declares."""
    on_check: Callable[[str], None] = lambda check: None
    audit: EndpointAudit = field(init=False)

    def __post_init__(self) -> None:
        against = None if self.against is None else self.against.url
        self.audit = EndpointAudit(self.endpoint.url, self.endpoint.model or "", against)

    async def run(self) -> EndpointAudit:
        """Ask everything.

        Raises:
            HeadstartError: before anything was found, a server cannot be reached, lets nobody in, fails, or does not
                speak the OpenAI API.
        """
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self.endpoint.connected())
                if self.against is not None:
                    await stack.enter_async_context(self.against.connected())
                self.audit.model = self.endpoint.model or ""
                await self._run()
            except HeadstartError as error:
                if not self.audit.findings:
                    raise
                self.audit.ended, self.audit.cut_short = str(error), True
            finally:
                self.audit.requests = self.asked
        return self.audit

    @property
    def asked(self) -> int:
        """Requests so far, to all servers."""
        return self.endpoint.asked + (self.against.asked if self.against else 0)

    async def _run(self) -> None:
        greedy = Greedy(self.endpoint, self.prompts, self.settings.max_tokens)
        others = None if self.against is None else Greedy(self.against, self.prompts, self.settings.max_tokens)
        self.on_check("Greedy texts")
        await _begin(greedy)
        await self._judge("greedy texts", check_greedy(greedy))
        await self._judge("greedy texts, streamed", _one(check_streams(greedy)))
        if others is not None:
            await _begin(others)
            await self._judge("greedy texts of both servers", _one(check_against(greedy, others)))
        self.on_check("Log-probabilities")
        await self._judge("log-probabilities", check_logprobs(greedy, others))
        self.on_check("Ends and stops")
        await self._judge("texts that end by themselves", _one(check_ends(greedy)))
        await self._judge("stop strings", check_stops(greedy))
        self.on_check("Samples and seeds")
        await self._judge("n", check_samples(greedy))
        await self._judge("seeds", check_seeds(greedy, others))
        await self._judge("usage", check_counts(greedy))
        self.on_check("Forms")
        await self._judge("response_format", check_grammar(greedy))
        await self._judge("tool calls", check_tools(greedy))
        if self.settings.samples:
            self.on_check("Laws")
            await self._judge("laws", self._laws())

    async def _laws(self) -> Sequence[Finding]:
        """Kept one by one, since they take long."""
        declared = self.required | await declared_fields(self.endpoint)
        size = self.settings.samples, self.settings.witnesses(), self.settings.seed
        laws = LawChecks(self.endpoint, self.against, self.prompts, *size, declared)
        async for finding in laws.run(self.on_check):
            self.audit.findings.append(finding)
        return ()

    async def _judge(self, check: str, judged: Awaitable[Iterable[Finding]]) -> None:
        """Keep what a check finds; if the server refuses or fails at one of its requests, that is what it finds.

        Raises:
            HeadstartError: the server is gone.
        """
        try:
            self.audit.findings += await judged
        except Refused as error:
            self.audit.findings.append(not_offered(check, str(error)))
        except FailedRequest as error:
            self.audit.findings.append(failed(check, 1, "requests", str(error)))
            await self.endpoint.still_there()


async def _begin(greedy: Greedy) -> None:
    try:
        await greedy.begin()
    except Refused as error:
        other = COMPLETIONS if greedy.endpoint.api == CHAT else CHAT
        raise HeadstartError(
            f"{greedy.endpoint.url} refuses what every server must answer ({error}); give shorter prompts, another "
            f"--model, or --api {other}."
        ) from error


async def _one(judged: Awaitable[Finding]) -> list[Finding]:
    return [await judged]


async def declared_fields(endpoint: Endpoint) -> frozenset[str]:
    """Names of request fields that a server declares: in its OpenAPI document, or in llama.cpp's ``/props``."""
    names: set[str] = set()
    for schema in _inside(await endpoint.look("/openapi.json"), "components", "schemas").values():
        properties = _inside(schema, "properties")
        if {"temperature", "top_p"} <= properties.keys():
            names.update(properties)
    settings = _inside(await endpoint.look("/props"), "default_generation_settings")
    return frozenset(names.union(settings, _inside(settings, "params")))


def _inside(value: Any, *names: str) -> dict[str, Any]:
    """The object that lies in objects of these names; empty: there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
