"""``headstart import`` and back: a head for another program becomes one of ours that a drafter runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cli_runs import headstart, refusal, rows
from safetensors.torch import load_file
from tiny_checkpoint import write_tiny_model

from headstart import LLM, SamplingParams
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from headstart_train.files.heads import save_head
from headstart_train.first_steps.eagle import eagle_config


@pytest.mark.parametrize("kind", ["sglang", "specforge", "speculators", "eagle3"])
def test_there_and_back(kind: str, tmp_path: Path) -> None:
    (model := tmp_path / "model").mkdir()
    config, _ = load_decoder(open_checkpoint(write_tiny_model(model, layers=8)), torch.float32)
    torch.manual_seed(0)
    head = EagleHead(eagle_config(config, "eagle3", 64))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    head.d2t.copy_(torch.arange(0, 192, 3) - torch.arange(64))
    save_head(head, tmp_path / "own", dtype=torch.bfloat16)
    own, theirs, back = (tmp_path / name for name in ("own", "theirs", "back"))
    target = ["--model", model]
    (told,) = rows(headstart("export", own, "--to", kind, "--out", theirs, *target, "--json"))
    assert told == {"directory": str(theirs), "format": kind, "left_out": ""}
    (told,) = rows(headstart("import", theirs, "--out", tmp_path / "told", *target, "--json"))
    assert (told["directory"], told["head"], told["imported_from"]) == (str(tmp_path / "told"), "eagle3", str(theirs))
    assert (told["taps"], told["draft_vocab_size"]) == ([2, 4, 5], 64)
    result = headstart("import", theirs, "--out", back, *target)
    assert result.exit_code == 0
    assert "eagle3, reads the inputs of layers 2, 4, 5" in result.stdout
    assert "can say 64 of 259 tokens" in result.stdout

    first, again = load_file(own / "model.safetensors"), load_file(back / "model.safetensors")
    assert all(torch.equal(first[name].float(), again[name].float()) for name in first)
    described = json.loads((back / "config.json").read_text())
    record = described.pop("headstart")
    assert described == json.loads((own / "config.json").read_text())
    assert (record["target"], record["imported_from"]) == (str(model), str(theirs))
    if kind != "sglang":
        return
    prompt, params = "Once upon a time", SamplingParams(temperature=0, max_tokens=12)
    drafting = LLM(model, drafter="eagle3", draft_model=back, drafter_options={"min_probability": 0})
    with LLM(model, drafter="none") as plain, drafting as llm:
        (out,) = llm.generate([prompt], params)
        assert out.token_ids == plain.generate([prompt], params)[0].token_ids
        assert out.stats.drafted > 0


def test_refusals_say_what_to_do(tiny_model_dir: Path, tmp_path: Path) -> None:
    rest = ["--out", tmp_path / "out", "--model", tiny_model_dir]
    assert "name the directory of a head" in refusal(headstart("import", tmp_path / "none", *rest))
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refusal(headstart("import", tmp_path / "empty", *rest))
    assert not (tmp_path / "out").exists()
