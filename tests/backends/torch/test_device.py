"""Devices by name: those that are there compute the same texts, those that are not are refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from devices import PLACES, on
from reruns import RECORDED_PLACES, recording_on
from thinning import thorough_but

from headstart import LLM, SamplingParams, SpeculationParams
from headstart.backends.torch.device import avoid_attention_plans, finish, parse_device
from headstart.backends.torch.kit import TorchKit
from headstart.errors import ConfigError
from headstart.sampling.structured import StructuredOutputsParams
from headstart_lab.devices import available_devices

PROMPTS = ["Once upon a time", "abc abc abc abc"]
RUN_A_MODEL = {"draft-model", "multi-draft", "hierarchical"}
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


@pytest.mark.parametrize("place", thorough_but(PLACES, RECORDED_PLACES))
@pytest.mark.parametrize(
    "drafter",
    thorough_but(
        ["recycling", "draft-model"],
        ["suffix", "early-exit", "recycling", "auto", "lookahead", "draft-model", "multi-draft", "hierarchical"],
    ),
)
def test_a_device_that_is_there_keeps_plain_texts(place: str, drafter: str, tiny_model_dir: Path) -> None:
    """Also a simulated one, where nothing may be left on the processor."""
    options = {"draft_model": tiny_model_dir} if drafter in RUN_A_MODEL else {}
    with recording_on(place) as device:
        plain = LLM(tiny_model_dir, "none", precision="fp32", device=device)
        drafted = LLM(plain.model, drafter, **options)  # type: ignore[arg-type]
        assert plain.model.device == torch.device(device)
        texts = [[out.token_ids for out in llm.generate(PROMPTS, GREEDY)] for llm in (plain, drafted)]
    assert texts[0] == texts[1]


def test_the_start_says_what_recordings_may_take_and_they_can_be_left_out(tiny_model_dir: Path) -> None:
    with recording_on("recorded") as device:
        llm = LLM(tiny_model_dir, "draft-model", draft_model=tiny_model_dir, precision="fp32", device=device)
        assert sum("CUDA graphs" in notice and "--no-cuda-graphs" in notice for notice in llm.notices) == 1
        backends = [llm.model.backend, llm.engine.drafter._model.runner.backend]  # type: ignore[attr-defined]
        assert [backend.records for backend in backends] == [True, True]  # type: ignore[attr-defined]
        options = {"draft_model": tiny_model_dir, "precision": "fp32", "device": device, "cuda_graphs": False}
        llm = LLM(tiny_model_dir, "draft-model", **options)  # type: ignore[arg-type]
        assert not any("CUDA graphs" in notice for notice in llm.notices)
        backends = [llm.model.backend, llm.engine.drafter._model.runner.backend]  # type: ignore[attr-defined]
        assert [backend.records for backend in backends] == [False, False]  # type: ignore[attr-defined]


def test_requests_of_every_kind_run_where_nothing_is_left_on_the_processor(tiny_model_dir: Path) -> None:
    params = [
        SamplingParams(temperature=0, max_tokens=12, logprobs=3, prompt_logprobs=2),
        SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, max_tokens=20, seed=1),
        SamplingParams(temperature=1, repetition_penalty=1.2, frequency_penalty=0.3, max_tokens=20, seed=2),
        SamplingParams(temperature=1, logit_bias={70: 2.0}, min_tokens=5, max_tokens=20, seed=3, n=2),
        SamplingParams(temperature=0, structured_outputs=StructuredOutputsParams(choice=["yes", "no"])),
    ]
    wishes = [SpeculationParams(), SpeculationParams(verify="coupled"), SpeculationParams(typical=0.1)]
    said = []
    for place in ("cpu", "simulated"):
        with on(place) as device:
            llm = LLM(tiny_model_dir, "draft-model", draft_model=tiny_model_dir, precision="fp32", device=device)
            prompts = [PROMPTS[0]] * len(params)
            said.append(
                [
                    [each.token_ids for out in llm.generate(prompts, params, speculation=wish) for each in out.outputs]
                    for wish in wishes
                ]
            )
    assert said[0] == said[1]


class Stream:
    """Counts who waits for it."""

    waits = 0

    def synchronize(self) -> None:
        Stream.waits += 1


def test_a_pass_is_over_when_it_returns(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of drafts rest on the times of passes, which an accelerator only begins when it is asked for them."""
    over: list[torch.device] = []
    monkeypatch.setattr("headstart.backends.torch.backend.finish", over.append)
    with on("simulated") as device:
        llm = LLM(tiny_model_dir, "none", precision="fp32", device=device)
        llm.generate(PROMPTS, GREEDY)
        assert over == [torch.device(device)] * llm.engine.runner.passes
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    finish(torch.device("cuda:1"))
    finish(torch.device("cpu"))
    assert Stream.waits == 1


def test_attention_is_not_planned_anew_for_every_length() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        avoid_attention_plans(torch.device("cpu"))
        assert torch.backends.cuda.cudnn_sdp_enabled()
        avoid_attention_plans(torch.device("cuda:0"))
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_precisions_of_the_processor_are_refused_elsewhere() -> None:
    with pytest.raises(ConfigError, match="int4"):
        TorchKit("cpu").products("int4")
