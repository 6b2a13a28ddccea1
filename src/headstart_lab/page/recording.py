"""Runs for the lab page that are measured once and played again without a server."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from headstart.entrypoints.llm import LLM
from headstart.sampling.params import SamplingParams
from headstart_lab.page.events import Event, LabEvents, lab_prompt
from headstart_lab.provenance import finished, model_record, provenance

PAIRS = 5
"""How often a prompt is decoded both ways: the pair with the median speed-up is kept, and all speed-ups are named."""
_DIGITS = 4


def record(llm: LLM, title: str, prompt: str, max_tokens: int, advance: Callable[[], None]) -> dict[str, Any]:
    """Answer a prompt greedily, with speculation and plainly in turns, and keep every round as it was verified.

    One pair goes first and is not counted: it warms up the machine and what the drafter knows of its speed.

    Args:
        llm: must not be used by anything else meanwhile.
        title: what the page calls the run.
        prompt: a message where the model has a chat template, else a text to continue.
        max_tokens: most output tokens.
        advance: called after each of the ``PAIRS + 1`` pairs.

    Returns:
        The run as plain values: where and how it was measured, and the events of both answers.

    Raises:
        RequestError: the prompt cannot be served.
    """
    where = provenance()
    pairs = []
    for _ in range(PAIRS + 1):
        pairs.append([_answer(llm, prompt, max_tokens, speculate) for speculate in (True, False)])
        advance()
    pairs = pairs[1:]
    factors = [_rate(speculating) / _rate(plain) for speculating, plain in pairs]
    kept = factors.index(sorted(factors)[PAIRS // 2])
    speculating, plain = pairs[kept]
    return {
        "title": title,
        "prompt": prompt,
        "settings": {"temperature": 0, "max_tokens": max_tokens},
        "factors": [round(factor, 3) for factor in factors],
        "kept": kept,
        "model": model_record(llm.model),
        "provenance": finished(where),
        "speculating": list(_short(speculating)),
        "plain": list(_short(plain)),
    }


def _answer(llm: LLM, prompt: str, max_tokens: int, speculate: bool) -> list[Event]:
    encoded = lab_prompt(llm, [{"role": "user", "content": prompt}])
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    wishes = replace(llm.speculation, enabled=speculate)
    # A fresh salt: neither cached prefixes nor what drafters learnt from another answer flatters this one.
    (sample,) = llm.samples(encoded, params, wishes, cache_salt=f"recording/{secrets.token_hex(8)}", trace=True)
    told = LabEvents(sample, llm.drafter_name if speculate else None, llm.model.tokenizer)
    events = [told.start()]
    llm.engine.add(sample.sequence)
    while not sample.sequence.finished:
        llm.engine.step()
        if (piece := sample.next_piece()) is not None:
            events += told.of(piece)
    return events


def _rate(events: Sequence[Event]) -> float:
    """Tokens a second from the first round's start, which comes after the prompt has been read."""
    rounds = [event for event in events if event["event"] == "round"]
    first = rounds[0]
    began = first["seconds"] - first["draft_seconds"] - first["pass_seconds"]
    return float(sum(len(event["tokens"]) for event in rounds) / (rounds[-1]["seconds"] - began))


def _short(events: Sequence[Event]) -> Iterator[Event]:
    """Numbers in as many digits as can be seen; seconds to the microsecond."""
    for event in events:
        yield {name: _shortened(name, value) for name, value in event.items()}


def _shortened(name: str, value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if name.endswith("seconds") else float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {inner: _shortened(inner, each) for inner, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shortened(name, each) for each in value]
    return value
