"""The proposer for vLLM, over batches like vLLM's; ``test_in_vllm.py`` runs it in vLLM itself."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engine_batches
import numpy as np
import pytest
from engine_batches import EngineBatch, Row, looping, vllm_config

from headstart.drafting import registry
from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, SpeculationParams, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.method import Method
from headstart.drafting.registry import create_drafter, hosted_drafters
from headstart.errors import CheckpointError, ConfigError
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.params import SamplingParams
from headstart_integrations.hosted import best_path
from headstart_integrations.vllm import Proposer

PROMPT = [3, 9, 4, 1, 5, 9, 2, 6]
FROM_TOKENS = [name for name in hosted_drafters() if name not in ("rest",)]


def decoded(target: Any, prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(target(tokens))
    return tokens


def run(batch: EngineBatch, row: Row, length: int) -> None:
    while len(row.tokens) < length:
        batch.step()


@pytest.mark.parametrize("drafter", [None, *FROM_TOKENS])
def test_the_text_is_the_targets(drafter: str | None) -> None:
    target = looping(5)
    batch = EngineBatch(Proposer(vllm_config(drafter)), target)
    row = batch.add(PROMPT)
    run(batch, row, 100)
    assert row.tokens[:100] == decoded(target, PROMPT, 92)
    assert row.drafted
    assert max(map(len, row.drafted)) <= 4


@pytest.mark.parametrize("drafter", ["suffix:shared_tokens=0", "ngram", "prompt-lookup", "copy", "bigram", "unigram"])
def test_acceptance_is_the_drafters_own(drafter: str) -> None:
    """The same rounds as with the drafter itself, told by its contract of prompt and committed tokens."""
    target, k = looping(6), 4
    batch = EngineBatch(Proposer(vllm_config(drafter, k)), target)
    row = batch.add(PROMPT)
    run(batch, row, 120)

    name, _, option = drafter.partition(":")
    options: dict[str, object] = {"shared_tokens": 0} if option else {"draft_tokens": k}
    own = create_drafter(name, DraftContext(64), **options)
    view = SimpleNamespace(
        id=0, tokens=list(PROMPT), prompt_length=len(PROMPT), speculation=SpeculationParams(),
        params=SamplingParams(temperature=0), source=None,
    )  # fmt: skip
    own.begin(view)  # type: ignore[arg-type]
    truth, accepted, drafted = decoded(target, PROMPT, 140), [], []
    view.tokens.append(truth[len(PROMPT)])
    while len(accepted) < len(row.accepted):
        path = best_path(own.propose([view], [DraftBudget(64, k)])[0])  # type: ignore[list-item]
        at = len(view.tokens)
        right = next((i for i, token in enumerate(path) if token != truth[at + i]), len(path))
        if path:
            drafted.append(path)
            accepted.append(right)
        view.tokens.extend(truth[at : at + right + 1])
    assert (row.drafted, row.accepted) == (drafted, accepted)


def test_requests_that_move_between_rows_keep_their_guesses() -> None:
    alone = []
    for period in (3, 4, 5):
        batch = EngineBatch(Proposer(vllm_config("ngram")), looping(5))
        row = batch.add([period, *PROMPT])
        run(batch, row, 60)
        alone.append(row)
    proposer = Seen.proposer()
    batch = EngineBatch(proposer, looping(5))
    rows = [batch.add([period, *PROMPT]) for period in (3, 4, 5)]
    for step in range(60):
        batch.rows = batch.rows[1:] + batch.rows[:1] if step % 3 else batch.rows[::-1]
        batch.step()
    for row, other in zip(rows, alone, strict=True):
        assert row.drafted[: len(other.drafted)] == other.drafted
    assert (Seen.begun, Seen.ended) == (3, 0)


def test_equal_texts_are_two_sequences() -> None:
    proposer = Seen.proposer()
    batch = EngineBatch(proposer, looping(5))
    first, second = batch.add(PROMPT), batch.add(PROMPT)
    for _ in range(20):
        batch.rows.reverse()
        batch.step()
    assert first.tokens == second.tokens
    assert (Seen.begun, Seen.ended) == (2, 0)


def test_what_leaves_is_forgotten_and_may_come_back() -> None:
    proposer, target = Seen.proposer(), looping(5)
    batch = EngineBatch(proposer, target)
    stays, leaves = batch.add(PROMPT), batch.add([7, *PROMPT])
    for _ in range(5):
        batch.step()
    batch.rows = [stays]
    batch.step()
    assert (Seen.begun, Seen.ended) == (2, 1)
    leaves.guesses = []
    batch.rows = [stays, leaves]
    batch.step(unread=[leaves])
    assert leaves.guesses == []
    for _ in range(30):
        batch.step()
    assert (Seen.begun, Seen.ended) == (3, 1)
    assert leaves.tokens == decoded(target, [7, *PROMPT], len(leaves.tokens) - 9)
    batch.rows = []
    batch.step()
    assert (Seen.begun, Seen.ended) == (3, 3)
    assert proposer._followed == {}
    assert proposer._hosted._held == 0


def test_later_requests_profit_from_earlier_ones() -> None:
    def accepted(drafter: str) -> list[int]:
        said = [11, 23, 7, 42, 17, 30, 5, 50, 28, 33, 2, 61, 40, 19, 8, 55, 13, 27, 36, 44]
        batch = EngineBatch(Proposer(vllm_config(drafter)), lambda tokens: said[(len(tokens) - 3) % 20])
        counts = []
        for _ in range(2):
            row = batch.add([1, 2, 3])
            run(batch, row, 23)
            batch.rows = []
            batch.step()
            counts.append(sum(row.accepted))
        return counts

    first, second = accepted("suffix")
    assert first == 0
    assert second >= 15
    assert accepted("suffix:shared_tokens=0") == [0, 0]


def test_no_guess_beyond_the_models_length() -> None:
    batch = EngineBatch(Proposer(vllm_config("ngram", max_length=40)), lambda tokens: 1, max_length=40)
    row = batch.add([1] * 30)
    while len(row.tokens) < 39:
        batch.step()
    assert row.guesses == []
    assert sum(row.accepted) > 5


def test_a_drafter_that_fails_costs_its_guesses_alone(caplog: pytest.LogCaptureFixture) -> None:
    proposer = Seen.proposer()
    batch = EngineBatch(proposer, looping(5))
    row = batch.add(PROMPT)
    batch.step()
    Seen.broken = True
    run(batch, row, 60)
    assert row.tokens[:60] == decoded(looping(5), PROMPT, 52)
    assert row.guesses == []
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    Seen.broken = False
    batch.rows = [another := batch.add([9, *PROMPT])]
    run(batch, another, 60)
    assert another.drafted


def test_a_fault_of_its_own_ends_all_guesses(caplog: pytest.LogCaptureFixture) -> None:
    proposer = Proposer(vllm_config("ngram"))
    senseless = np.zeros((0, 0), dtype=np.int32)
    for _ in range(3):
        assert proposer.propose([[1], [2]], senseless[0:0, 0:0].ravel(), senseless) == [[], []]
    assert len(caplog.records) == 1
    batch = EngineBatch(proposer, looping(5))
    row = batch.add(PROMPT)
    run(batch, row, 40)
    assert row.drafted == []


def test_guesses_that_were_drawn_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    """vLLM takes guesses for point masses: draws verified so would change the law."""
    batch = EngineBatch(Proposer(vllm_config("bigram:sample=true")), looping(2))
    row = batch.add(PROMPT)
    run(batch, row, 40)
    assert row.drafted == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("form", ["additional_config", "dictionary", "variable"])
def test_the_drafter_is_named(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = "prompt-lookup:max_ngram=2"
    if form == "variable":
        monkeypatch.setenv("HEADSTART_DRAFTER", written)
        given: object = None
    else:
        monkeypatch.setenv("HEADSTART_DRAFTER", "copy")
        given = written if form == "additional_config" else {"drafter": "prompt-lookup", "max_ngram": 2}
    proposer = Proposer(vllm_config(given, draft_tokens=7))
    assert proposer._hosted.name == "prompt-lookup"
    options = proposer._hosted._pool.drafters["prompt-lookup"]._options  # type: ignore[attr-defined]
    assert (options.max_ngram, options.draft_tokens) == (2, 7)


def test_an_empty_variable_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_DRAFTER", "")
    assert Proposer(vllm_config(None))._hosted.name == "suffix"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("sufix", ConfigError, "did you mean 'suffix'"),
        (
            "eagle3",
            ConfigError,
            "cannot guess inside another engine, which hands out tokens alone; choose one of suffix",
        ),
        ("none", ConfigError, "cannot guess inside another engine"),
        ("dspark", ConfigError, "cannot guess inside another engine"),
        ("auto", ConfigError, "choose one of"),
        ("ngram:order=3", ConfigError, "no option 'order'"),
        ({"drafter": 3}, ConfigError, "headstart is"),
        (["ngram"], ConfigError, "headstart is"),
        ("rest:texts=nowhere", CheckpointError, "nowhere"),
    ],
)
def test_what_cannot_guess_is_refused_at_the_start(given: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Proposer(vllm_config(given))


def test_a_store_of_texts_is_read_with_the_engines_tokenizer(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Letters:
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            assert not add_special_tokens
            return [ord(letter) % 64 for letter in text]

    engines = SimpleNamespace(cached_tokenizer_from_config=lambda config: Letters())
    monkeypatch.setitem(__import__("sys").modules, "vllm.tokenizers", engines)
    path = tmp_path / "store.txt"
    path.write_text("the quick brown fox jumps over the lazy dog")
    said = [ord(letter) % 64 for letter in "quick brown fox jumps over"]
    batch = EngineBatch(Proposer(vllm_config(f"rest:texts={path}")), lambda tokens: said[len(tokens) % len(said)])
    row = batch.add(said[:3])
    run(batch, row, 20)
    assert sum(row.accepted) >= 12


def test_it_is_found_by_both_ways_of_writing_its_name() -> None:
    package = import_module("headstart_integrations")
    assert getattr(package, "vllm:Proposer") is Proposer
    with pytest.raises(AttributeError):
        getattr(package, "nothing")  # noqa: B009


class Seen:
    """A drafter of n-grams that counts who comes and goes, and fails when told to."""

    needs = TargetSignals()
    begun = ended = 0
    broken = False

    def __init__(self, context: DraftContext, options: object) -> None:
        self._inner = create_drafter("ngram", context)

    @classmethod
    def proposer(cls) -> Proposer:
        cls.begun = cls.ended = 0
        cls.broken = False
        return Proposer(vllm_config("seen"))

    def begin(self, sequence: SequenceView) -> None:
        type(self).begun += 1
        self._inner.begin(sequence)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if self.broken:
            raise RuntimeError("told to")
        return self._inner.propose(sequences, budgets)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self._inner.observe(outcomes)

    def end(self, sequence_id: int) -> None:
        type(self).ended += 1
        self._inner.end(sequence_id)


@pytest.fixture(autouse=True)
def _with_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADSTART_DRAFTER", raising=False)
    info = Method("seen", "", "", f"{__name__}:Seen", from_tokens=True)
    monkeypatch.setitem(registry._own(), "seen", info)


OTHERS = ("gguf", "huggingface_hub", "jinja2", "rich", "safetensors", "tokenizers", "transformers", "typer")


@pytest.mark.thorough
def test_it_needs_numpy_and_torch_alone() -> None:
    """What else Headstart uses may be missing in an engine's environment, or of another version."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(engine_batches.__file__).parent)!r})

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OTHERS!r}:
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
import torch
threads = torch.get_num_threads()
from engine_batches import EngineBatch, looping, vllm_config
from headstart_integrations.vllm import Proposer
batch = EngineBatch(Proposer(vllm_config()), looping(5))
row = batch.add([3, 9, 4, 1, 5, 9, 2, 6])
for _ in range(20):
    batch.step()
assert sum(row.accepted) > 10 and torch.get_num_threads() == threads
"""
    subprocess.run([sys.executable, "-c", code], check=True)
