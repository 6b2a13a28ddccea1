"""Lines of a file of prompts."""

from __future__ import annotations

import json

import pytest

from headstart.errors import ConfigError, RequestError
from headstart.text.prompt_lines import FORMS, PromptLine, parse_lines, read_lines

MESSAGES = [{"role": "user", "content": "Hello"}]


def line(**fields: object) -> PromptLine:
    return PromptLine(1, fields)


def test_lines_keep_their_numbers_and_fields(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "id": 7}\r\n \n{"turns": ["b", "c"]}\n')
    first, second = read_lines(path)
    assert (first.number, first.fields, first.texts()) == (1, {"prompt": "a", "id": 7}, ["a"])
    assert (second.number, second.forms, second.texts()) == (3, ["turns"], ["b", "c"])


def test_every_form_is_read():
    assert line(question="a").texts() == line(prompt="a").texts() == line(turns=["a"]).texts() == ["a"]
    assert line(messages=MESSAGES).messages() == MESSAGES
    assert line(**{key: ["x"] for key in FORMS}, other=1).forms == list(FORMS)


def test_turns_come_before_a_prompt():
    assert line(prompt="a", turns=["b"]).texts() == ["b"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "nothing to answer"),
        ({"prompt": 5}, "a prompt that is a number"),
        ({"question": None}, "a question that is null"),
        ({"turns": "a"}, "turns that are a text"),
        ({"turns": []}, "turns that are an empty list"),
        ({"turns": ["a", 5]}, "a turn that is no text"),
    ],
)
def test_what_is_no_text_is_refused(fields, reason):
    with pytest.raises(RequestError, match=reason):
        line(**fields).texts()


def test_messages_are_a_list_of_at_least_one():
    for given in ([], {"role": "user"}):
        with pytest.raises(RequestError, match="messages that are"):
            line(messages=given).messages()


@pytest.mark.parametrize("text", ["{", "[1]", json.dumps("a"), "[" * 100_000])
def test_a_line_that_is_no_object_says_so_and_stops_no_other(text):
    first, bad = parse_lines(f'{{"prompt": "a"}}\n{text}'.encode(), "it")
    assert first.error is None
    assert bad.error is not None
    assert not bad.forms


def test_bytes_that_are_no_text_are_one_bad_line():
    (bad,) = parse_lines(b'{"prompt": "\xff"}', "it")
    assert bad.error == "is not UTF-8 (invalid start byte); give one JSON object a line."


def test_files_without_lines_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="it is empty"):
        parse_lines(b"\n \n", "it")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_lines(tmp_path / "none")
