"""SpecForge's own model loads a head that was exported for it, and computes with it what is trained here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_environments import SGLANG, needs, run_in
from tiny_checkpoint import HIDDEN, write_tiny_model

from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from headstart_train.decoder.rotary_table import RotaryTable
from headstart_train.files.heads import export_head
from headstart_train.first_steps.eagle import eagle_config
from headstart_train.objectives.unrolled import Unrolled
from headstart_train.states import Batch

pytestmark = [pytest.mark.engines, needs(SGLANG)]
ROWS = 12


@pytest.mark.parametrize("vocab", [64, None])
def test_specforge_computes_the_same_guesses(vocab: int | None, tmp_path: Path) -> None:
    (target := tmp_path / "target").mkdir()
    config, weights = load_decoder(open_checkpoint(write_tiny_model(target, layers=8)), torch.float32)
    torch.manual_seed(0)
    head = EagleHead(eagle_config(config, "eagle3", vocab))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if head.config.reduced:
        head.d2t.copy_(torch.arange(0, 256, 4) - torch.arange(64))
    folder = tmp_path / "head"
    export_head(head, "specforge", folder, TargetTables(weights.embedding, weights.head.weight), str(target))

    tokens, features = torch.randint(0, 259, (1, ROWS)), torch.randn(1, ROWS, 3 * HIDDEN)
    behind = torch.cat((tokens[:, 1:], torch.zeros(1, 1, dtype=torch.int64)), dim=1)
    inputs, logits = tmp_path / "inputs.pt", tmp_path / "logits.pt"
    torch.save({"features": features, "tokens": behind}, inputs)
    program = Path(__file__).parent / "specforge_trial.py"
    assert run_in(SGLANG, program, [folder, inputs, logits], tmp_path) == {"missing": [], "surplus": []}

    documents = torch.zeros(1, ROWS, dtype=torch.int64)
    batch = Batch(
        tokens=tokens, positions=torch.arange(ROWS)[None], documents=documents, answers=documents == 0,
        features=features, final=torch.zeros(1, ROWS, HIDDEN), favourites=documents,
    )  # fmt: skip
    unrolled = Unrolled(head, weights.embedding, RotaryTable(head.config.rope, torch.float32), batch)
    with torch.no_grad():
        ours = head.logits(unrolled.step())
    torch.testing.assert_close(ours, torch.load(logits)[: len(ours)], rtol=1e-4, atol=1e-4)
