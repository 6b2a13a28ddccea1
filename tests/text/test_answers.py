"""What answers say: text, thoughts and calls, and that pieces give what the whole text gives."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import pytest

from headstart.text.answers.choosing import call_forms, thought_forms
from headstart.text.answers.events import Arguments, Call, CallBegun, CallBroken, CallEnded, Event, Text, told
from headstart.text.answers.reader import AnswerReader
from headstart.text.answers.tools import Tools

HERMES = next(form for form in call_forms() if "hermes" in form.names)
THINK = next(form for form in thought_forms() if "deepseek_r1" in form.names)
TOOLS = Tools({"add": None, "look_up": None})
ADD = '{"name": "add", "arguments": {"a": 1}}'
OTHER = '{"name": "rm", "arguments": {}}'
TAGGED = f"<tool_call>{ADD}</tool_call>"
ONE = ("add", '{"a": 1}')
Read = tuple[str, list[tuple[str, str]]]


def reader(thinking: bool = False, apart: bool = False, parallel: bool = True) -> AnswerReader:
    return AnswerReader(TOOLS, HERMES, THINK, apart=apart, thinking=thinking, parallel=parallel)


def read(pieces: Iterable[str], thinking: bool = False, parallel: bool = True) -> Read:
    parser = reader(thinking, parallel=parallel)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    answer = told(events)
    assert parser.called == len(answer.calls)
    return answer.text, plain(answer.calls)


def plain(calls: Iterable[Call]) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in calls]


def text_of(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def called(arguments: str) -> str:
    return f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>'


CASES: list[tuple[str, str | None, list[tuple[str, str]]]] = [
    # The known forms.
    (f"<tool_call>\n{ADD}\n</tool_call>", "", [ONE]),
    (f"<tool_call>[{ADD}, {ADD}]</tool_call>", "", [ONE, ONE]),
    (f"<tool_call>{ADD}", "", [ONE]),
    (f"<tool_call>{ADD}\n</tool_c", "", [ONE]),
    (f"<tool_call>{ADD}<tool_call>{ADD}</tool_call>", "", [ONE, ONE]),
    (f" [{ADD} ,{ADD}]\n", "", [ONE, ONE]),
    ('<tool_call>{"arguments": {}, "id": 7, "name": "add"}</tool_call>', "", [("add", "{}")]),
    ('<tool_call>{"name": "add", "parameters": {"b": []}}</tool_call>', "", [("add", '{"b": []}')]),
    ('<tool_call>{"name": "look_up"}</tool_call>', "", [("look_up", "{}")]),
    (called("null"), "", [("add", "{}")]),
    (called(r'" {\"a\": 1}"'), "", [ONE]),
    # The text around them.
    (f"I add.\n{TAGGED}\n{TAGGED}\n", "I add.\n", [ONE, ONE]),
    (f"I add. {TAGGED} Done, \n", "I add.  Done, \n", [ONE]),
    (f"\n{TAGGED} and {TAGGED}", " and ", [ONE, ONE]),
    (f"a < b <tool{TAGGED}", "a < b <tool", [ONE]),
    ("  \n", None, []),
    ("", None, []),
    # What a call holds.
    (called('{"d": 1e400, "i": ' + "9" * 5000 + "}"), "", [("add", '{"d": 1e400, "i": ' + "9" * 5000 + "}")]),
    (called('{"d": 1.10, "d": 0}'), "", [("add", '{"d": 1.10, "d": 0}')]),
    (called(r'{"s": "</tool_call> \" { \\"}'), "", [("add", r'{"s": "</tool_call> \" { \\"}')]),
    (called(r'{"s": "\ud800é"}'), "", [("add", r'{"s": "\ud800é"}')]),
    # Names of no function, beside good calls and alone.
    (f"<tool_call>{OTHER}</tool_call>", None, []),
    (f"<tool_call>{OTHER}</tool_call>\n{TAGGED}", f"<tool_call>{OTHER}</tool_call>\n", [ONE]),
    (f"<tool_call>[{OTHER}, {ADD}]</tool_call>", OTHER, [ONE]),
    (f"[{ADD}, {OTHER}]", OTHER, [ONE]),
    (f"[{OTHER}]", None, []),
    # Broken calls.
    (called("3"), None, []),
    (called("[]"), None, []),
    (called('{"a": NaN}'), None, []),
    (called('{"a": "two\nlines"}'), None, []),
    (called("{" + '"a": [' * 3000), None, []),
    (called('{"a": ' + "[" * 20_000 + "]" * 20_000 + "}"), None, []),
    ('<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>', None, []),
    ("<tool_call>{'name': 'add'}</tool_call>", None, []),
    ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', None, []),
    ('<tool_call>{"name": "add",}</tool_call>', None, []),
    ('<tool_call>{"name": "add"', None, []),
    (f"<tool_call>{ADD} oh</tool_call>", None, []),
    (f"<tool_call> now {TAGGED}", "<tool_call> now ", [ONE]),
    (f"{TAGGED}<tool_call>oh</tool_call>", "<tool_call>oh</tool_call>", [ONE]),
    ("<tool_call>", None, []),
    # Lists that are no calls.
    ("[1, 2]", None, []),
    ("[]", None, []),
    (f"[{ADD}] is one.", None, []),
    (f"[{ADD}, 3]", None, []),
    (f"[{ADD}", None, []),
    (f"The form is [{ADD}].", None, []),
    ('[{"name": "add"}]', None, []),
    (ADD, None, []),
    # Thoughts.
    (f"<think>… <tool_call> now</think>{TAGGED}", "<think>… <tool_call> now</think>", [ONE]),
    (f"<think>{TAGGED}?</think>\n{TAGGED}", f"<think>{TAGGED}?</think>\n", [ONE]),
    (f"Well.\n<think>{TAGGED}</think>", None, []),
    (f"{TAGGED}<think>{TAGGED}</think>[{ADD}]", f"<think>{TAGGED}</think>[{ADD}]", [ONE]),
    (f"<think>a</think>\n<think>b</think>\n[{ADD}]", "<think>a</think>\n<think>b</think>\n", [ONE]),
    (f"<think>no end {TAGGED}", None, []),
    (f"The mark <think> begins thoughts. {TAGGED}", "The mark <think> begins thoughts. ", [ONE]),
]


@pytest.mark.parametrize(("text", "said", "calls"), CASES, ids=range(len(CASES)))
def test_a_text_cut_anyhow_gives_the_same_calls_and_text(
    text: str, said: str | None, calls: list[tuple[str, str]]
) -> None:
    expected = (text if said is None else said, calls)
    answer = told(reader().all(text))
    assert (answer.text, plain(answer.calls)) == expected
    generator = random.Random(text)
    for longest in (1, 3, 9, 40) if len(text) < 10_000 else (5_000,):
        for _ in range(4):
            cuts, at = [0], 0
            while at < len(text):
                at += generator.randint(1, longest)
                cuts.append(at)
            assert read(text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)) == expected


def test_several_answers_after_each_other_keep_their_order_of_text_and_calls() -> None:
    parts = random.Random(3).choices([text for text, *_ in CASES if len(text) < 1_000], k=60)
    for first, second in pairwise(parts):
        text = first + "\nThen: " + second
        assert read(text) == read([text])


def test_an_answer_may_begin_inside_a_thought() -> None:
    text = f"I could say {TAGGED}.</think>{TAGGED}"
    assert read([text], thinking=True) == read(text, thinking=True) == (f"I could say {TAGGED}.</think>", [ONE])
    assert THINK.begins_in_thought("<|im_start|>assistant\n<think>\n")
    assert THINK.begins_in_thought("assistant: <think>So", "<think>So")
    assert not THINK.begins_in_thought("Say <think>.\nassistant\n")
    assert not THINK.begins_in_thought("<think></think>So", "<think></think>So")


@pytest.mark.parametrize("text", [TAGGED * 2, f"[{ADD}, {ADD}]", f"{TAGGED} {TAGGED}"])
def test_only_the_first_call_counts_where_one_is_allowed(text: str) -> None:
    assert read([text], parallel=False) == read(text, parallel=False) == ("", [ONE])


def shown(text: str) -> list[str]:
    parser = reader()
    return [text_of(parser.feed(piece)) for piece in text]


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("[1, 2]", 2),
        ('[{"city": 1', 4),
        ('[{"names": 1', 8),
        ('[{"name": "Oslo", "population": 1', 21),
        (f"[{ADD}, 3", len(ADD) + 4),
        ('[{"name": "add"}, {', 16),
        ("<tool_call>now", 12),
        ("<tool_call>{'", 13),
        ("<b>", 2),
    ],
)
def test_text_is_shown_as_soon_as_it_cannot_be_a_call(text: str, certain: int) -> None:
    assert "".join(shown(text)[: certain - 1]) == ""
    assert "".join(shown(text)[:certain]) == text[:certain]
    assert "".join(shown(text)) == text


def test_text_without_a_call_is_shown_as_it_comes() -> None:
    parser = reader()
    assert [text_of(parser.feed(piece)) for piece in ("Hi", " <", "b> ", "<tool", "box>")] == [
        *("Hi", " ", "<b> ", "", "<toolbox>")
    ]


def test_arguments_are_told_as_they_come() -> None:
    parser = reader()
    parts = ['<tool_call>{"name": "ad', 'd", "arguments": ', '{"a": "x', 'y", "b"', ": 1}", "}</tool_call>"]
    events = [parser.feed(part) for part in parts]
    assert [type(event) for event in events[2]] == [CallBegun, Arguments]
    said = [[event.text for event in each if isinstance(event, Arguments)] for each in events]
    assert said == [[], [], ['{"a": "x'], ['y", "b"'], [": 1}"], []]
    assert events[-1] == [CallEnded(0)]


def test_a_call_that_breaks_in_a_stream_is_taken_back_and_stays_text() -> None:
    parser = reader()
    broken = '<tool_call>{"name": "add", "arguments": {"a": 1, oh}}</tool_call>'
    events = [event for piece in [*broken, *TAGGED] for event in parser.feed(piece)] + parser.finish()
    assert [event for event in events if isinstance(event, CallBroken)] == [CallBroken(0)]
    answer = told(events)
    assert (answer.text, plain(answer.calls)) == (broken, [ONE])
    assert answer.text == told(reader().all(broken + TAGGED)).text
    assert (parser.called, parser.broken) == (1, 1)


@pytest.mark.parametrize("mark", ["Here is", "Here's"])
def test_thoughts_in_prose_are_told_apart_at_every_cut(mark: str) -> None:
    """Granite 3.2's, as vLLM reads them; its quantised models write the short form now and then."""
    form = next(form for form in thought_forms() if "granite" in form.names)
    text = f"{mark} my thought process:\n\nIt rains. {mark} my umbrella.\n\nHere is my response:\n\nTake one."
    for cut in range(len(text)):
        parser = AnswerReader(TOOLS, HERMES, form)
        answer = told(parser.feed(text[:cut]) + parser.feed(text[cut:]) + parser.finish())
        assert (answer.thought, answer.text) == (f"It rains. {mark} my umbrella.", "Take one.")
    assert told(AnswerReader(TOOLS, HERMES, form).all("It is my response: yes.")).text == "It is my response: yes."
    assert form.begins_in_thought("", f"{mark} my thought process: It")
    assert not form.begins_in_thought("", f"{mark} my thought process: It. {mark} my response: So")


def test_thoughts_are_told_apart_without_their_marks() -> None:
    text = f"<think>\nWell, {TAGGED}\n\nso.\n</think>\n\nIt is 1.\n{TAGGED}"
    parser = reader(apart=True)
    answer = told(parser.all(text))
    assert answer.thought == f"Well, {TAGGED}\n\nso."
    assert (answer.text, plain(answer.calls)) == ("It is 1.\n", [ONE])
    (begin, end), *others = parser.thoughts
    assert text[begin:end].strip() == answer.thought
    assert not others
    for size in (1, 3, 10):
        parser = reader(apart=True)
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        streamed = told([event for piece in pieces for event in parser.feed(piece)] + parser.finish())
        assert (streamed.text, streamed.thought, plain(streamed.calls)) == (answer.text, answer.thought, [ONE])
        assert parser.thoughts == [(begin, end)]


def test_an_answer_that_never_ends_its_thought_says_nothing() -> None:
    parser = reader(apart=True, thinking=True)
    assert told(parser.all("Hm, hm.")) == type(told([]))("", "Hm, hm.", [])


def test_what_is_broken_inside_of_what_is_broken_costs_no_more_than_a_few_readings() -> None:
    once = '<tool_call>{"name": "add", "arguments": {"a": "'
    for pieces in ([once * 2_000], list(once * 400)):
        parser = reader()
        for piece in pieces:
            parser.feed(piece)
        parser.finish()
        given = sum(map(len, pieces))
        assert parser.source.read < 8 * given + (1 << 15)
