"""Every family's logits equal transformers', however the rows are cut into passes and whatever they share them with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from devices import DEVICES, on
from memory_bench import Bench, random_tokens
from roundings import moved_by_roundings
from thinning import thorough_but
from tiny_encoder_decoders import FAMILIES, features, make_model, reference_logits, save_model
from torch import Tensor
from transformers import PreTrainedModel

from headstart.backends.torch.encoder_decoder import EncoderDecoderBackend
from headstart.models.checkpoint import open_checkpoint
from headstart.models.encoder_decoder_loading import load_encoder_decoder
from passes import Rows, path_to

TREE = [-1, 0, 0, 1, 1, 2, 4, 6, 3]


@dataclass(frozen=True)
class Case:
    model: PreTrainedModel
    backend: EncoderDecoderBackend
    tolerance: float
    """Of float32: what the model makes of roundings. T5's scores are not scaled, so that it makes much of them."""

    def source(self, seed: int, length: int) -> Sequence[int] | np.ndarray:
        hears = self.backend.config.encoder is not None and self.backend.config.encoder.mel_bins is not None
        return features(seed) if hears else random_tokens(length, seed)


@cache
def tolerance(family: str) -> float:
    model = make_model(family)
    source = features(3) if family == "whisper" else random_tokens(45, 3)
    return max(1e-4, moved_by_roundings(model, lambda: reference_logits(model, source, random_tokens(40, 1))))


@cache
def load(family: str, device: str = "cpu") -> Case:
    model = make_model(family)
    with TemporaryDirectory() as directory:
        checkpoint = open_checkpoint(save_model(model, Path(directory)))
        backend = EncoderDecoderBackend(*load_encoder_decoder(checkpoint, torch.float32), device=device)
        return Case(model, backend, tolerance(family))


@pytest.fixture(params=[(family, device) for device in DEVICES for family in FAMILIES], ids=lambda it: "-".join(it))
def case(request: pytest.FixtureRequest) -> Case:
    """Every family on every device that is there."""
    return load(*request.param)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def assert_close(case: Case, actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    assert (actual.cpu() - expected.cpu()).abs().max().item() <= case.tolerance


def test_chunks_and_single_steps_equal_the_whole(case: Case) -> None:
    source, tokens = case.source(3, 45), random_tokens(40, seed=1)
    expected = reference_logits(case.model, source, tokens)
    bench = Bench(case.backend)
    memory, table = bench.encode(source), bench.take(40)
    done = 0
    for count in [13, 1, 2, 17, 1, 1, 1, 4]:
        rows = Rows(tokens[done : done + count], done, table)
        assert_close(case, bench.run([rows], [memory]), expected[done : done + count])
        done += count


def test_trees_of_a_ragged_batch_equal_their_paths(case: Case) -> None:
    bench = Bench(case.backend)
    prompts = [random_tokens(count, seed=count) for count in (3, 30, 41, 17)]
    sources = [case.source(seed, length) for seed, length in enumerate((1, 9, 60, 9))]
    memories = [bench.encode(source) for source in sources]
    trees: list[list[int] | None] = [TREE, None, [-1, 0, 0, 0], [-1]]
    parts = []
    for prompt, memory, parents, length in zip(prompts, memories, trees, [len(TREE), 6, 4, 1], strict=True):
        table = bench.take(len(prompt) + length)
        bench.run([Rows(prompt, 0, table)], [memory])
        parts.append(Rows(random_tokens(length, seed=length + 50), len(prompt), table, parents))
    logits = bench.run(parts, memories)
    start = 0
    for prompt, source, part in zip(prompts, sources, parts, strict=True):
        parents = list(part.parents) if part.parents is not None else list(range(-1, len(part.tokens) - 1))
        for leaf in set(range(len(parents))) - set(parents):
            path = path_to(parents, leaf)
            expected = reference_logits(case.model, source, prompt + [part.tokens[row] for row in path])
            assert_close(case, logits[[start + row for row in path]], expected[len(prompt) :])
        start += len(parents)


def test_outputs_follow_from_what_the_encoder_read(case: Case) -> None:
    """Or nothing above would tell whether it is read at all."""
    tokens = random_tokens(5)
    one, other = (reference_logits(case.model, case.source(seed, 12), tokens) for seed in (1, 2))
    assert (one - other).abs().max() > 0.1


def test_foreign_slots_of_pages_are_never_read() -> None:
    case = load("t5")
    bench = Bench(case.backend)
    bench.storage.pages[0].fill_(float("nan"))  # type: ignore[attr-defined]
    source, tokens = random_tokens(9, seed=1), random_tokens(3, seed=2)
    logits = bench.run([Rows(tokens, 0, bench.take(3))], [bench.encode(source)])
    assert_close(case, logits, reference_logits(case.model, source, tokens))


def test_long_inputs_are_read_in_parts_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.backends.torch.encoder._ROWS", 7)
    for family in ("t5", "umt5", "bart"):
        case = load(family)
        bench = Bench(case.backend)
        source, tokens = random_tokens(45, seed=5), random_tokens(4, seed=6)
        logits = bench.run([Rows(tokens, 0, bench.take(4))], [bench.encode(source)])
        assert_close(case, logits, reference_logits(case.model, source, tokens))


@pytest.mark.parametrize("family", thorough_but(["umt5", "bart", "whisper"], FAMILIES))
def test_nothing_is_left_on_the_processor(family: str) -> None:
    """An input, a prompt and a tree on a simulated accelerator, where tensors of two devices cannot meet."""
    said = []
    for place in ("cpu", "simulated"):
        with on(place) as device:
            case = load(family, device)
            bench = Bench(case.backend)
            memories = [bench.encode(case.source(1, 30)), bench.encode(case.source(2, 11))]
            tables = [bench.take(40), bench.take(40)]
            prompt = [Rows(random_tokens(9, 3), 0, tables[0]), Rows(random_tokens(4, 4), 0, tables[1])]
            tree = [Rows(random_tokens(len(TREE), 5), 9, tables[0], TREE), Rows([7], 4, tables[1])]
            logits = [bench.run(parts, memories) for parts in (prompt, tree)]
            assert {each.device for each in logits} == {torch.device(device)}
            said.append([each.cpu() for each in logits])
    for here, there in zip(*said, strict=True):
        assert_close(case, there, here)
