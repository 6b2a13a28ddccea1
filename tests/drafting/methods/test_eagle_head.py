"""What passes make of an EAGLE head's rows is what the head itself makes of the whole text, without any cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from head_toys import HIDDEN, head_target, random_eagle, random_tables

from headstart.backends.torch.eagle_pass import EaglePass
from headstart.drafting.head_files.loading import load_head
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.methods.eagle.head import EagleHead
from headstart_train.decoder.rotary_table import RotaryTable
from headstart_train.files.heads import save_head

VOCAB = 12
HEADS: dict[str, dict[str, object]] = {
    "EAGLE-3.1": {},
    "EAGLE-3": {"fc_norm": False, "norm_output": False},
    "one norm over all features": {"fc_norm": False, "norm_before_fc": True},
    "three layers": {"num_layers": 3},
    "three layers, EAGLE-3": {"num_layers": 3, "fc_norm": False, "norm_output": False, "norm_before_residual": True},
    "Qwen 3's layers": {"num_layers": 2, "head_norms": True},
    "a window": {"windows": (3,)},
    "some layers with windows": {"num_layers": 3, "windows": (4, 0, 4), "head_norms": True, "norm_output": False},
}


@torch.no_grad()
def outputs(head: EagleHead, tokens: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """[row, hidden] of the last layer, each row seeing those before it as far as its layer's window reaches."""
    config, rows = head.config, len(tokens)
    rotary = RotaryTable(config.rope, torch.float32)
    at = partial(rotary.rotate, positions=torch.arange(rows), reach=rows)
    far = torch.arange(rows)[:, None] - torch.arange(rows)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shared = config.num_heads // config.num_kv_heads
        k, v = (each.repeat_interleave(shared, dim=1).transpose(0, 1) for each in (k, v))
        window = config.windows[layer] if config.windows else 0
        mask = (far >= 0) & (far < (window or rows))
        return F.scaled_dot_product_attention(q.transpose(0, 1), k, v, mask).transpose(0, 1).flatten(1)

    return head(F.embedding(tokens, random_tables(VOCAB).embedding), features, at, attend)


@pytest.mark.parametrize("name", HEADS)
@torch.no_grad()
def test_a_prompt_and_steps_behind_it(name: str, tmp_path: Path) -> None:
    """Read in two pieces, then a chain; as a file brought it."""
    save_head(random_eagle(VOCAB, **HEADS[name]), tmp_path)
    config = random_eagle(VOCAB, **HEADS[name]).config
    head = load_head(tmp_path, head_target(VOCAB))
    assert isinstance(head, EagleHead)
    assert head.config == config
    running = EaglePass(head, random_tables(VOCAB), torch.float32)
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, VOCAB, 9).astype(np.int32)
    features = torch.from_numpy(rng.normal(size=(6, len(config.taps) * HIDDEN))).float()
    cache = running.new_cache()
    running.read(tokens[:4], features[:4], [DraftRows(cache, 4)])
    state, logits = running.read(tokens[4:6], features[4:], [DraftRows(cache, 2)])
    fed = head.fuse(features)
    for step in range(4):
        wanted = outputs(head, torch.from_numpy(tokens[: 6 + step]).long(), fed)[-1:]
        torch.testing.assert_close(logits, head.logits(wanted, random_tables(VOCAB).head), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(state, head.feed_back(wanted), rtol=1e-4, atol=1e-4)
        if step == 3:
            break
        fed = torch.cat((fed, head.feed_back(wanted)))
        path = np.arange(step + 1, dtype=np.int32)[None]
        state, logits = running.step(tokens[6 + step : 7 + step], state, [DraftRows(cache, 1, path)])
