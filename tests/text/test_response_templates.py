"""A model's own ``response_template``, followed by transformers' parser."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers.utils.chat_parsing", reason="needs the extra 'server'")

from headstart.errors import ConfigError
from headstart.text.answers.events import told
from headstart.text.answers.own_template import TemplateReader, loaded
from headstart.text.answers.tools import Tools

CALL = {"type": "function", "function": {"name": "{content.n}", "arguments": "{content.a}"}}
TEMPLATE = {
    "version": 1,
    "start_anchor": "<assistant>",
    "defaults": {"role": "assistant"},
    "fields": {
        "thinking": {"open": "<th>", "close": "</th>"},
        "content": {"close": "<eos>"},
        "tool_calls": {"open": "<call>", "close": "</call>", "content": "json", "repeats": True, "transform": CALL},
    },
}
TOOLS = Tools({"f": {"type": "object", "properties": {"x": {"type": "integer"}}}})


def reader(prompt: str = "<user>Hi<assistant>") -> TemplateReader:
    return TemplateReader(loaded(TEMPLATE), prompt, TOOLS)


def test_an_answer_is_read_by_the_template_however_it_is_cut() -> None:
    text = (
        '<th>\nHm hm.\n</th>\n\nI look. <call>{"n": "f", "a": {"x": "3"}}</call> then <call>{"n": "f", "a": {}}</call>'
    )
    whole = told(reader().all(text))
    assert (whole.thought, whole.text.split()) == ("Hm hm.", ["I", "look.", "then"])
    assert [(call.name, call.arguments) for call in whole.calls] == [("f", '{"x": 3}'), ("f", "{}")]
    for cut in range(len(text)):
        parser = reader()
        streamed = told([*parser.feed(text[:cut]), *parser.feed(text[cut:]), *parser.finish()])
        assert (streamed.text, streamed.thought) == (whole.text, whole.thought)
        assert [call.arguments for call in streamed.calls] == ['{"x": 3}', "{}"]
        assert parser.called == 2
    # The prompt may begin a thought.
    assert told(reader("<user>Hi<assistant><th>").all("Hm.</th>Yes.")).thought == "Hm."


def test_what_cannot_be_read_stays_text() -> None:
    broken = 'Hi <call>{"n": "f", oh}</call> bye'
    parser = reader()
    streamed = told([*(event for sign in broken for event in parser.feed(sign)), *parser.finish()])
    for answer in (told(reader().all(broken)), streamed):
        assert answer.calls == []
        assert '{"n": "f", oh}' in answer.text
        assert answer.text.endswith("bye")
    other = told(reader().all('<call>{"n": "g", "a": {}}</call>'))
    assert (other.calls, other.text) == ([], '{"n": "g", "a": {}}')


def test_a_template_that_is_wrong_or_never_ends_harms_nobody() -> None:
    with pytest.raises(ConfigError, match="response_template is wrong"):
        loaded({"fields": {}})
    slow = TEMPLATE | {"fields": {"content": {"close_pattern": "(a+)+$b"}}}
    answer = told(TemplateReader(loaded(slow), "", TOOLS).all("a" * 40 + "!"))
    assert answer.text == "a" * 40 + "!"
