"""Running every drafter beside plain decoding on the same prompts, in turn."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.drafting.base import Drafter, SpeculationParams
from headstart.engine.engine import Engine
from headstart.engine.outputs import SequenceStats
from headstart.engine.sequence import Sequence as Decoded
from headstart.errors import CheckpointError, ConfigError, HeadstartError
from headstart.loading.model import Model
from headstart.models.experts_config import ExpertsConfig
from headstart.passes.backend import Backend
from headstart.passes.batch import IntArray
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.extent import Pace
from headstart_lab.bench.prompts import BenchPrompt, encode_turns
from headstart_lab.bench.reliability import Reliability, judged
from headstart_lab.differences import Difference, first_difference
from headstart_lab.plan.expert_passes import ExpertPass
from headstart_lab.workbench import PLAIN, Contender, Workbench
from headstart_lab.wrapper import DrafterWrapper, WatchedRound

_WARM_UP = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
_STREAM_BYTES = 1 << 29
_PACE_TOKENS = 16


@dataclass(frozen=True)
class Run:
    """One turn of one prompt, decoded once by one contender."""

    contender: str
    prompt: str
    group: str
    turn: int
    repeat: int
    tokens: tuple[int, ...]
    """What was said."""
    depths: tuple[int, ...]
    """[round] levels of the draft."""
    stats: SequenceStats
    must_agree: bool
    """Its tokens have to be those of plain decoding: greedy, or never drawn by a drafter."""
    passes: tuple[ExpertPass, ...] = ()
    """[round], where the target has experts."""
    reliability: Reliability = field(default_factory=Reliability)
    """Of the guesses whose drafter says how likely they are."""

    @property
    def decode_seconds(self) -> float:
        """Without prefill."""
        return self.stats.seconds - self.stats.prefill_seconds


@dataclass
class BenchRuns:
    """Everything that was measured in one sitting."""

    runs: list[Run] = field(default_factory=list)
    differences: dict[tuple[str, str, int], Difference] = field(default_factory=dict)
    """(contender, prompt, turn) whose tokens are not plain decoding's though they must be."""
    read_seconds: list[float] = field(default_factory=list)
    """Reads of all weights, spread over the sitting: the floor of a pass."""
    read_is_native: bool = True
    """Read by the pass's own threads from its own memory; else estimated by reading other memory with torch."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Contender or prompt -> why it was left out."""
    experts: ExpertsConfig | None = None
    """The target's."""

    @property
    def turns(self) -> int:
        """Turns that were measured, those of every repeat counted."""
        return len({(run.repeat, run.prompt, run.turn) for run in self.runs})


class RecordingDrafter(DrafterWrapper):
    """Hands everything on to a drafter, and keeps the shape of its drafts, what it said of them and what passes of
    experts cost."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self._shapes: list[tuple[IntArray, NDArray[np.bool_] | None]] = []
        """Parents and probe marks: a whole tree would keep its laws in memory."""
        self._passes: list[ExpertPass] = []
        self._said: list[tuple[DraftTree, tuple[int, ...]]] = []
        """Drafts with chances, and the tokens of their rounds."""

    def watch(self, rounds: Sequence[WatchedRound]) -> None:
        decoded = [outcome for each in rounds for outcome in each.outcomes if outcome.committed]
        self._shapes += [(outcome.draft.parents, outcome.draft.probe) for outcome in decoded]
        self._said += [(outcome.draft, outcome.committed) for outcome in decoded if outcome.draft.chances is not None]
        for each in rounds:
            decoded = [outcome for outcome in each.outcomes if outcome.committed]
            if decoded and decoded[0].pass_experts is not None:
                self._passes.append(ExpertPass(decoded[0].pass_rows, decoded[0].pass_experts, decoded[0].pass_seconds))

    def take_depths(self) -> tuple[int, ...]:
        """Levels of each draft since the last call. Counted only now, where no clock runs."""
        depths = tuple(_levels(*shape) for shape in self._shapes)
        self._shapes = []
        return depths

    def take_passes(self) -> tuple[ExpertPass, ...]:
        """Passes since the last call; none of a target without experts."""
        passes, self._passes = tuple(self._passes), []
        return passes

    def take_reliability(self) -> Reliability:
        """Of the guesses since the last call."""
        said, self._said = self._said, []
        return Reliability.of([each for draft, committed in said for each in judged(draft, committed)])

    def forget(self) -> None:
        """Nothing that was watched so far is to be counted."""
        self._shapes, self._passes, self._said = [], [], []


class Sitting:
    """A benchmark in progress.

    Args:
        model: the target.
        bench: made for it, for one sequence at a time.
        contenders: plain decoding first.
        params: of every request; names a seed if it samples.
        speculation: of every request; None: as the drafters come.
    """

    def __init__(
        self,
        model: Model,
        bench: Workbench,
        contenders: Sequence[Contender],
        params: SamplingParams,
        speculation: SpeculationParams | None = None,
    ) -> None:
        if not contenders or contenders[0].name != PLAIN:
            raise ConfigError(f"contenders must begin with {PLAIN!r}, which the others are compared with.")
        self.results = BenchRuns(experts=bench.backend.config.experts)
        self._model = model
        self._bench = bench
        self._contenders = list(contenders)
        self._params = params
        self._speculation = speculation
        self._plain: dict[tuple[str, int], Decoded] = {}
        self._samples: dict[str, int] = {}
        """Prompt -> its number, by which it draws."""
        self._ready: dict[str, Engine] = {}
        """Made ahead of the first repeat."""
        self._read_weights = _weight_reader(bench.backend, self.results)

    def prepare(self, prompt: BenchPrompt) -> Pace:
        """Make the drafters, and decode a little plainly to see how fast this machine is.

        Raises:
            ConfigError, CheckpointError, RequestError: as ``run``.
        """
        start = time.perf_counter()
        self._ready = self._open_all()
        opening = time.perf_counter() - start
        tokens = encode_turns(self._model, prompt.turns[:1], [])[: self._bench.limits.max_context - _PACE_TOKENS]
        sequence = self._bench.sequence(tokens, SamplingParams(temperature=0, max_tokens=_PACE_TOKENS, ignore_eos=True))
        self._bench.decode(self._ready[PLAIN], sequence)
        _recorder(self._ready[PLAIN]).forget()
        stats = sequence.stats
        decoding = stats.seconds - stats.prefill_seconds
        return Pace(opening, stats.prefill_seconds / max(len(prompt.turns[0]), 1), decoding / _PACE_TOKENS)

    def run(
        self,
        prompts: Sequence[BenchPrompt],
        repeats: int,
        on_run: Callable[[Run], None] = lambda run: None,
        *,
        max_tokens: int | None = None,
        seconds: float | None = None,
    ) -> None:
        """Decode every turn with every contender, one right after the other, their order rotating.

        Drafters are fresh in each repeat: one that remembers requests must not have seen the answer before. In a
        chat, the answers so far are plain decoding's, so that all contenders read the same.

        A contender that cannot be built for this model, or fails, is left out with its reason. Cut short, or out of
        time, it leaves in ``results`` what amounts to a sitting: the whole repeats, or the turns of the first one.

        Args:
            max_tokens: of each answer; None: what the parameters say.
            seconds: begin no repeat, and of the first one no prompt, that would not end within these; None: no limit.

        Raises:
            ConfigError, CheckpointError: no contender but plain decoding can be built, or no prompt fits.
            RequestError: a prompt cannot be rendered, or plain decoding of it failed.
        """
        if max_tokens is not None:
            self._params = replace(self._params, max_tokens=max_tokens)
        deadline = None if seconds is None else time.perf_counter() + seconds
        try:
            self._run_repeats(prompts, repeats, on_run, deadline)
        finally:
            sizes = Counter(run.repeat for run in self.results.runs)
            self.results.runs = [run for run in self.results.runs if sizes[run.repeat] == sizes[0]]
        if not self.results.runs:
            raise ConfigError(f"no prompt leaves room for {self._params.max_tokens} more tokens; lower max_tokens.")

    def _run_repeats(
        self,
        prompts: Sequence[BenchPrompt],
        repeats: int,
        on_run: Callable[[Run], None],
        deadline: float | None,
    ) -> None:
        longest = 0.0
        for repeat in range(repeats):
            began = time.perf_counter()
            if deadline is not None and repeat and began + longest > deadline:
                return
            engines, self._ready = self._ready or self._open_all(), {}
            slowest = 0.0
            for place, prompt in enumerate(prompts):
                start = time.perf_counter()
                if deadline is not None and place and start + (slowest if repeat == 0 else 0.0) > deadline:
                    return
                names = [name for name in engines if name not in self.results.skipped]
                first = (place + repeat) % len(names)
                order = names[first:] + names[:first]
                self._run_prompt(prompt, repeat, {name: engines[name] for name in order}, on_run)
                slowest = max(slowest, time.perf_counter() - start)
            longest = max(longest, time.perf_counter() - began)

    def _open_all(self) -> dict[str, Engine]:
        engines = {}
        for contender in self._contenders:
            if contender.name in self.results.skipped:
                continue
            try:
                engines[contender.name] = engine = self._bench.open(contender, RecordingDrafter)
            except (ConfigError, CheckpointError) as error:
                self._leave_out(contender.name, error)
                continue
            # What happens only once is charged to no drafter. No prompt has these tokens, so they teach nothing.
            self._bench.decode(engine, self._bench.sequence([0, 1, 0, 1], _WARM_UP))
            _recorder(engine).forget()
        return engines

    def _leave_out(self, name: str, error: HeadstartError) -> None:
        """Go on without a contender, if that leaves one to be compared.

        Raises:
            HeadstartError: the same.
        """
        self.results.skipped[name] = str(error)
        self.results.runs = [run for run in self.results.runs if run.contender != name]
        others = [each for each in self._contenders if each.name != PLAIN]
        asked_for = not all(each.optional for each in others)
        if name == PLAIN or (asked_for and all(each.name in self.results.skipped for each in others)):
            raise error

    def _run_prompt(
        self, prompt: BenchPrompt, repeat: int, engines: Mapping[str, Engine], on_run: Callable[[Run], None]
    ) -> None:
        answers: list[str] = []
        for turn in range(len(prompt.turns)):
            tokens = encode_turns(self._model, prompt.turns[: turn + 1], answers)
            if not self._bench.fits(tokens, self._params.max_tokens or 1):
                self.results.skipped[f"prompt {prompt.id}, turn {turn + 1}"] = f"{len(tokens)} tokens are too many"
                return
            decoded = {}
            for name in [name for name in engines if name not in self.results.skipped]:
                try:
                    decoded[name] = self._run(name, engines[name], prompt, turn, repeat, tokens)
                except HeadstartError as error:
                    self._leave_out(name, error)
            self.results.read_seconds.append(self._read_weights())
            plain = self._plain.setdefault((prompt.id, turn), decoded[PLAIN][1])
            for run, _ in decoded.values():
                self._compare(run, plain)
            # All of a turn at once, that none is left half measured.
            self.results.runs += [run for run, _ in decoded.values()]
            for run, _ in decoded.values():
                on_run(run)
            answers.append(self._model.tokenizer.decode(plain.output))

    def _run(
        self, name: str, engine: Engine, prompt: BenchPrompt, turn: int, repeat: int, tokens: Sequence[int]
    ) -> tuple[Run, Decoded]:
        # Draws of its own for each prompt: at one seed and place all would be accepted or rejected together.
        sample = self._samples.setdefault(prompt.id, len(self._samples))
        sequence = self._bench.sequence(tokens, self._params, self._speculation, sample)
        self._bench.decode(engine, sequence)
        run = Run(
            contender=name,
            prompt=prompt.id,
            group=prompt.group,
            turn=turn,
            repeat=repeat,
            tokens=tuple(sequence.output),
            depths=_recorder(engine).take_depths(),
            stats=sequence.stats,
            must_agree=self._params.greedy or not sequence.stats.sampled_rounds,
            passes=_recorder(engine).take_passes(),
            reliability=_recorder(engine).take_reliability(),
        )
        return run, sequence

    def _compare(self, run: Run, plain: Decoded) -> None:
        key = run.contender, run.prompt, run.turn
        if run.must_agree and list(run.tokens) != plain.output and key not in self.results.differences:
            self.results.differences[key] = first_difference(self._bench, plain, run.tokens)


def _recorder(engine: Engine) -> RecordingDrafter:
    assert isinstance(engine.drafter, RecordingDrafter)
    return engine.drafter


def _levels(parents: IntArray, probe: NDArray[np.bool_] | None) -> int:
    """Levels of guesses; probe nodes are none."""
    depths: list[int] = []
    for node, parent in enumerate(parents.tolist()):
        guess = probe is None or not probe[node]
        depths.append((1 if parent == ROOT else depths[parent] + 1) if guess else 0)
    return max(depths, default=0)


@runtime_checkable
class WeightReader(Protocol):
    """A backend that can time one read of its weights."""

    def read_seconds(self) -> float: ...


@runtime_checkable
class HasDevice(Protocol):
    """A backend that tells where it computes."""

    device: torch.device


def _weight_reader(backend: Backend, results: BenchRuns) -> Callable[[], float]:
    """A clock for one read of all weights."""
    if isinstance(backend, WeightReader):
        return backend.read_seconds
    results.read_is_native = False
    size = max(min(backend.nbytes, _STREAM_BYTES), 1 << 20)
    place = backend.device if isinstance(backend, HasDevice) else torch.device("cpu")
    memory = torch.zeros(size // 4, device=place)

    def read() -> float:
        start = time.perf_counter()
        memory.sum().item()  # waits for an accelerator, too
        return (time.perf_counter() - start) * backend.nbytes / size

    return read
