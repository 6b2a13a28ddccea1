"""Passes on the tables of a recording show what the same passes show that are run anew."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from devices import on
from reruns import Reruns
from thinning import thorough_but
from tiny_models import FAMILIES, make_model, save_model

from headstart.backends.torch.backend import TorchBackend, TorchStorage
from headstart.backends.torch.recorded_pass import MOST_ROWS, PassShape
from headstart.backends.torch.recorder import Run
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from headstart.passes.batch import FINAL_TAP, KVStorage, PassBatch, PassOutput, RowInputs
from passes import BLOCK_SIZE, Rows, make_pass, path_to, random_tokens, scattered, slot

TREE = [-1, 0, 0, 1, 1, 2, 4, 6, 3]
RECORDED = (
    *FAMILIES,
    "bloom",
    "falcon-alibi",
    "olmo2",
    "ministral3",
    "granite_swa",
    "minicpm3",
    "gemma3n_text",
    "gemma4_text",
)
FEW = (
    *("llama", "llama-dynamic", "qwen2-window", "smollm3", "phi3-longrope", "granite", "gemma2", "gpt-neox"),
    *("bloom", "minicpm3", "gemma3n_text", "gemma4_text"),
)
"""Those of ``make test``."""


@dataclass(frozen=True)
class Pair:
    """One model twice."""

    eager: TorchBackend
    recording: TorchBackend
    recorder: Reruns

    def storages(self, blocks: int) -> tuple[TorchStorage, TorchStorage]:
        made = [backend.allocate_cache(blocks, BLOCK_SIZE) for backend in (self.eager, self.recording)]
        assert all(isinstance(storage, TorchStorage) for storage in made)
        return made[0], made[1]  # type: ignore[return-value]


@cache
def folder(family: str) -> TemporaryDirectory[str]:
    directory = TemporaryDirectory()
    save_model(make_model(family), Path(directory.name))
    return directory


def load(family: str, device: str = "cpu") -> Pair:
    config, weights = load_decoder(open_checkpoint(Path(folder(family).name)), torch.float32)
    recorder = Reruns(torch.device(device))
    return Pair(
        TorchBackend(config, weights, device=device),
        TorchBackend(config, weights, device=device, recorder=recorder),
        recorder,
    )


def same(expected: PassOutput, output: PassOutput) -> None:
    assert output.logits.shape == expected.logits.shape
    torch.testing.assert_close(output.logits, expected.logits, rtol=1e-4, atol=1e-4)
    assert (output.best is None) == (expected.best is None)
    if output.best is not None and expected.best is not None:
        assert output.best.dtype == np.int32
        np.testing.assert_array_equal(output.best, expected.best)
    assert output.hidden.taps == expected.hidden.taps
    np.testing.assert_allclose(output.hidden.states, expected.hidden.states, rtol=1e-4, atol=1e-4)


def run(pair: Pair, storages: tuple[KVStorage, KVStorage], batch: PassBatch, times: int = 1) -> PassOutput:
    """The same pass by both; what it writes is the same every time."""
    expected = pair.eager.forward(batch, storages[0])
    for _ in range(times):
        output = pair.recording.forward(batch, storages[1])
        same(expected, output)
    return output


@pytest.mark.parametrize("family", thorough_but(FEW, RECORDED))
def test_prompts_steps_and_trees_of_every_family(family: str) -> None:
    pair = load(family)
    storages, table = pair.storages(40), scattered(1, 40)[0]
    taps = (0, 2, pair.eager.config.num_layers, FINAL_TAP)
    tokens = random_tokens(60)
    run(pair, storages, make_pass([Rows(tokens[:40], 0, table)], taps=taps))
    for done in range(40, 44):
        run(pair, storages, make_pass([Rows([tokens[done]], done, table)], taps=taps))
    tree = random_tokens(len(TREE), seed=4)
    for _ in range(3):
        run(pair, storages, make_pass([Rows(tree, 44, table, TREE)], taps=taps))
    path = path_to(TREE, 7)
    source, target = [slot(table, 44 + row) for row in path], [slot(table, 44 + i) for i in range(len(path))]
    for storage in storages:
        storage.move(source, target)
    run(pair, storages, make_pass([Rows([5], 44 + len(path), table)], taps=taps))
    assert pair.recorder.recorded == 2
    assert pair.recorder.replayed == 6  # steps and trees from the second on, and the last step


@pytest.mark.parametrize(
    "family", thorough_but(["gemma3", "bloom", "minicpm3"], ["llama", "gemma3", "bloom", "olmo2", "minicpm3"])
)
@pytest.mark.parametrize("seed", range(3))
def test_random_batches_of_random_trees(family: str, seed: int) -> None:
    """Of mixed lengths, some of which pad both rows and sequences, with logits of some rows."""
    pair, random_ = load(family), random.Random(seed)
    tables = scattered(6, 45, seed)
    storages = pair.storages(6 * 45)
    lengths = [random_.randrange(1, 150) for _ in tables]
    for place, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        run(pair, storages, make_pass([Rows(random_tokens(length, seed=place), 0, table)], logit_rows=[]))
    for count in (1, 3, 5, 6):
        parts = []
        for place in random_.sample(range(6), count):
            rows = random_.choice([1, 1, 4, random_.randrange(1, 20)])
            parents = [random_.randrange(-1, row) if row else -1 for row in range(rows)]
            parts.append(Rows(random_tokens(rows, seed=place), lengths[place], tables[place], parents))
        total = sum(len(part.tokens) for part in parts)
        wanted = sorted(random_.sample(range(total), random_.randrange(total + 1)))
        best = np.setdiff1d(np.arange(total), wanted)[: random_.randrange(total + 1)].astype(np.int32)
        run(pair, storages, make_pass(parts, logit_rows=wanted, best_rows=best, taps=(1,)), times=3)
        run(pair, storages, make_pass(parts), times=3)
    assert pair.recorder.replayed >= 16


def test_a_tree_of_as_many_rows_as_a_path_has_bits() -> None:
    pair = load("llama")
    storages, table = pair.storages(30), scattered(1, 30)[0]
    run(pair, storages, make_pass([Rows(random_tokens(20), 0, table)]))
    chain, bush = list(range(-1, 63)), [-1, *[max(row - 3, 0) for row in range(1, 64)]]
    for parents in (chain, bush):
        run(pair, storages, make_pass([Rows(random_tokens(64, seed=1), 20, table, parents)]), times=3)
    assert pair.recorder.replayed == 6  # all but the prompt, which has this shape, too


@pytest.mark.thorough
def test_a_text_that_grows_past_a_bound_of_keys() -> None:
    pair = load("mistral")
    storages, table = pair.storages(80), scattered(1, 80)[0]
    tokens = random_tokens(300)
    run(pair, storages, make_pass([Rows(tokens[:120], 0, table)]))
    for done in range(120, 270, 3):
        run(pair, storages, make_pass([Rows(tokens[done : done + 3], done, table)]))
    assert pair.recorder.recorded == 3  # up to 128, 256 and 512 keys


def test_sequences_that_share_blocks() -> None:
    """As those do that begin with the same tokens."""
    pair = load("qwen3-yarn")
    storages, shared = pair.storages(24), [3, 9, 1]
    run(pair, storages, make_pass([Rows(random_tokens(12), 0, shared)], logit_rows=[]))
    parts = [
        Rows(random_tokens(5, seed=1), 12, [*shared, 5, 6]),
        Rows(random_tokens(3, seed=2), 12, [*shared, 11], [-1, 0, 0]),
    ]
    run(pair, storages, make_pass(parts), times=3)
    assert pair.recorder.replayed == 2


def test_fewer_layers_are_recorded_apart() -> None:
    pair = load("llama")
    storages, table = pair.storages(8), scattered(1, 8)[0]
    run(pair, storages, make_pass([Rows(random_tokens(20), 0, table)]))
    for _ in range(2):
        for depth in (2, 4):
            run(pair, storages, make_pass([Rows([7], 20, table)], num_layers=depth, taps=(depth,)))
    assert pair.recorder.recorded == 2


def test_foreign_and_freed_slots_are_never_read() -> None:
    pair = load("gemma2")
    tables = scattered(2, 12, seed=5)
    storages = pair.storages(2 * 12)
    for storage in storages:
        storage.pages[0].fill_(torch.nan)
    for table, length in zip(tables, (30, 5), strict=True):
        run(pair, storages, make_pass([Rows(random_tokens(length), 0, table)]))
    parts = [Rows([4], 30, tables[0]), Rows(random_tokens(4, seed=8), 5, tables[1], [-1, 0, 0, 2])]
    assert torch.isfinite(run(pair, storages, make_pass(parts), times=3).logits).all()


def test_what_a_replay_showed_stays_as_it_was() -> None:
    pair = load("llama")
    storages, table = pair.storages(8), scattered(1, 8)[0]
    shown = []
    for token in (5, 6, 7, 8):
        shown.append(run(pair, storages, make_pass([Rows([token], 0, table)], taps=(1,))))
    logits, states = [each.logits.clone() for each in shown], [each.hidden.states.copy() for each in shown]
    run(pair, storages, make_pass([Rows([50], 0, table)], taps=(1,)))
    for output, before, held in zip(shown, logits, states, strict=True):
        assert torch.equal(output.logits, before)
        assert np.array_equal(output.hidden.states, held)


def test_what_does_not_fit_runs_anew() -> None:
    pair = load("llama")
    storages, tables = pair.storages(2000), scattered(20, 100)
    values = torch.zeros(1, pair.eager.config.hidden_size)
    long = make_pass([Rows(random_tokens(65), 0, tables[0])])
    many = make_pass([Rows(random_tokens(20, seed=place), 0, table) for place, table in enumerate(tables)])
    given = make_pass([Rows([4], 0, tables[0])], inputs=RowInputs(np.zeros(1, np.int32), values))
    assert MOST_ROWS < 32 * 32
    for batch in (long, many, given):
        run(pair, storages, batch, times=3)
    assert pair.recorder.recorded == 0


@pytest.mark.parametrize("family", ["mixtral", "lfm2"])
def test_models_whose_passes_ask_the_device_are_not_recorded(family: str) -> None:
    assert not load(family).recording.records


def test_storages_do_not_share_recordings() -> None:
    pair = load("llama")
    first, second = pair.storages(8), pair.storages(8)
    batch = make_pass([Rows([9], 0, [2])])
    for storages in (first, second):
        run(pair, storages, batch, times=2)
    assert pair.recorder.recorded == 2


def test_the_shape_is_the_least_grid_that_holds_the_rows() -> None:
    """Rows are padded by powers of four up to 64 in all, by powers of two beyond."""
    parts = [Rows(random_tokens(5), 100, range(60)), Rows([3], 125, range(60)), Rows([3], 3, range(60))]
    assert PassShape.of(make_pass(parts, logit_rows=[0, 5, 6], taps=(3, 1)), 4) == (4, 16, 128, 4, 0, (3, 1), 4)
    assert PassShape.of(make_pass(parts[:2]), 4) == (2, 16, 128, 16, 0, (), 4)
    many = make_pass([*parts, *parts[1:]], logit_rows=[])
    assert PassShape.of(many, 4) == (8, 8, 128, 0, 0, (), 4)
    wide = [Rows(random_tokens(33), 0, range(60)), Rows(random_tokens(33), 0, range(60))]
    assert PassShape.of(make_pass(wide), 4) == (2, 64, 128, 128, 0, (), 4)
    best = np.zeros(1, np.int32)
    one = make_pass([Rows([3], 128, range(60))], logit_rows=[], best_rows=best)
    assert PassShape.of(one, 4) == (1, 1, 256, 0, 1, (), 4)


class Refusing(Reruns):
    """Fails as a device does that cannot do something while it records."""

    def record(self, run: Run) -> Run:
        raise RuntimeError("operation not permitted when stream is capturing\nSearch for it in the manual.")


def test_where_recording_fails_passes_run_anew_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    pair = load("llama")
    pair.recording._recorder = Refusing(torch.device("cpu"))
    storages, table = pair.storages(8), scattered(1, 8)[0]
    for rows in (1, 2):
        run(pair, storages, make_pass([Rows(random_tokens(rows), 0, table)]), times=3)
    assert [record.getMessage() for record in caplog.records] == [
        "Passes could not be recorded as CUDA graphs, so they run one kernel at a time, as correct and slower "
        "(operation not permitted when stream is capturing). Leave recording out with cuda_graphs=False, or "
        "--no-cuda-graphs."
    ]


@pytest.mark.parametrize("family", ["llama3", "gemma3", "falcon-alibi", "gpt2"])
def test_nothing_is_left_on_the_processor(family: str) -> None:
    with on("simulated") as device:
        pair = load(family, device)
        storages, table = pair.storages(20), scattered(1, 20)[0]
        outputs = []
        for backend, storage in zip((pair.eager, pair.recording), storages, strict=True):
            passes = [make_pass([Rows(random_tokens(30), 0, table)])]
            passes += 3 * [make_pass([Rows(random_tokens(9, seed=1), 30, table, TREE)], taps=(0, FINAL_TAP))]
            outputs.append([backend.forward(batch, storage) for batch in passes])
        assert pair.recorder.replayed == 2
        for expected, output in zip(*outputs, strict=True):
            assert output.logits.device == torch.device(device)
            torch.testing.assert_close(output.logits.cpu(), expected.logits.cpu(), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(output.hidden.states, expected.hidden.states, rtol=1e-4, atol=1e-4)
