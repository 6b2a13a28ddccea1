"""Prompts in Spec-Bench's form."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from headstart.errors import ConfigError
from headstart.loading.model import load_model
from headstart_lab.bench.prompts import BenchPrompt, choose, encode_turns, groups_of, read_prompts


def prompt(name: str, category: str) -> BenchPrompt:
    return BenchPrompt(name, category, ("Hello?",))


def test_the_shipped_prompts_fill_six_groups_evenly():
    prompts = read_prompts()
    assert Counter(each.group for each in prompts) == dict.fromkeys(
        ("chat", "translation", "summarization", "qa", "math", "rag"), 4
    )
    assert {len(each.turns) for each in prompts if each.group == "chat"} == {2}


def test_mt_benchs_math_is_chat_and_math_reasoning_is_math():
    assert prompt("1", "math").group == "chat"
    assert prompt("1", "math_reasoning").group == "math"
    assert prompt("1", "poems").group == "poems"


def test_a_file_is_read_in_its_order(tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [
        {"id": 7, "category": "qa", "turns": ["Who?"]},
        {"id": "x", "category": "rag", "turns": ["A", "B"]},
        {"id": 8, "category": "qa", "question": "When?"},
        {"question_id": 81, "category": "writing", "turns": ["Why?"]},
    ]
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert read_prompts(file) == [
        BenchPrompt("7", "qa", ("Who?",)),
        BenchPrompt("x", "rag", ("A", "B")),
        BenchPrompt("8", "qa", ("When?",)),
        BenchPrompt("81", "writing", ("Why?",)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{", "line 1 .* is not JSON"),
        ('{"id": 1, "category": "qa", "turns": []}', "line 1 .* needs an id .*, a category and turns"),
        ('{"id": 1, "category": "qa", "turns": [""]}', "needs an id"),
        ('{"id": 1, "category": "qa", "turns": "Who?"}', "needs an id"),
        ('{"category": "qa", "turns": ["Who?"]}', "needs an id"),
        ("[1]", "line 1 .* is a list"),
        ('{"id": 1, "category": "qa", "prompt": 5}', "needs an id"),
        (
            '{"id": 1, "category": "a", "turns": ["x"]}\n{"id": "1", "category": "b", "turns": ["y"]}',
            "id '1' more than",
        ),
    ],
)
def test_other_forms_are_refused(tmp_path, text, message):
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_prompts(file)


SPEED_BENCH = {
    "question_id": "a1",
    "category": "coding",
    "sub_category": "python",
    "turns": ["Sort this.", "Faster."],
    "source": "x",
    "src_id": "7",
    "difficulty": "easy",
    "multiturn": True,
}


def test_speed_benchs_categories_are_groups_of_their_own(tmp_path):
    file = tmp_path / "qualitative.jsonl"
    rows = [SPEED_BENCH, SPEED_BENCH | {"question_id": "a2", "category": "math"}]
    rows.append(SPEED_BENCH | {"question_id": "a3", "category": "low_entropy", "multiturn": False})
    file.write_text("\n".join(json.dumps(row) for row in rows))
    read = read_prompts(file)
    assert groups_of(read) == ["coding", "math", "low_entropy"]
    assert read[0].turns == ("Sort this.", "Faster.")


def test_speed_benchs_placeholders_are_refused_with_the_mend(tmp_path):
    file = tmp_path / "qualitative.jsonl"
    placeholder = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
    file.write_text(json.dumps(SPEED_BENCH | {"turns": [placeholder]}))
    with pytest.raises(ConfigError, match=r"line 1 .* placeholder .* prepare\.py"):
        read_prompts(file)


def test_a_parquet_file_is_refused_with_the_mend(tmp_path):
    file = tmp_path / "test.parquet"
    file.write_bytes(b"PAR1\x15\x04")
    with pytest.raises(ConfigError, match="is Parquet; write its rows as JSON lines"):
        read_prompts(file)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "none.jsonl")


def test_chosen_prompts_are_spread_over_a_groups_categories():
    prompts = [prompt(f"{category}{i}", category) for category in ("writing", "coding", "qa") for i in range(5)]
    assert [each.id for each in choose(prompts, 2)] == ["writing0", "coding0", "qa0", "qa2"]
    assert choose(prompts, None) == prompts
    assert len(choose(prompts, 99)) == len(prompts)
    assert groups_of(choose(prompts, 1)) == ["chat", "qa"]


def test_a_chat_is_rendered_with_its_answers(tiny_model_dir):
    model = load_model(tiny_model_dir, "fp32")
    text = model.tokenizer.decode(encode_turns(model, ["One?", "Two?"], ["Yes."]), skip_special_tokens=False)
    assert text == (
        "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
        "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n"
    )
