"""Toy models whose law is known exactly.

``ToyBackend`` keeps token ids in its "cache" and computes a row's logits from the tokens the row can really see
there. A stale slot, a wrong block or a broken path therefore changes the logits, and a test that compares texts
catches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property, lru_cache

import numpy as np
import torch

from headstart.backends.native.kit import NativeKit
from headstart.backends.native.loader import load_library
from headstart.backends.torch.kit import TorchKit
from headstart.drafting.base import Drafter, SpeculationParams
from headstart.drafting.context import DraftContext
from headstart.drafting.registry import create_drafter
from headstart.engine import sequence as engine_sequence
from headstart.engine.engine import Engine
from headstart.engine.schedule import Limits
from headstart.engine.stretch import SHOWN_SECONDS
from headstart.models.config import LayerConfig, ModelConfig
from headstart.passes.backend import BackendKit
from headstart.passes.batch import PassBatch, PassOutput, TapStates
from headstart.passes.runner import ModelRunner
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms

Context = tuple[int, ...]
LogitsOf = Callable[[Context], np.ndarray]


class ToyStorage:
    def __init__(self, num_blocks: int, block_size: int, num_states: int = 0) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.tokens = np.full(num_blocks * block_size, -1, dtype=np.int64)
        self.states: list[Context] = [(-1,)] * num_states
        """[slot] the text that a state follows."""
        self.layout, self.block_nbytes, self.state_nbytes = "toy", 8 * block_size, 8 * bool(num_states)

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes

    def read_block(self, block: int, slot: int | None = None) -> bytes:
        state = () if slot is None else self.states[slot]
        return self.tokens[block * self.block_size :][: self.block_size].tobytes() + np.array(state, np.int64).tobytes()

    def write_block(self, block: int, content: bytes, slot: int | None = None) -> None:
        numbers = np.frombuffer(content, np.int64)
        self.tokens[block * self.block_size :][: self.block_size] = numbers[: self.block_size]
        if slot is not None:
            self.states[slot] = tuple(numbers[self.block_size :].tolist())

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        for a, b in zip(source, target, strict=True):
            self.tokens[b] = self.tokens[a]

    def copy_blocks(self, source: Sequence[int], target: Sequence[int]) -> None:
        blocks = self.tokens.reshape(self.num_blocks, self.block_size)
        for a, b in zip(source, target, strict=True):
            blocks[b] = blocks[a]


@cache
def own_kit() -> BackendKit:
    """What toys run heads and texts by: the native pass where it is."""
    library = load_library()
    return TorchKit() if library is None else NativeKit(library)


class ToyBackend:
    """A model whose logits are any function of the tokens a row sees; or, where it ``keeps_states``, of the text that
    the state before it has read, and nothing of which it reads anew."""

    name = "toy"
    nbytes = 0
    exact_rows = False
    finds_best = False
    opens_layers = True

    @cached_property
    def kit(self) -> BackendKit:
        return own_kit()

    def __init__(
        self,
        vocab_size: int,
        logits_of: LogitsOf,
        max_positions: int = 4096,
        eos: tuple[int, ...] = (),
        keeps_states: bool = False,
    ) -> None:
        self.config = ModelConfig(
            family="toy",
            vocab_size=vocab_size,
            hidden_size=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=1,
            mlp_size=1,
            max_positions=max_positions,
            layers=(LayerConfig(mixer="convolution" if keeps_states else "attention"),),
            eos_token_ids=eos,
        )
        self.logits_of = logits_of
        self.rows_seen = 0

    def allocate_cache(self, num_blocks: int, block_size: int, num_states: int = 0) -> ToyStorage:
        return ToyStorage(num_blocks, block_size, num_states)

    def forward(self, batch: PassBatch, storage: ToyStorage) -> PassOutput:
        size = storage.block_size
        paths: list[list[int]] = []
        for s in range(batch.num_sequences):
            first, last = int(batch.row_starts[s]), int(batch.row_starts[s + 1])
            cached = int(batch.cached_lengths[s])

            def slot(i: int, s: int = s) -> int:
                return int(batch.block_tables[s, i // size]) * size + i % size

            base = [int(storage.tokens[slot(i)]) for i in range(cached)]
            if batch.states_before is not None:
                state = int(batch.states_before[s])
                base = list(storage.states[state]) if state >= 0 else []
            for row in range(first, last):
                storage.tokens[slot(cached + row - first)] = batch.tokens[row]
                parent = int(batch.parents[row])
                assert parent == -1 or first <= parent < row
                before = base if parent == -1 else paths[parent]
                assert int(batch.positions[row]) == len(before)
                assert len(before) < self.config.max_positions, "a position that the model does not have"
                paths.append([*before, int(batch.tokens[row])])
        if batch.states_after is not None and batch.states_before is not None:
            for state, path in zip(batch.states_after.tolist(), paths, strict=True):
                if state >= 0:
                    assert state not in batch.states_before, "a state that somebody stands at is changed"
                    storage.states[state] = tuple(path)
        self.rows_seen += batch.num_rows
        logits = [self.logits_of(tuple(paths[row])) for row in batch.logit_rows.tolist()]
        stacked = np.stack(logits) if logits else np.zeros((0, self.config.vocab_size))
        hidden = TapStates.of({tap: torch.tensor([[float(path[-1])] for path in paths]) for tap in batch.taps})
        best = [best_token(self.logits_of(tuple(paths[row]))) for row in batch.best_rows.tolist()]
        return PassOutput(torch.tensor(stacked, dtype=torch.float32), hidden, np.array(best, np.int32))


def best_token(logits: np.ndarray) -> int:
    """As ``PassOutput.best`` has it."""
    row = np.asarray(logits, np.float32)
    token = int(row.argmax())
    return token if np.isfinite(row[token]) else -1


def hashed_logits(vocab_size: int, seed: int = 0, order: int | None = None, scale: float = 2.0) -> LogitsOf:
    """Random logits that depend on the last ``order`` tokens (None: on the whole context)."""

    @lru_cache(1 << 14)
    def logits_after(seen: Context) -> np.ndarray:
        rng = np.random.default_rng([seed, len(seen), *(token + 1 for token in seen)])
        return rng.normal(size=vocab_size) * scale

    return lambda context: logits_after(tuple(context if order is None else context[-order:]))


def table_logits(table: np.ndarray) -> LogitsOf:
    """Logits from a [vocab, vocab] table of probabilities, indexed by the last token."""
    logits = np.log(np.maximum(table, 1e-30))
    return lambda context: logits[context[-1]]


def repeating_logits(vocab_size: int, period: Sequence[int]) -> LogitsOf:
    """A model that says ``period`` over and over: the next token follows the last one in it."""
    following = {a: b for a, b in zip(period, [*period[1:], period[0]], strict=True)}

    def logits_of(context: Context) -> np.ndarray:
        logits = np.zeros(vocab_size)
        logits[following.get(context[-1], period[0])] = 10.0
        return logits

    return logits_of


def toy_sequence(
    engine: Engine,
    prompt: Sequence[int],
    *,
    sequence_id: int = 0,
    params: SamplingParams | None = None,
    speculation: SpeculationParams | None = None,
    sample: int = 0,
) -> engine_sequence.Sequence:
    """A request as the library would build it, without text."""
    config = engine.runner.backend.config
    params = params or SamplingParams(temperature=0, max_tokens=24)
    return engine_sequence.Sequence(
        id=sequence_id,
        tokens=list(prompt),
        prompt_length=len(prompt),
        params=params,
        transforms=Transforms(params, config.vocab_size, config.eos_token_ids),
        noise=SequenceNoise(params.seed or 0, sample),
        stops=engine_sequence.StopRules(
            frozenset() if params.ignore_eos else frozenset(config.eos_token_ids),
            frozenset(params.stop_token_ids),
            params.max_tokens or 10**9,
        ),
        speculation=speculation or SpeculationParams(),
    )


def toy_engine(
    backend: ToyBackend,
    drafter: str | Drafter = "none",
    *,
    limits: Limits | None = None,
    cache_tokens: int = 4096,
    block_size: int = 8,
    **options: object,
) -> Engine:
    runner = ModelRunner(backend, cache_tokens, block_size)
    if isinstance(drafter, str):
        context = DraftContext(vocab_size=backend.config.vocab_size, runner=runner)
        drafter = create_drafter(drafter, context, **options)
    return Engine(runner, drafter, limits or Limits(max_context=backend.config.max_positions))


def run_all(
    engine: Engine, sequences: Sequence[engine_sequence.Sequence], seconds: float = SHOWN_SECONDS
) -> list[list[int]]:
    """Decode to the end, rounds of so many seconds at once, and the engine's invariants are checked after each; the
    outputs in order."""
    for sequence in sequences:
        engine.add(sequence)
    while not engine.idle:
        engine.step(seconds)
        engine.check()
    # What raises ends a request alone, and would hide here.
    assert not engine.runner.failed_passes
    assert not any("failed" in (sequence.error or "") for sequence in sequences)
    return [sequence.output for sequence in sequences]
