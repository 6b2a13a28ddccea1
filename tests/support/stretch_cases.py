"""Engines whose rounds are run at once, for the tests of stretches."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from mapped_heads import map_rows, output_rows
from native_cases import native, small_config
from native_here import FASTEST
from planned_toys import eager_planner
from test_native_block_heads import SELECTING, VARIANTS, random_block
from test_native_heads import VOCAB, random_head, tables

from headstart.backends.native.stretch import NativeStretches
from headstart.common.enumerations import CacheType
from headstart.drafting.abilities import stretch_drafting
from headstart.drafting.base import Drafter, SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.drafting.registry import create_drafter
from headstart.engine import engine as engine_module
from headstart.engine.engine import Engine
from headstart.engine.outputs import SequenceStats
from headstart.engine.schedule import Limits
from headstart.engine.sequence import Sequence as Decoded
from headstart.models.config import ModelConfig
from headstart.passes.cache.prefix import PrefixIndex
from headstart.passes.rounds import Guesser, RoundRecord, StretchLimits
from headstart.passes.runner import NUM_STATES, ModelRunner
from headstart_train.files.heads import save_head

CONFIG = small_config(layers=small_config().layers * 3)
TIMED = {"seconds", "draft_seconds", "target_seconds", "prefill_seconds", "draft_prefill_seconds"}
HIDDEN = 96
DRAFTERS = ("none", "suffix", "eagle3", "auto")
ONE_PASS = ("p-eagle", "dflash", "dspark", "dflash2")
"""Make their trees of one pass; otherwise they are as ``eagle3``."""


def mapped_tables() -> TargetTables:
    """The target's, with output rows that a few of them tell."""
    rows = output_rows(VOCAB, HIDDEN, torch.Generator().manual_seed(2))
    return TargetTables(tables(random_head()).embedding, rows * HIDDEN**-0.5)


def mapped_head(**changes: object) -> EagleHead:
    """A random head that may say tokens of the text beyond its vocabulary."""
    head = random_head(HIDDEN, **changes)  # type: ignore[arg-type]
    map_rows(head, mapped_tables().head, 0.15)
    return head


def save_heads(directory: Path) -> None:
    """An EAGLE-3 head, and in directories of their own those of ``ONE_PASS``."""
    save_head(mapped_head(), directory)
    save_head(mapped_head(slots=5, mask_token_id=6), directory / "p-eagle")
    save_head(random_block(), directory / "dflash")
    save_head(random_block(**VARIANTS["dspark"]), directory / "dspark")
    save_head(random_block(**SELECTING["dflash 2"]), directory / "dflash2")


def options_of(drafter: str, head: Path) -> dict[str, object]:
    few = {"min_probability": 0.0, "draft_tokens": 4, "width": 3, "precision": "bf16"}
    if drafter == "eagle3":
        return {"model": str(head), **few}
    if drafter in ONE_PASS:
        # A confidence ends drafts where there is a bound.
        return {"model": str(head / drafter), **few, "min_probability": 0.003 if drafter == "dspark" else 0.0}
    if drafter == "auto":
        return {"drafters": "suffix+eagle3", "model": str(head), "drafter_options": {"eagle3": few}}
    return {}


def make_engine(
    drafter: str,
    head: Path,
    *,
    config: ModelConfig = CONFIG,
    cache_tokens: int = 4096,
    prefixes: bool = False,
    num_states: int = NUM_STATES,
    cache_type: CacheType = CacheType.AUTO,
    **limits: int,
) -> Engine:
    backend, index = native(config, "bf16", FASTEST), PrefixIndex("toy") if prefixes else None
    runner = ModelRunner(backend, cache_tokens, prefixes=index, num_states=num_states, cache_type=cache_type)
    context = DraftContext(config.vocab_size, runner, lend_tables=mapped_tables)
    return Engine(
        runner,
        eager_planner(context, options_of(drafter, head))
        if drafter == "auto"
        else create_drafter(drafter, context, **options_of(drafter, head)),
        Limits(**({"max_context": 2048} | limits)),
    )


class Counted:
    """Rounds that were run at once, how many in one call at most, and by how many sequences at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds = self.most_rounds = self.sequences = 0
        run = NativeStretches.run

        def counted(stretches: NativeStretches, *arguments: object) -> list[RoundRecord]:
            rounds = run(stretches, *arguments)  # type: ignore[arg-type]
            self.rounds += len(rounds)
            self.most_rounds = max(self.most_rounds, len(rounds))
            self.sequences = max([self.sequences, *[len(done.spans) for done in rounds]])
            return rounds

        monkeypatch.setattr(NativeStretches, "run", counted)


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "run_stretch", lambda *arguments: False)


def told(sequence: Decoded, with_counts: bool = True) -> dict[str, object]:
    """What a request is told of its output; counts depend on clocks under a planner."""
    said: dict[str, object] = {
        "output": sequence.output,
        "finish": (sequence.finish_reason, sequence.stop_reason, sequence.error),
    }
    if with_counts:
        said |= {"origins": sequence.origins, "rejected": sequence.rejected}
        stats = {field.name: getattr(sequence.stats, field.name) for field in fields(SequenceStats)}
        said["stats"] = {name: value for name, value in stats.items() if name not in TIMED}
    return said


class CutText:
    """A text that ends with a token which nobody told the engine of."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.stop: str | None = None

    def append(self, token_id: int, ends: bool) -> None:
        if token_id == self.token:
            self.stop = "so it ends"


class ShortText(CutText):
    """A text that ends after so many tokens, likewise."""

    def __init__(self, count: int) -> None:
        super().__init__(-1)
        self.left = count

    def append(self, token_id: int, ends: bool) -> None:
        self.left -= 1
        super().append(token_id if self.left else self.token, ends)


def guesser_of(drafter: Drafter, sequence: SequenceView, limits: StretchLimits) -> Guesser:
    """The one guesser of a drafter in a stretch of one sequence."""
    drafting = stretch_drafting(drafter, [sequence], [limits])
    assert drafting is not None
    ((guesser,),) = drafting.guessers
    assert guesser is not None
    return guesser
