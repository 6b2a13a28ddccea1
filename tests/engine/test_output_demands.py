"""What a decoder's ``generation_config.json`` demands of every output, held against transformers' generate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from headstart import LLM, CheckpointError, SamplingParams
from headstart.loading.model import load_model

PROMPT = [72, 101, 108, 108]
DRAFTERS = ["none", "auto", "random"]


def demanding(directory: Path, source: Path, **settings: Any) -> Path:
    """A copy of a model whose generation settings say more."""
    shutil.copytree(source, directory, dirs_exist_ok=True)
    path = directory / "generation_config.json"
    known = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    path.write_text(json.dumps({**known, **settings}), "utf-8")
    return directory


def reference(directory: Path, prompt: list[int], count: int, **settings: Any) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    said = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, **settings)
    tokens: list[int] = said[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1]], ids=["prompt", "one token"])
def test_a_decoder_says_what_its_files_demand(tiny_model_dir: Path, tmp_path: Path, prompt: list[int]) -> None:
    plain = LLM(tiny_model_dir, "none", precision="fp32")
    greedy = SamplingParams(temperature=0, max_tokens=14)
    free = plain.generate([prompt], greedy)[0].token_ids
    directory = demanding(
        tmp_path,
        tiny_model_dir,
        suppress_tokens=[free[3]],
        begin_suppress_tokens=[free[0]],
        bad_words_ids=[[free[5]], [free[1], free[2]]],
        forced_bos_token_id=9,
        forced_eos_token_id=11,
    )
    model = load_model(directory, "fp32")
    expected = reference(directory, prompt, 14)
    assert expected != free
    for drafter in DRAFTERS:
        (output,) = LLM(model, drafter).generate([prompt], greedy)
        assert output.token_ids == expected, drafter
    # What is forced is said though it is forbidden.
    late = SamplingParams(temperature=0, max_tokens=14, min_tokens=14, banned_token_ids=(11,))
    for drafter in DRAFTERS:
        (output,) = LLM(model, drafter).generate([prompt], late)
        assert output.token_ids[-1] == 11
        assert output.outputs[0].error is None


def test_settings_that_are_no_tokens_are_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="bad_words_ids"):
        load_model(demanding(tmp_path, tiny_model_dir, bad_words_ids=[["a"]]), "fp32")
