"""How the time of a training is shared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from training_toys import target

from headstart_train import budget as module
from headstart_train.budget import Budget, Costs, write_fitting
from headstart_train.making import HEAD_NAMES, HeadName, HeadSettings
from headstart_train.progressing import Progressing
from headstart_train.recipe import train_head
from headstart_train.text.text import TextSettings
from headstart_train.trainer import TrainSettings

Share = Callable[..., tuple["Text", list[str], list[float]]]
COSTS = Costs(writing=0.01, tokens=2.0, reading=0.001, learning=0.004, stepping=0.0005)


def test_text_and_passes_over_it_fill_the_time() -> None:
    for seconds in (10.0, 100.0, 1000.0):
        answers = COSTS.answers_within(seconds, 0, passes=4)
        assert COSTS.all_of(answers, 0, 4) == pytest.approx(seconds, rel=0.01)


def test_text_that_is_there_already_takes_no_writing() -> None:
    alone, beside = COSTS.answers_within(100, 0, 4), COSTS.answers_within(100, 1000, 4)
    assert alone < beside < alone + 1000
    assert COSTS.all_of(beside, 1000, 4) == pytest.approx(100, rel=0.01)
    assert COSTS.answers_within(0, 0, 4) == 0


@dataclass
class Text:
    """A source and its corpus: every document takes four seconds and has a hundred tokens of answers."""

    clock: list[float]
    settings: TextSettings
    seconds: float = 4.0
    num_answer_tokens: int = 0
    num_tokens: int = 0
    chunks: list[int] = field(default_factory=list)

    @property
    def corpus(self) -> Text:
        return self

    def __len__(self) -> int:
        return self.num_answer_tokens // 100

    @property
    def missing(self) -> int:
        return max(self.settings.tokens - self.num_answer_tokens, 0)

    @property
    def first_documents(self) -> int:
        return 16

    def write(self, tokens: int, documents: int | None = None) -> None:
        fitting = math.ceil((tokens - self.num_answer_tokens) / 100)
        written = max(min(fitting, math.inf if documents is None else documents), 0)
        self.chunks.append(int(written))
        self.num_answer_tokens += int(100 * written)
        self.num_tokens += int(200 * written)
        self.clock[0] += self.seconds * written


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def share(clock: list[float], tmp_path: Path) -> Share:
    def run(
        minutes: float | None, tokens: int = 2_000_000, steps: int | None = None
    ) -> tuple[Text, list[str], list[float]]:
        text, said, left = Text(clock, TextSettings(tokens=tokens)), list[str](), list[float]()

        def tried() -> tuple[float, float, float]:
            clock[0] += 5.0
            return 0.001, 0.004, 0.0

        told = Progressing(says=said.append, left=left.append)
        settings = TrainSettings(epochs=4.0)
        write_fitting(text, Budget(minutes, tmp_path), settings, 512, tried, told)  # type: ignore[arg-type]
        return text, said, left

    return run


@pytest.mark.parametrize("minutes", [5, 30, 120])
def test_the_text_is_as_long_as_the_minutes_allow(share: Share, clock: list[float], minutes: float) -> None:
    text, said, _ = share(minutes)
    learning = text.num_tokens * (0.001 + 4 * 0.004)
    assert 0.8 * 60 * minutes < clock[0] + learning <= 60 * minutes
    assert len(said) == 1
    assert "passes over them" in said[0]
    # It looks at the clock on the way, lest a machine that slows down go unnoticed.
    assert max(text.chunks[1:], default=0) * 4.0 <= 20.0


def test_a_machine_that_slows_down_writes_less(
    share: Share, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Text.write

    def slower(self: Text, tokens: int, documents: int | None = None) -> None:
        self.seconds = 4.0 if clock[0] < 300 else 16.0
        write(self, tokens, documents)

    monkeypatch.setattr(Text, "write", slower)
    text, _, _ = share(30)
    assert clock[0] + text.num_tokens * 0.017 <= 60 * 30


def test_tokens_bound_the_text_in_any_time(share: Share) -> None:
    assert share(600, tokens=3000)[0].num_answer_tokens == 3000


def test_without_a_limit_all_is_written_and_its_time_is_said_before(share: Share, clock: list[float]) -> None:
    text, (sentence,), (left,) = share(None, tokens=100_000)
    assert text.num_answer_tokens == 100_000
    assert left == pytest.approx((100_000 - 1600) * 0.04 + 200_000 * 0.017, rel=0.01)
    assert "100,000 tokens of text and 4 passes over them: about 2.0 hours" in sentence
    assert "--minutes" in sentence


def test_what_was_spent_is_remembered(clock: list[float], tmp_path: Path) -> None:
    one = Budget(1.0, tmp_path)
    clock[0] += 20.0
    one.keep()
    clock[0] += 5.0  # a kill, and what was not kept
    two = Budget(1.0, tmp_path)
    assert two.left == pytest.approx(40.0)
    clock[0] += 10.0
    two.end_text(COSTS, 1000)
    clock[0] += 99.0  # steps, which their trainer counts
    assert two.left == Budget(1.0, tmp_path).left == pytest.approx(30.0)
    assert (
        two.enough_minutes(4)
        == Budget(1.0, tmp_path).enough_minutes(4)
        == pytest.approx(COSTS.all_of(300_000, 1000, 4) / 60)
    )
    (tmp_path / module.BUDGET_FILE).write_text("{")
    assert Budget(1.0, tmp_path).left == 60.0
    assert Budget(None, tmp_path / "new").enough_minutes(4) is None


@pytest.mark.thorough
@pytest.mark.parametrize("name", HEAD_NAMES)
def test_minutes_bound_everything_for_every_kind_of_head(name: HeadName, tmp_path: Path) -> None:
    said: list[str] = []
    left: list[float] = []
    slots = 2 if name in ("medusa", "blockwise", "pass") else None
    text = TextSettings(temperatures=(0.0,), answer_tokens=16, batch_size=6)
    settings = TrainSettings(micro_batch=1, evaluate_every=50, save_every=50)

    def train(minutes: float, told: Progressing | None = None) -> object:
        return train_head(
            name,
            target().name,
            tmp_path,
            text=text,
            head=HeadSettings(200, slots),
            settings=settings,
            length=320,
            minutes=minutes,
            fit_batch=True,
            on_progress=told,
        )

    result = train(0.02, Progressing(says=said.append, left=left.append))
    assert 1 <= result.progress.step == result.progress.total_steps
    assert 0 < result.record["text"]["answer_tokens"] < 100_000
    assert len(said) == 1
    assert left[0] <= 1.2
    assert left[-1] == 0.0
    # What is over is over: the same command has nothing left to do, and writes no more text.
    again = train(0.02)
    assert replace(again.progress) == result.progress
    assert again.record["text"] == result.record["text"]
