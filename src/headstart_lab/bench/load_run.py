"""A server under several loads, with speculation and without, in one sitting."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headstart.errors import HeadstartError
from headstart_lab.bench.load import Answered, Client, Load, send

OFF = "off"
"""The mode without speculation, which every other one is compared with."""


@dataclass(frozen=True)
class LoadRun:
    """All requests of one mode under one load, once."""

    mode: str
    load: Load
    repeat: int
    answers: tuple[Answered, ...]

    @property
    def served(self) -> list[Answered]:
        return [answered for answered in self.answers if answered.error is None]

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the time from the first request sent to the last answer's end."""
        served = self.served
        if not served:
            return 0.0
        began = min(answered.sent for answered in self.answers)
        return sum(answered.tokens for answered in served) / (max(answered.last for answered in served) - began)


@dataclass(frozen=True)
class LoadSitting:
    """The same questions under every load, once with speculation and once without, one right after the other."""

    client: Client
    questions: Sequence[str]
    drafter: str
    requests: int
    """Of each run; after the last question comes the first again."""
    fields: Mapping[str, Any]
    """Further fields of every request."""
    seed: int = 0
    """Of arrivals."""
    answers: dict[str, str] = field(default_factory=dict)
    """Question -> its answer, which is sent along as a prediction."""

    @property
    def modes(self) -> dict[str, dict[str, Any]]:
        """Name -> ``speculation`` of its requests."""
        return {self.drafter: {"drafter": self.drafter}, OFF: {"off": True}}

    def warm_up(self) -> None:
        """One answer of each mode, not measured.

        Raises:
            HeadstartError: the server does not answer.
        """
        for mode in self.modes:
            answered = self.client.ask(self.bodies(mode, "warm-up")[0], time.perf_counter())
            if answered.error is not None:
                raise HeadstartError(f"the server does not answer: {answered.error}")

    def learn_answers(self) -> None:
        """Ask every question once without speculation, unmeasured; the answers are what requests predict from now on.

        A question that is not answered has no prediction; its measured requests will say why.
        """
        for question, body in zip(self.questions, self.bodies(OFF, "answers", len(self.questions)), strict=True):
            answered = self.client.ask(body, time.perf_counter())
            if answered.error is None:
                self.answers[question] = answered.text

    def run(
        self,
        loads: Sequence[Load],
        repeats: int,
        on_answer: Callable[[Answered], None],
        runs: list[LoadRun] | None = None,
    ) -> list[LoadRun]:
        """Every load in both modes, ``repeats`` times; ``on_answer`` is called for each request.

        ``runs``: an empty list, to which both modes of a load are added at once: what an interruption leaves in it can
        be compared.
        """
        runs = [] if runs is None else runs
        for repeat in range(repeats):
            for place, load in enumerate(loads):
                # Which mode goes first alternates, so that neither always finds the machine as the other left it.
                first_is_off = (repeat + place) % 2 == 1
                pair = []
                for mode in sorted(self.modes, key=lambda mode: (mode == OFF) != first_is_off):
                    bodies = self.bodies(mode, f"{repeat} {load.name}")
                    answers = send(self.client, bodies, load, self.seed + repeat, on_answer)
                    pair.append(LoadRun(mode, load, repeat, tuple(answers)))
                runs += pair[::-1] if first_is_off else pair
        return runs

    def bodies(self, mode: str, run: str, count: int | None = None) -> list[dict[str, Any]]:
        """The requests of one run. No run shares cached prefixes, or what drafters learnt, with another.

        ``count``: of them; None: ``requests``.
        """
        common = {
            **self.fields,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculation": self.modes[mode],
            "cache_salt": f"bench {time.time_ns()} {mode} {run}",
        }
        asked = [self.questions[i % len(self.questions)] for i in range(self.requests if count is None else count)]
        return [
            common | {"messages": [{"role": "user", "content": question}], **self._predicted(mode, question)}
            for question in asked
        ]

    def _predicted(self, mode: str, question: str) -> dict[str, Any]:
        if mode == OFF or not self.answers.get(question):
            return {}
        return {"prediction": {"type": "content", "content": self.answers[question]}}
