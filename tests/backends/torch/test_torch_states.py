"""Passes over states: rows in chunks, batches and trees give what transformers gives for their whole paths."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from devices import DEVICES, PLACES, on
from roundings import moved_by_roundings
from thinning import thorough_but
from tiny_models import make_model, reference_logits, save_model
from torch import Tensor
from transformers import PreTrainedModel

from headstart.backends.torch.backend import TorchBackend
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from headstart.passes.runner import ModelRunner, Span
from passes import BLOCK_SIZE, Rows, make_pass, path_to

KINDS = ("lfm2-long", "jamba", "bamba", "nemotron_h", "qwen3_next", "kimi_linear")
TREE = [-1, 0, 1, 2, 0, 4, 5, 6, 4]
"""A root, then branches of several depths."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def load(kind: str, device: str = "cpu") -> tuple[PreTrainedModel, TorchBackend]:
    model = make_model(kind)
    with TemporaryDirectory() as directory:
        config, weights = load_decoder(open_checkpoint(save_model(model, Path(directory))), torch.float32)
        return model, TorchBackend(config, weights, device=device)


@cache
def by_roundings(kind: str) -> float:
    model, text = load(kind)[0], some_tokens(107, seed=3)
    return moved_by_roundings(model, lambda: reference_logits(model, text))


def tolerance(kind: str) -> float:
    """Between two programs."""
    return max(1e-4, by_roundings(kind))


def runner(backend: TorchBackend) -> ModelRunner:
    return ModelRunner(backend, 400, BLOCK_SIZE, num_states=48)


def some_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 250), k=count)


def read(made: ModelRunner, sequence_id: int, tokens: list[int]) -> Tensor:
    """A chunk's logits; it is committed."""
    with made.cache.reserve({sequence_id: len(tokens)}, final={sequence_id}):
        (output,) = made.forward([Span.chain(sequence_id, tokens)])
        made.cache.commit(sequence_id, range(len(tokens)))
    return output.logits.cpu()


def tree_span(sequence_id: int, tokens: list[int]) -> Span:
    return Span(sequence_id, np.array(tokens, dtype=np.int32), np.array(TREE[: len(tokens)], dtype=np.int32))


@pytest.mark.parametrize("place", thorough_but(DEVICES, PLACES))
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_trees_and_forks_in_a_ragged_batch(kind: str, place: str) -> None:
    model, _ = load(kind)
    with on(place) as device:
        made = runner(load(kind, device)[1])
        texts = {i: some_tokens(length, seed=i) for i, length in enumerate((23, 1, 9))}
        for i, text in texts.items():
            made.cache.add(i)
            logits = torch.cat([read(made, i, text[first : first + 7]) for first in range(0, len(text), 7)])
            assert (logits - reference_logits(model, text)).abs().max() <= tolerance(kind)
        made.cache.fork(0, 3)
        texts[3] = list(texts[0])
        trees = {i: some_tokens(size, seed=10 + i) for i, size in enumerate((len(TREE), 3, 1, 6))}
        with made.cache.reserve({i: len(tree) for i, tree in trees.items()}):
            outputs = made.forward([tree_span(i, tree) for i, tree in trees.items()])
            for i, output in enumerate(outputs):
                for leaf in set(range(len(trees[i]))) - set(TREE[: len(trees[i])]):
                    path = path_to(TREE, leaf)
                    whole = [*texts[i], *(trees[i][row] for row in path)]
                    expected = reference_logits(model, whole)[len(texts[i]) :]
                    assert (output.logits.cpu()[path] - expected).abs().max() <= tolerance(kind)
            for i, leaf in enumerate((6, 2, 0, 5)):
                made.cache.commit(i, path_to(TREE, leaf))
                texts[i] += [trees[i][row] for row in path_to(TREE, leaf)]
        for i, text in texts.items():
            expected = reference_logits(model, [*text, 5])[-1]
            assert (read(made, i, [5])[-1] - expected).abs().max() <= tolerance(kind)
        made.cache.check()


def read_in_parts(made: ModelRunner, text: list[int], cuts: list[int]) -> Tensor:
    """All logits of a text that is read in chunks of these lengths; it is forgotten."""
    made.cache.add(0)
    ends = np.cumsum(cuts)
    logits = torch.cat([read(made, 0, text[end - count : end]) for count, end in zip(cuts, ends, strict=True)])
    made.cache.remove(0)
    return logits


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_how_a_text_is_cut(kind: str) -> None:
    """The same arithmetic, up to roundings of PyTorch's products, which may differ by the number of rows: where passes
    end with blocks, and row by row anywhere."""
    made, text = runner(load(kind)[1]), some_tokens(107, seed=3)
    allowed = by_roundings(kind)
    assert 0 < allowed < 1e-3
    for groups in (([107], [32, 75], [64, 32, 11]), ([7] * 15 + [2], [1] * 107, [5, 2, 4] * 9 + [6, 2])):
        expected, *others = (read_in_parts(made, text, list(cuts)) for cuts in groups)
        for other in others:
            assert (other - expected).abs().max() <= allowed


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["jamba", "bamba", "qwen3_next"])
@pytest.mark.parametrize("place", PLACES)
def test_long_chunks_in_company(kind: str, place: str) -> None:
    """Pieces beside single rows and a tree, begun anywhere; what is kept within them goes on."""
    model, _ = load(kind)
    with on(place) as device:
        made = runner(load(kind, device)[1])
        texts = {i: some_tokens(length, seed=i) for i, length in enumerate((5, 70, 33, 1))}
        for i, text in texts.items():
            made.cache.add(i)
            read(made, i, text)
        more = {i: some_tokens(length, seed=20 + i) for i, length in enumerate((90, 40, 8))}
        tree = some_tokens(len(TREE), seed=30)
        with made.cache.reserve({**{i: len(chunk) for i, chunk in more.items()}, 3: len(TREE)}, final=more):
            outputs = made.forward([*(Span.chain(i, chunk) for i, chunk in more.items()), tree_span(3, tree)])
            for i, chunk in more.items():
                expected = reference_logits(model, texts[i] + chunk)[len(texts[i]) :]
                assert (outputs[i].logits.cpu() - expected).abs().max() <= tolerance(kind)
                made.cache.commit(i, range(len(chunk)))
                texts[i] += chunk
            path = path_to(TREE, 7)
            expected = reference_logits(model, texts[3] + [tree[row] for row in path])[1:]
            assert (outputs[3].logits.cpu()[path] - expected).abs().max() <= tolerance(kind)
            made.cache.commit(3, path)
            texts[3] += [tree[row] for row in path]
        for i, text in texts.items():
            expected = reference_logits(model, [*text, 5])[-1]
            assert (read(made, i, [5])[-1] - expected).abs().max() <= tolerance(kind)
        made.cache.check()


def test_a_pass_over_cached_tokens_must_name_their_states() -> None:
    _, backend = load("lfm2-long")
    storage = backend.allocate_cache(4, BLOCK_SIZE, 2)
    with pytest.raises(ValueError, match="must say where the states"):
        backend.forward(make_pass([Rows([5, 6], 3, [0, 1])]), storage)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_stays_near_float32(kind: str) -> None:
    model, exact = load(kind)
    with TemporaryDirectory() as directory:
        config, weights = load_decoder(open_checkpoint(save_model(model, Path(directory))), torch.bfloat16)
        rounded = TorchBackend(config, weights, torch.bfloat16)
    text = some_tokens(30, seed=4)
    found = []
    for backend in (exact, rounded):
        made = runner(backend)
        made.cache.add(0)
        found.append(torch.cat([read(made, 0, text[:20]), read(made, 0, text[20:])]))
    assert (found[1] - found[0]).norm() <= 0.05 * found[0].norm()
