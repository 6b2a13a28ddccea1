"""Rows see compressed keys of their own paths, whatever a pass holds besides."""

from __future__ import annotations

from pathlib import Path

import torch
from tiny_models import make_model, reference_logits

from headstart.backends.torch.backend import TorchBackend
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from passes import Rows, make_pass, path_to

TEXT = [3 + (7 * i * i + i) % 250 for i in range(26)]
PARENTS = (-1, 0, 1, 2, 3, 4, 0, 6, 7, 8, 1)
"""Two branches end windows of 4 tokens at their second and their sixth row, one of 16 at that."""


def test_trees(tmp_path: Path) -> None:
    reference = make_model("deepseek_v4")
    reference.save_pretrained(tmp_path)
    config, weights = load_decoder(open_checkpoint(tmp_path), torch.float32)
    backend = TorchBackend(config, weights)
    storage, blocks, other = backend.allocate_cache(6, 16), [4, 1, 3], [0, 2]
    for first, end in ((0, 15), (15, 26)):
        backend.forward(make_pass([Rows(TEXT[first:end], first, blocks)]), storage)
    tokens = [100 + 3 * row for row in range(len(PARENTS))]
    tree = Rows(tokens, 26, blocks, parents=PARENTS)
    shown = backend.forward(make_pass([Rows(TEXT[:21], 0, other), tree]), storage).logits
    for row in range(len(PARENTS)):
        path = [tokens[each] for each in path_to(PARENTS, row)]
        expected = reference_logits(reference, [*TEXT, *path])[-1]
        torch.testing.assert_close(shown[21 + row], expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(shown[:21], reference_logits(reference, TEXT[:21]), rtol=0, atol=1e-4)
