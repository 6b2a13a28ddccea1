"""``headstart derive`` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cli_runs import headstart, refusal, rows
from tiny_checkpoint import LAYERS

from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights


def test_a_model_of_all_layers_says_the_same(tiny_model_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "whole"
    done = headstart("derive", "-m", tiny_model_dir, "--layers", LAYERS, "--out", out, "--dtype", "fp32")
    assert done.exit_code == 0
    assert done.stdout == ""
    answers = [
        rows(headstart("generate", "-m", model, "--chat", "Hi", "--temperature", "0", "--max-tokens", "24", "--json"))[
            0
        ]["token_ids"]
        for model in (tiny_model_dir, out)
    ]
    assert answers[0] == answers[1]
    small = tmp_path / "small"
    (told,) = rows(headstart("derive", "-m", tiny_model_dir, "--layers", 2, "--out", small, "--json"))
    assert told == {"directory": str(small), "layers": [0, LAYERS - 1], "of": LAYERS, "dtype": "bf16"}


def decoder(directory: Path) -> tuple[ModelConfig, DecoderWeights]:
    return load_decoder(open_checkpoint(directory), torch.float32)


@pytest.mark.parametrize(("layers", "chosen"), [("2", [0, 2]), ("0,1", [0, 1]), ("1", [0]), ("2,0", [2, 0])])
def test_layers_are_spread_or_named(tiny_model_dir: Path, tmp_path: Path, layers: str, chosen: list[int]) -> None:
    out = tmp_path / "small"
    assert headstart("derive", "-m", tiny_model_dir, "--layers", layers, "--out", out, "--dtype", "fp32").exit_code == 0
    (_, whole), (config, small) = decoder(tiny_model_dir), decoder(out)
    assert config.num_layers == len(chosen)
    for layer, origin in zip(small.layers, chosen, strict=True):
        assert layer.mixer.qkv.weight.equal(whole.layers[origin].mixer.qkv.weight)


def test_it_drafts_for_the_model_it_came_from(tiny_model_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    headstart("derive", "-m", tiny_model_dir, "--layers", "0,1", "--out", out)
    arguments = ["generate", "-m", tiny_model_dir, "Hello", "--temperature", "0", "--max-tokens", "24", "--json"]
    (drafted,) = rows(headstart(*arguments, "-d", "draft-model", "--draft-model", out))
    (plain,) = rows(headstart(*arguments, "-d", "none"))
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["stats"]["drafted"] > 0


@pytest.mark.parametrize(("layers", "named"), [("0", "1 to 3"), ("4", "1 to 3"), ("0,3", "0 to 2"), ("0,-1", "0 to 2")])
def test_layers_that_are_not_there_are_refused(tiny_model_dir: Path, tmp_path: Path, layers: str, named: str) -> None:
    assert named in refusal(headstart("derive", "-m", tiny_model_dir, "--layers", layers, "--out", tmp_path / "small"))
    assert not (tmp_path / "small").exists()


def test_layers_that_are_no_numbers_are_misuse(tiny_model_dir: Path, tmp_path: Path) -> None:
    assert "'few'" in refusal(headstart("derive", "--layers", "few", "--out", tmp_path / "small"), status=2)


def test_nothing_is_overwritten(tiny_model_dir: Path) -> None:
    sentence = refusal(headstart("derive", "-m", tiny_model_dir, "--layers", "2", "--out", tiny_model_dir))
    assert "exists already" in sentence
