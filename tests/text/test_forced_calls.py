"""Grammars of forced calls: each family's own form, which its reader reads back."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="needs the extra 'structured'")

import llguidance

from headstart.sampling.structured import StructuredOutputsParams
from headstart.text.answers.choosing import call_forms
from headstart.text.answers.events import told
from headstart.text.answers.forms import CallForm
from headstart.text.answers.reader import AnswerReader
from headstart.text.answers.tools import Tools
from headstart.text.grammar_source import grammar_source

PROPERTIES = {
    "text": {"type": "string"},
    "whole": {"type": "integer"},
    "one": {"enum": ["x", "y"]},
    "flag": {"type": "boolean"},
    "many": {"type": "array", "items": {"type": "string"}},
    "inner": {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]},
}
TOOLS = Tools({"f": {"type": "object", "properties": PROPERTIES, "required": [*PROPERTIES][:4]}, "g": None})
END = 256
ENDS = ("\n</parameter>\n", "</parameter>\n", "</arg_value>\n", "</｜DSML｜parameter>\n")
"""Of texts without quotes."""


def special_marks(form: CallForm) -> list[str]:
    marks = {*form.marks, *form.hidden, *(mark for opening in form.openings for mark in opening.marks)}
    return sorted(mark for mark in marks if len(mark) > 3 and not mark.startswith(("</", "<tool_c", "｜", "functools")))


class Spelling:
    is_tokenizer_wrapper = True
    eos_token_id = END
    bos_token_id = None

    def __init__(self, special: list[str]) -> None:
        self.tokens = [bytes([byte]) for byte in range(256)] + [b"<end>", *(mark.encode() for mark in special)]
        self.special_token_ids = list(range(END, len(self.tokens)))

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def written(matcher: Any, spelling: Spelling, generator: random.Random) -> str | None:
    """Something that the grammar allows; None: it would become too long."""
    said = b""
    for _ in range(500):
        # Random signs hardly ever end a text.
        if said and generator.random() < 0.3:
            for end in ENDS:
                if matcher.validate_tokens(list(end.encode())) == len(end.encode()):
                    matcher.consume_tokens(list(end.encode()))
                    said += end.encode()
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, count=len(spelling.tokens), bitorder="little")).tolist()
        if END in allowed:
            return said.decode()
        soon = [token for token in allowed if token > END or chr(token) in '"]})<:,1txf']
        token = generator.choice(soon or [each for each in allowed if each < 128] or allowed)
        assert matcher.consume_token(token)
        said += spelling.tokens[token]
    return None


@pytest.mark.parametrize("form", call_forms(), ids=lambda form: form.names[0])
def test_what_a_forced_call_may_be_is_read_back(form: CallForm) -> None:
    special = special_marks(form)
    spelling = Spelling(special)
    tokens = llguidance.LLTokenizer(spelling, n_vocab=len(spelling.tokens), eos_token=[END])
    ids = {mark: END + 1 + place for place, mark in enumerate(special)}
    assert form.forced is not None
    source = grammar_source(
        llguidance, StructuredOutputsParams(grammar=form.forced.grammar(TOOLS, 2, ids.get)), closing=True
    )
    matcher = llguidance.LLMatcher(tokens, source, log_level=0)
    assert not matcher.get_error()
    generator = random.Random(form.names[0])
    read = 0
    for _ in range(12):
        text = written(matcher.deep_copy(), spelling, generator)
        if text is None:
            continue
        answer = told(AnswerReader(TOOLS, form).all(text))
        assert answer.text.strip() == ""
        assert answer.calls
        for call in answer.calls:
            arguments = json.loads(call.arguments)
            assert call.name == "g" or {*PROPERTIES} >= arguments.keys() >= {*[*PROPERTIES][:4]}
        read += 1
    assert read
