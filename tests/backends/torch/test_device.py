"""Devices by name: those that are there compute the same texts, those that are not are refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headstart import LLM, SamplingParams
from headstart.backends.torch.device import available_devices, parse_device
from headstart.backends.torch.kit import TorchKit
from headstart.errors import ConfigError

PROMPTS = ["Once upon a time", "abc abc abc abc"]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "tpu", "meta", "cpu:-1", "xpu:0"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="device is"):
        parse_device(name)


def test_what_is_absent_is_refused_before_anything_is_read(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name in ("cuda", "cuda:1", "mps"):
        with pytest.raises(
            ConfigError, match=f"device is '{name}', but there is no such accelerator here.*device 'cpu'"
        ):
            LLM("/not/even/looked/at", device=name)
    assert available_devices() == ["cpu"]


def test_of_several_one_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parse_device("cuda") == torch.device("cuda")
    assert parse_device("cuda:1").index == 1
    with pytest.raises(ConfigError, match="cuda:0 to cuda:1"):
        parse_device("cuda:2")


@pytest.mark.parametrize("device", available_devices())
@pytest.mark.parametrize("drafter", ["suffix", "early-exit", "recycling", "auto"])
def test_a_device_that_is_there_keeps_plain_texts(device: str, drafter: str, tiny_model_dir: Path) -> None:
    plain = LLM(tiny_model_dir, "none", precision="fp32", device=device)
    drafted = LLM(plain.model, drafter)
    assert plain.model.device == torch.device(device)
    texts = [[out.token_ids for out in llm.generate(PROMPTS, GREEDY)] for llm in (plain, drafted)]
    assert texts[0] == texts[1]


def test_precisions_of_the_processor_are_refused_elsewhere() -> None:
    with pytest.raises(ConfigError, match="int4"):
        TorchKit("cpu")._dtype("int4")
