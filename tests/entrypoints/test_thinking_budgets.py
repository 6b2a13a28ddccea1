"""Budgets of thoughts: the mark that ends one is forced after so many tokens, and nothing else changes, whoever guesses
and however rounds are run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="needs the extra 'structured'")

from headstart import LLM, SamplingParams
from headstart.engine.thought_rules import ThoughtRules
from headstart.errors import RequestError
from headstart.loading.model import Model, load_model
from headstart.sampling.structured import StructuredOutputsParams
from headstart.text.answers.forms import ThoughtMarks

PROMPT = "<|im_start|>assistant\n<think>\n"
SAMPLED = SamplingParams(max_tokens=40, temperature=0.9, seed=3, ignore_eos=True)
GREEDY = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Model:
    return load_model(tiny_model_dir, "fp32")


def says(llm: LLM, *each: SamplingParams, prompt: str = PROMPT) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate([prompt] * len(each), list(each))]


def budgeted(params: SamplingParams, budget: int | None, **others: object) -> SamplingParams:
    return SamplingParams(**{**vars(params), "thinking_token_budget": budget, **others})


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_mark_is_forced_after_so_many_tokens_and_the_rest_is_what_the_target_says(
    model: Model, params: SamplingParams
) -> None:
    plain = LLM(model, "none", reasoning_parser="deepseek_r1")
    closing = model.tokenizer.encode("</think>", add_special_tokens=False)
    free = says(plain, params)[0]
    expected = []
    for budget in (0, 1, 7, 20, 33, 60):
        said = says(plain, budgeted(params, budget))[0]
        forced = [*free[:budget], *closing][: len(said)]
        assert said[: len(forced)] == forced
        rest = len(said) - len(forced)
        if rest:
            # The noise of a token is its position's: what follows is what the target says behind such a prompt.
            prompt = [*model.tokenizer.encode(PROMPT, add_special_tokens=False), *forced]
            (output,) = plain.generate([prompt], budgeted(params, None, max_tokens=rest))
            assert said[len(forced) :] == output.outputs[0].token_ids
        expected.append(said)
    # Guesses, batches, and rounds that run at once.
    each = [budgeted(params, budget) for budget in (0, 1, 7, 20, 33, 60)]
    for drafter in ("suffix", "random", "auto"):
        with LLM(model, drafter, reasoning_parser="deepseek_r1") as llm:
            assert says(llm, *each) == expected
            assert [says(llm, one)[0] for one in each] == expected


MARKS = ThoughtMarks(b"<t>", b"</t>", (4, 5), 3, [b"a", b"<t", b">b", b"<t>", b"</", b"t>", b"x</t"].__getitem__)
"""0 "a", 1 "<t", 2 ">b", 3 "<t>", 4 "</", 5 "t>", 6 "x</t"."""


def forced_after(rules: ThoughtRules, *tokens: int) -> int | None:
    return rules.forced(tokens)


def test_thoughts_begin_and_end_by_the_bytes_of_their_marks() -> None:
    rules = ThoughtRules(7, MARKS, True, False, 3, None)
    assert [forced_after(rules, *[0] * size) for size in range(4)] == [None, None, None, 4]
    assert forced_after(rules, 0, 0, 0, 4) == 5
    assert forced_after(rules, 0, 0, 0, 4, 5) is None
    assert rules.free == 3
    # It ends by itself, however its mark is cut.
    assert [forced_after(rules, 6, 2, *[0] * size) for size in range(9)] == [None] * 9
    # It begins again, with a budget of its own.
    again = (4, 5, 0, 1, 2)
    assert [forced_after(rules, *again, *[0] * size) for size in range(4)] == [None, None, None, 4]
    assert rules.allowed((0, 0, 0, 0)) == 3
    assert rules.allowed((0, 0, 0, 4, 5, 0)) == 6
    for token in (0, 0, 0, 4):
        rules.advance(token)
    assert (rules.forced(()), rules.free, rules.mask(()).tolist()) == (5, 0, [False] * 5 + [True, False])
    rules.advance(5)
    assert (rules.forced(()), rules.free) == (None, 3)


def test_structures_begin_behind_thoughts(model: Model) -> None:
    llm = LLM(model, "suffix", reasoning_parser="deepseek_r1")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    params = SamplingParams(
        max_tokens=80, temperature=0, thinking_token_budget=12, structured_outputs=StructuredOutputsParams(json=schema)
    )
    (output,) = llm.generate([PROMPT], params)
    thought, mark, said = output.outputs[0].text.partition("</think>")
    assert (len(thought), mark) == (12, "</think>")
    assert json.loads(said)["a"] in (1, 2)
    # A prompt without a thought: at once.
    assert json.loads(llm.generate(["Say: "], params)[0].outputs[0].text)["a"] in (1, 2)


def test_a_budget_without_marks_is_refused(model: Model) -> None:
    llm = LLM(model, "none")
    with pytest.raises(RequestError, match=r"thinking_token_budget .*reasoning_parser"):
        llm.generate(["x"], budgeted(GREEDY, 4))
    with pytest.raises(RequestError, match="thinking_token_budget is -1; it must be 0 or more"):
        budgeted(GREEDY, -1)
