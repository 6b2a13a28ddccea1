"""Multi-token modules: equal to the same modules in plain PyTorch, with transformers' layers and no cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from devices import DEVICES
from multi_token_models import Reference, write_modules
from torch import Tensor

from headstart.backends.torch.multi_token_pass import MultiTokenPass
from headstart.drafting.heads.head_pass import DraftCache, DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.models.checkpoint import open_checkpoint
from headstart.models.multi_token_modules import load_multi_token
from headstart.models.weight_loading import load_decoder

TOKENS = [5, 17, 3, 44, 9, 61, 28, 70, 11, 2, 33, 90, 8]
CASES = [
    ("deepseek_v3", 1),
    ("deepseek_v3", 3),
    ("glm4_moe", 1),
    ("glm4_moe", 2),
    ("mimo", 1),
    ("mimo", 2),
    ("mellum", 1),
    ("qwen3_next", 1),
    ("mimo_v2_flash", 3),
    ("step3p7", 1),
    ("step3p7", 3),
    ("hy_v4", 2),
    ("longcat_flash", 1),
    ("deepseek_v4", 1),
    ("deepseek_v4", 2),
]


def opened(family: str, modules: int, directory: Path, device: str = "cpu") -> tuple[Reference, MultiTokenPass]:
    reference = write_modules(family, directory, modules)
    checkpoint = open_checkpoint(directory)
    config, weights = load_decoder(checkpoint, torch.float32)
    found = load_multi_token(checkpoint, config, torch.float32)
    assert found is not None
    assert len(found.modules) == modules
    tables = TargetTables(weights.embedding, weights.head.weight)
    return reference, MultiTokenPass(found, tables, torch.float32, device)


def states_of(length: int, hidden: int, seed: int = 0) -> Tensor:
    return torch.randn(length, hidden, generator=torch.Generator().manual_seed(seed))


def read(
    running: MultiTokenPass, cache: DraftCache, tokens: Sequence[int], hidden: Tensor, end: int
) -> tuple[Tensor, Tensor]:
    """The rows up to position ``end``."""
    rows = slice(cache.rows, end)
    group = DraftRows(cache, end - cache.rows)
    return running.read(np.array(tokens[1:][rows], dtype=np.int32), hidden[rows], [group])


def path(*rows: int) -> np.ndarray:
    return np.array([rows], dtype=np.int32)


@torch.no_grad()
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("family", "modules"), CASES)
@pytest.mark.parametrize("chunks", [(), (4, 5, 9)])
def test_chains(family: str, modules: int, chunks: tuple[int, ...], device: str, tmp_path: Path) -> None:
    """Each module is told the guesses before; the last one goes on from its own states."""
    reference, running = opened(family, modules, tmp_path, device)
    hidden = states_of(len(TOKENS) - 1, reference.width)
    cache = running.new_cache()
    for end in (*chunks, len(TOKENS) - 1):
        states, logits = read(running, cache, TOKENS, hidden, end)
    assert states.shape == (1, modules * reference.width)
    text = list(TOKENS)
    for depth in range(modules):
        made = reference.states(text, hidden)
        wanted = reference.logits(made[depth][-1], depth)
        torch.testing.assert_close(logits[0].cpu(), wanted, rtol=2e-4, atol=2e-4)
        text.append(int(wanted.argmax()) ^ 1)
        group = DraftRows(cache, 1, path(*range(depth + 1)))
        states, logits = running.step(np.array(text[-1:], dtype=np.int32), states, [group])
    assert cache.rows == len(TOKENS) - 1 + modules
    # Unrolled: the last module reads its own state of the row before.
    if modules == 1:
        more = torch.cat((hidden, reference.states(TOKENS, hidden)[0][-1:]))
        torch.testing.assert_close(
            logits[0].cpu(), reference.logits(reference.states(text, more)[0][-1]), rtol=2e-4, atol=2e-4
        )


@torch.no_grad()
@pytest.mark.parametrize(("family", "modules"), [("deepseek_v3", 2), ("glm4_moe", 1), ("mellum", 1), ("mimo", 3)])
def test_trees_of_several_sequences(family: str, modules: int, tmp_path: Path) -> None:
    """A row of a draft sees the true rows and its own path, whatever stands beside it."""
    reference, running = opened(family, modules, tmp_path)
    texts = [TOKENS, TOKENS[3:10]]
    hidden = [states_of(len(text) - 1, running.config.hidden_size, seed) for seed, text in enumerate(texts)]
    caches = [running.new_cache() for _ in texts]
    states, _ = running.read(
        np.array([token for text in texts for token in text[1:]], dtype=np.int32),
        torch.cat(hidden),
        [DraftRows(cache, len(text) - 1) for cache, text in zip(caches, texts, strict=True)],
    )
    level = np.array([20, 21, 30, 31], dtype=np.int32)
    first, _ = running.step(
        level,
        states.repeat_interleave(2, 0),
        [DraftRows(cache, 2, np.array([[0], [1]], dtype=np.int32)) for cache in caches],
    )
    # Of the second level: two children of the second node, one of the first.
    parents, tokens = [1, 1, 0], np.array([40, 41, 42, 50, 51, 52], dtype=np.int32)
    paths = np.array([[1, 2], [1, 3], [0, 4]], dtype=np.int32)
    rows = torch.tensor([*parents, *(2 + parent for parent in parents)])
    _, logits = running.step(tokens, first[rows], [DraftRows(cache, 3, paths) for cache in caches])
    for place, text in enumerate(texts):
        for child, parent in enumerate(parents):
            said = [*text, int(level[2 * place + parent]), int(tokens[3 * place + child])]
            wanted = _unrolled(reference, said, hidden[place])
            torch.testing.assert_close(logits[3 * place + child], wanted, rtol=2e-4, atol=2e-4)


def _unrolled(reference: Reference, text: list[int], hidden: Tensor) -> Tensor:
    """Logits after a text that goes on beyond ``hidden`` by two tokens."""
    modules = len(reference.parts)
    if modules >= 3:
        return reference.logits(reference.states(text, hidden)[2][-1])
    if modules == 1:
        for end in (-2, -1):
            hidden = torch.cat((hidden, reference.states(text[:end], hidden)[0][-1:]))
        return reference.logits(reference.states(text, hidden)[0][-1])
    # The second module reads the first one's states as far as there are any, then its own.
    alone = replace(reference, num_layers=reference.num_layers + 1, parts=reference.parts[1:])
    before = reference.states(text[:-2], hidden)[0]
    second = alone.states(text[1:-1], before)[0]
    return reference.logits(alone.states(text[1:], torch.cat((before, second[-1:])))[0][-1])


@torch.no_grad()
@pytest.mark.parametrize("modules", [1, 3])
def test_rows_are_kept_and_taken_over_block_by_block(modules: int, tmp_path: Path) -> None:
    reference, running = opened("mimo", modules, tmp_path)
    text = [*TOKENS, *range(40, 80)]
    hidden = states_of(len(text) - 1, running.config.hidden_size)
    whole = running.new_cache()
    read(running, whole, text, hidden, 45)
    blocks = []
    for first, end in ((0, 19), (19, 39)):
        blocks.append(running.new_cache())
        blocks[-1].extend(whole, first, end - first)
    whole.release()
    other = running.new_cache()
    read(running, other, TOKENS, hidden, 8)
    again = running.new_cache()
    for block in blocks:
        again.extend(block, 0, block.rows)
    assert again.rows == 39
    _, logits = read(running, again, text, hidden, len(text) - 1)
    wanted = reference.states(text, hidden)
    torch.testing.assert_close(logits[0], reference.logits(wanted[0][-1]), rtol=2e-4, atol=2e-4)
    again.truncate(40)
    states, _ = read(running, again, text, hidden, len(text) - 1)
    for k, made in enumerate(states.view(modules, -1)):
        torch.testing.assert_close(made, wanted[k][-1], rtol=2e-4, atol=2e-4)


def test_given_back_blocks_are_used_again(tmp_path: Path) -> None:
    _, running = opened("mimo", 1, tmp_path)
    hidden = states_of(len(TOKENS) - 1, running.config.hidden_size)
    sizes = set()
    for _ in range(20):
        cache = running.new_cache()
        read(running, cache, TOKENS, hidden, len(TOKENS) - 1)
        cache.release()
        sizes.add(len(running._pool.tensors[0]))
    assert len(sizes) == 1
