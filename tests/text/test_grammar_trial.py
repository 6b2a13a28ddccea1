"""Schemas that would take minutes to compile, or all memory, are given up; the next one is compiled."""

from __future__ import annotations

import gc
import json
import os
import signal
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="needs the extra 'structured'")

from test_grammar import COMPILER, END, TOKENIZER, VOCAB

from headstart.errors import RequestError
from headstart.sampling.structured import StructuredOutputsParams
from headstart.text import grammar_trial
from headstart.text.grammar import GrammarCompiler

PRIMES = (7, 11, 13, 17, 19, 23)
BOMBS: dict[str, Any] = {
    "common multiples": {"json": {"allOf": [{"type": "integer", "multipleOf": prime} for prime in PRIMES]}},
    "common multiples, inside": {
        "json": {"properties": {"a": {"allOf": [{"type": "integer", "multipleOf": prime} for prime in PRIMES]}}}
    },
    "choices": {"choice": tuple(chr(0x100 + i) for i in range(0xD000))},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_costly_structure_is_given_up_and_the_next_one_served(name: str) -> None:
    with pytest.raises(RequestError, match="takes too long or too much memory to compile") as caught:
        COMPILER.constraint(StructuredOutputsParams(**BOMBS[name]))
    assert caught.value.field == "structured_outputs"
    tokens = [*TOKENIZER.encode(json.dumps(name)), END]
    constraint = COMPILER.constraint(StructuredOutputsParams(json={"const": name}))
    assert constraint.allowed(tokens) == len(tokens)


def test_a_trial_that_was_ended_from_outside_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    popen = grammar_trial.subprocess.Popen

    def noted(*args: Any, **options: Any) -> Any:
        started.append(popen(*args, **options))
        return started[-1]

    monkeypatch.setattr(grammar_trial.subprocess, "Popen", noted)
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

    monkeypatch.setattr(grammar_trial.subprocess, "Popen", refuse)
    with pytest.raises(RequestError, match="cannot be compiled now: Cannot allocate memory"):
        GrammarCompiler(TOKENIZER, VOCAB, [END]).constraint(StructuredOutputsParams(regex="a"))
