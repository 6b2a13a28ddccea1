"""vLLM's speculators package, where it is installed, loads what is exported and computes with it what is trained here.

It brings a torch of its own, so it is no development dependency (docs/training.md says what was tried).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
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

pytestmark = pytest.mark.filterwarnings("ignore")
speculators = pytest.importorskip("speculators", reason="the package speculators is not installed")

ROWS, STEPS = 40, 3


@pytest.mark.parametrize("vocab", [64, None])
def test_speculators_computes_the_same_steps(tmp_path: Path, vocab: int | None) -> None:
    """Every tensor arrives, and three steps of its training-time test say what ours do."""
    target = tmp_path / "target"
    target.mkdir()
    config, weights = load_decoder(open_checkpoint(write_tiny_model(target)), torch.float32)
    torch.manual_seed(0)
    head = EagleHead(eagle_config(config, "eagle3", vocab))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if head.config.reduced:
        head.d2t.copy_(torch.arange(0, 256, 4) - torch.arange(64))
    export_head(
        head, "speculators", tmp_path / "head", TargetTables(weights.embedding, weights.head.weight), str(target)
    )

    described = speculators.SpeculatorModelConfig.from_pretrained(tmp_path / "head")
    described.transformer_layer_config._attn_implementation = "eager"
    theirs: Any = speculators.SpeculatorModel.from_pretrained(tmp_path / "head", config=described).float().eval()
    loaded = theirs.state_dict()
    for name, tensor in load_file(tmp_path / "head" / "model.safetensors").items():
        assert torch.equal(loaded[name].to(tensor.dtype), tensor), name

    tokens, features = torch.randint(0, 259, (1, ROWS)), torch.randn(1, ROWS, 3 * HIDDEN)
    said: list[torch.Tensor] = []
    theirs.lm_head.register_forward_hook(lambda module, inputs, output: said.append(output[0].detach()))
    documents = torch.zeros(1, ROWS, dtype=torch.int64)
    with torch.no_grad(), torch._dynamo.config.patch(disable=True):
        behind = torch.cat((tokens[:, 1:], documents[:, :1]), dim=1)
        theirs(features, behind, documents, ttt_steps=STEPS)
    batch = Batch(
        tokens=tokens, positions=torch.arange(ROWS)[None], documents=documents, answers=documents == 0,
        features=features, final=torch.zeros(1, ROWS, HIDDEN), favourites=documents,
    )  # fmt: skip
    unrolled = Unrolled(head, weights.embedding, RotaryTable(head.config.rope, torch.float32), batch)
    for step in range(STEPS):
        with torch.no_grad():
            ours = head.logits(unrolled.step())
        # Beyond the end of the text the two fill in differently.
        rows = len(ours) - step
        torch.testing.assert_close(ours[:rows], said[step][:rows], rtol=1e-4, atol=1e-4)
