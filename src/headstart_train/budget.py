"""How the time of a training is shared: between text that is written, and steps that learn from it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from headstart.backends.torch.device import finish
from headstart_train.objectives.objective import Objective
from headstart_train.optimiser import Optimiser
from headstart_train.progressing import Progressing
from headstart_train.states import StateSource
from headstart_train.text.packs import Pack
from headstart_train.text.text import TextSource
from headstart_train.trainer import TrainSettings

BUDGET_FILE = "budget.json"
ENOUGH_TOKENS = 300_000
"""Of answers: what the EAGLE-3 head that ships had read when it began to pay (``heads/README.md``)."""
_FEWEST_DOCUMENTS = 24
"""Whatever the time: of fewer none is held out."""
_LOOK_SECONDS = 20.0
"""From one look at the clock to the next, while text is written."""
_SPARED = 0.9
"""Part of the time that is planned: the rest is for measurements of acceptance, and for being wrong."""


@dataclass(frozen=True)
class Costs:
    """What a training takes on this machine, in seconds."""

    writing: float
    """A token of an answer."""
    tokens: float
    """Tokens of text, prompts counted in, to one of answers."""
    reading: float
    """A token of text, by the target, for its states: once."""
    learning: float
    """A token of text, by the head, in each pass over it."""
    stepping: float
    """An optimiser's step, for each token of text that it learns from."""

    def learning_from(self, answers: float, passes: float) -> float:
        """Seconds to learn from so many tokens of answers."""
        return answers * self.tokens * (self.reading + passes * (self.learning + self.stepping))

    def answers_within(self, seconds: float, written: int, passes: float) -> int:
        """Tokens of answers that can be written, beside those that are, and learnt from."""
        each = self.writing + self.learning_from(1, passes)
        return max(int((seconds + written * self.writing) / each), 0)

    def all_of(self, answers: int, written: int, passes: float) -> float:
        """Seconds to write what is missing of so many tokens of answers, and to learn from all."""
        return max(answers - written, 0) * self.writing + self.learning_from(answers, passes)


class Budget:
    """Time over all runs of a training; what steps take is counted by their trainer.

    Args:
        minutes: for everything; None: no limit.
        out: the head's directory, which keeps what was spent.
    """

    def __init__(self, minutes: float | None, out: Path) -> None:
        self._minutes = math.inf if minutes is None else minutes
        self._path = out / BUDGET_FILE
        self._began: float | None = time.perf_counter()
        kept = _kept(self._path)
        self._before: float = kept.get("seconds", 0.0)
        self._costs: Costs | None = Costs(**kept["costs"]) if kept.get("costs") else None
        self._written: int = kept.get("written", 0)

    @property
    def seconds(self) -> float:
        """Spent, but for steps; from ``end_text`` on it stands still."""
        return self._before + (0.0 if self._began is None else time.perf_counter() - self._began)

    @property
    def left(self) -> float:
        """Seconds; infinite where there is no limit."""
        return max(60 * self._minutes - self.seconds, 0.0)

    def keep(self) -> None:
        """Remember what was spent, lest a kill give it back."""
        record = {
            "seconds": self.seconds,
            "costs": None if self._costs is None else asdict(self._costs),
            "written": self._written,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(record) + "\n", encoding="utf-8")

    def end_text(self, costs: Costs | None, written: int = 0) -> None:
        """From now on the trainer counts."""
        self._costs, self._written = costs or self._costs, written or self._written
        self._before, self._began = self.seconds, None
        self.keep()

    def enough_minutes(self, passes: float) -> float | None:
        """About how long a training on enough text takes, the text that is there reused; None: unknown."""
        if self._costs is None:
            return None
        return self._costs.all_of(max(ENOUGH_TOKENS, self._written), self._written, passes) / 60


def write_fitting(
    source: TextSource,
    budget: Budget,
    settings: TrainSettings,
    length: int,
    try_steps: Callable[[], tuple[float, float, float] | None],
    told: Progressing,
) -> Costs | None:
    """Write as much text as the settings ask for, or as can be learnt from in the time that there is; say beforehand
    how long everything will take.

    Args:
        length: tokens of a pack.
        try_steps: seconds to read, to learn and to step, a token of text; None: there is no text to try it on.

    Returns:
        What writing and learning take; None: not known.
    """
    corpus, wanted = source.corpus, source.settings.tokens

    def write_on() -> None:
        told.begin("Writing text", max(wanted - corpus.num_answer_tokens, 0) or None)

    write_on()
    began, before = time.perf_counter(), (corpus.num_answer_tokens, len(corpus))

    def pace() -> tuple[float, float]:
        """Seconds a token and a document, of what was written here."""
        seconds = time.perf_counter() - began - idle
        tokens, documents = corpus.num_answer_tokens - before[0], len(corpus) - before[1]
        return seconds / max(tokens, 1), seconds / max(documents, 1)

    idle = 0.0
    if source.missing:
        source.write(wanted, source.first_documents)
    budget.keep()
    start = time.perf_counter()
    told.begin("Trying how long a step takes", None)
    tried = try_steps()
    write_on()
    idle += time.perf_counter() - start
    if tried is None:
        source.write(wanted)
        return None

    def costs() -> Costs:
        writing = pace()[0] if len(corpus) > before[1] else 0.0
        return Costs(writing, corpus.num_tokens / max(corpus.num_answer_tokens, 1), *tried)

    passes = settings.epochs
    if settings.steps is not None:
        passes = settings.steps * settings.batch * length / max(wanted * costs().tokens, 1)
    if math.isinf(budget.left):
        expected = costs().all_of(wanted, corpus.num_answer_tokens, passes)
        told.left(expected)
        told.says(
            f"{_counted(wanted)} tokens of text and {passes:.2g} passes over them: {_spoken(expected)} on this machine "
            "as busy as it is now (--minutes N sets a limit, and fits the text to it)."
        )
        source.write(wanted)
        return costs()
    said = False
    while True:
        known = costs()
        fitting = known.answers_within(_SPARED * budget.left, corpus.num_answer_tokens, passes)
        target = min(wanted, fitting)
        if not said:
            told.says(
                f"{_spoken(budget.left)} are left: about {_counted(max(target, corpus.num_answer_tokens))} tokens of "
                f"text, and up to {passes:.2g} passes over them."
            )
            said = True
        documents = max(_FEWEST_DOCUMENTS - len(corpus), 0)
        if corpus.num_answer_tokens >= target and (not documents or not source.missing):
            return known
        if corpus.num_answer_tokens < target:
            missing = (target - corpus.num_answer_tokens) / max(corpus.num_answer_tokens, 1) * len(corpus)
            documents = max(min(math.ceil(missing), int(_LOOK_SECONDS / max(pace()[1], 1e-9))), 1)
        source.write(wanted, documents)
        budget.keep()


def try_steps(
    objective: Objective, states: StateSource, packs: Sequence[Pack], settings: TrainSettings
) -> tuple[float, float, float]:
    """Seconds to read, to learn and to step, a token of text, on the fullest pack; the head is spoilt."""
    fullest = max(packs, key=len)
    tokens = len(fullest)
    torch.manual_seed(settings.seed)
    # What happens only once happens on a part.
    objective.loss(states.batch([Pack(fullest.documents[:1])])).backward()  # type: ignore[no-untyped-call]
    device = next(objective.head.parameters()).device
    start = now(device)
    batch = states.batch([fullest])
    reading = (now(device) - start) / tokens
    start = now(device)
    objective.loss(batch).backward()  # type: ignore[no-untyped-call]
    learning = (now(device) - start) / tokens
    optimiser = Optimiser(objective.head, settings.optimiser, settings.lr, settings.weight_decay)
    start = now(device)
    optimiser.step(0.0)
    stepping = (now(device) - start) / (settings.batch * tokens)
    return reading, learning, stepping


def now(device: torch.device) -> float:
    """When a device is done with all it was given."""
    finish(device)
    return time.perf_counter()


def _counted(tokens: int) -> str:
    """A number of tokens, to two digits."""
    digits = max(len(str(tokens)) - 2, 0)
    return f"{round(tokens, -digits):,}"


def _spoken(seconds: float) -> str:
    minutes = seconds / 60
    if minutes >= 90:
        return f"about {minutes / 60:.1f} hours"
    return f"about {max(minutes, 0.1):.{int(minutes < 10)}f} minutes"


def _kept(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
