"""Schemas that would take minutes to compile, or all memory, are given up; the next one is compiled."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="needs the extra 'structured'")

from test_grammar import COMPILER, END, TOKENIZER, VOCAB
from thinning import thorough_but

from headstart.errors import RequestError
from headstart.sampling.structured import StructuredOutputsParams
from headstart.text import bounded_process, grammar_trial, grammar_worker
from headstart.text.grammar import GrammarCompiler, _Spelling

PRIMES = (7, 11, 13, 17, 19, 23)
BOMBS: dict[str, Any] = {
    "common multiples": {"json": {"allOf": [{"type": "integer", "multipleOf": prime} for prime in PRIMES]}},
    "common multiples, inside": {
        "json": {"properties": {"a": {"allOf": [{"type": "integer", "multipleOf": prime} for prime in PRIMES]}}}
    },
    "choices": {"choice": tuple(chr(0x100 + i) for i in range(0xD000))},
}


@pytest.mark.parametrize("name", thorough_but(["common multiples"], BOMBS))
def test_a_costly_structure_is_given_up_and_the_next_one_served(name: str) -> None:
    with pytest.raises(RequestError, match="takes too long or too much memory to compile") as caught:
        COMPILER.constraint(StructuredOutputsParams(**BOMBS[name]))
    assert caught.value.field == "structured_outputs"
    tokens = [*TOKENIZER.encode(json.dumps(name)), END]
    constraint = COMPILER.constraint(StructuredOutputsParams(json={"const": name}))
    assert constraint.allowed(tokens) == len(tokens)


DOUBLING = {
    "$defs": {
        "n0": {"type": "object"},
        **{f"n{i}": {"allOf": [{"$ref": f"#/$defs/n{i - 1}"}] * 2} for i in range(1, 31)},
    },
    "$ref": "#/$defs/n30",
}
CHAIN = {"$defs": {f"n{i}": {"allOf": [{"$ref": f"#/$defs/n{i + 1}"}]} for i in range(2000)}, "$ref": "#/$defs/n0"}
DEEP = '{"items":' * 20_000 + "{}" + "}" * 20_000
HOSTILE: dict[str, dict[str, Any]] = {
    "doubling": {"json": DOUBLING},
    "doubling through branches": {"json": json.loads(json.dumps(DOUBLING).replace("allOf", "anyOf"))},
    "long chain": {"json": CHAIN},
    "circle": {
        "json": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    },
    "own reference": {"json": {"$ref": "#"}},
    "wide": {"json": {"properties": {f"p{i}": {"type": "string"} for i in range(1500)}}},
    "large enumeration": {"json": {"enum": list(range(10_000))}},
    "counted": {"json": {"type": "array", "minItems": 10**9, "items": {"type": "array", "minItems": 10**9}}},
    "long text": {"json": {"type": "string", "minLength": 10**8, "maxLength": 10**9}},
    "pattern": {"json": {"type": "string", "pattern": "(a|b)*a(a|b){4000}"}},
    "expression": {"regex": "((a{1000}){1000}){1000}"},
    "nested expression": {"regex": "(" * 30_000 + "a" + ")" * 30_000},
    "classes": {"regex": r"[\w\W]{1,60000}b"},
    "numbers": {"json": {"type": "number", "minimum": 1e-300, "maximum": 1e300, "multipleOf": 1e-200}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_a_structure_holds_ends_and_ends_nothing_else(name: str) -> None:
    with suppress(RequestError):  # whether it can be followed is another question
        COMPILER.constraint(StructuredOutputsParams(**HOSTILE[name]))
    assert COMPILER.constraint(StructuredOutputsParams(regex=name)).allowed([*TOKENIZER.encode(name), END])


def test_a_schema_nested_too_deeply_is_refused() -> None:
    with pytest.raises(RequestError, match="json"):
        COMPILER.constraint(StructuredOutputsParams(json=DEEP))


@pytest.mark.thorough
def test_what_was_given_up_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    ask = bounded_process.BoundedProcess.ask
    monkeypatch.setattr(
        bounded_process.BoundedProcess, "ask", lambda self, *work: asked.append(work) or ask(self, *work)
    )
    for _ in range(3):
        with pytest.raises(RequestError, match="too long"):
            COMPILER.constraint(StructuredOutputsParams(choice=(*BOMBS["choices"]["choice"], "another")))
    assert len(asked) == 2  # in a tenth of a second, and in a second


@pytest.mark.thorough
def test_a_costly_structure_lets_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(grammar_trial, "_SECONDS", (0.3, 0.6))

    def compile_(name: str, **structure: Any) -> None:
        with suppress(RequestError):
            COMPILER.constraint(StructuredOutputsParams(**structure))
        order.append(name)

    bombs = [
        threading.Thread(target=compile_, args=("bomb",), kwargs={"choice": (*BOMBS["choices"]["choice"], str(i))})
        for i in range(3)
    ]
    for each in bombs:
        each.start()
    compile_("good", json={"const": "good"})
    for each in bombs:
        each.join()
    assert order.index("good") < 2


def test_a_schema_that_cannot_be_enforced_when_closed_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import llguidance

    def source(library: Any, wanted: Any, closing: bool) -> str:
        schema = json.loads(wanted.json) | ({"not": {}} if closing else {})
        return f"start: %json {json.dumps(schema)}"

    monkeypatch.setattr(grammar_worker, "grammar_source", source)
    spelling: Any = grammar_worker.Spelling(_Spelling(TOKENIZER, VOCAB, END).vocabulary)
    tokens = llguidance.LLTokenizer(spelling, n_vocab=VOCAB, eos_token=[END])
    for schema, complains in (({"type": "object"}, False), ({"type": "object", "not": {}}, True)):
        wanted = StructuredOutputsParams(json=schema)
        complaint, refusal, grammar = grammar_worker._tried(tokens, wanted, llguidance.LLParserLimits())
        assert (bool(complaint), refusal, '"not"' in grammar) == (complains, "", complains)


@pytest.mark.thorough
def test_a_trial_that_was_ended_from_outside_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    popen = bounded_process.subprocess.Popen

    def noted(*args: Any, **options: Any) -> Any:
        started.append(popen(*args, **options))
        return started[-1]

    monkeypatch.setattr(bounded_process.subprocess, "Popen", noted)
    compiler = GrammarCompiler(TOKENIZER, VOCAB, [END])
    assert not started
    compiler.constraint(StructuredOutputsParams(regex="a"))
    os.kill(started[0].pid, signal.SIGKILL)
    started[0].wait()
    compiler.constraint(StructuredOutputsParams(regex="b"))
    assert len(started) == 2
    del compiler
    gc.collect()
    assert started[1].wait(60) == -signal.SIGKILL


def test_where_no_process_can_be_had_only_the_request_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(bounded_process.subprocess, "Popen", refuse)
    with pytest.raises(RequestError, match="cannot be compiled now: Cannot allocate memory"):
        GrammarCompiler(TOKENIZER, VOCAB, [END]).constraint(StructuredOutputsParams(regex="a"))
