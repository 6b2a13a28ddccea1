"""Answers that must have a form: JSON that fits a schema, calls of a tool; and log-probabilities that make sense."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from headstart_lab.audit.endpoint.answers import CHAT, COMPLETIONS, Answer, Choice
from headstart_lab.audit.endpoint.client import Refused
from headstart_lab.audit.endpoint.findings import Finding, failed, not_offered, passed, unclear
from headstart_lab.audit.endpoint.texts import TIE, WITNESS_TOP, Greedy, same, shown, together

COLOURS = ("red", "green", "blue")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": list(COLOURS)}, "large": {"type": "boolean"}},
    "required": ["colour", "large"],
    "additionalProperties": False,
}
"""Few outcomes, so that an answer ends."""
TOOL = {
    "type": "function",
    "function": {"name": "paint", "description": "Paint something in a colour.", "parameters": SCHEMA},
}
FORM_TOKENS = 96
_FURTHEST = 0.5
"""Nats by which rounding may change the log-probability of a likely token."""
_LIKELY = math.log(0.01)


def fits(text: str) -> bool:
    """Whether a text is JSON that fits SCHEMA."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and set(value) == {"colour", "large"}
        and value["colour"] in COLOURS
        and isinstance(value["large"], bool)
    )


async def check_grammar(greedy: Greedy) -> list[Finding]:
    """``response_format`` with a schema, greedy and drawn, alone and among others."""
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
    return await _check_form(greedy, "response_format", {"response_format": form}, lambda choice: fits(choice.text))


async def check_tools(greedy: Greedy) -> list[Finding]:
    """A call that is required is made, with arguments that fit."""
    if greedy.endpoint.api != CHAT:
        return [not_offered("tool calls", "completions have none; audit chats")]

    def right(choice: Choice) -> bool:
        return bool(choice.calls) and all(name == "paint" and fits(arguments) for name, arguments in choice.calls)

    return await _check_form(greedy, "tool calls", {"tools": [TOOL], "tool_choice": "required"}, right)


async def _check_form(
    greedy: Greedy, check: str, fields: Mapping[str, Any], right: Callable[[Choice], bool]
) -> list[Finding]:
    def ask(place: int, temperature: float, stream: bool = False) -> Any:
        asked = {"stream": stream, "temperature": temperature, "max_tokens": FORM_TOKENS, **fields}
        return greedy.endpoint.draw(greedy.prompts[place], place if temperature else None, **asked)

    places = range(len(greedy.prompts))
    try:
        alone: list[Answer] = [await ask(place, 0.0) for place in places]
    except Refused as error:
        return [not_offered(check, str(error))]
    work = [
        *(partial(ask, place, 0.0) for place in places),
        *(partial(ask, place, 1.0) for place in places),
        *(partial(ask, place, 0.0, True) for place in places if greedy.streams),
    ]
    crowd: list[Answer] = await together(work, greedy.endpoint.concurrency)
    answers = [*alone, *crowd]
    # What was cut by the limit cannot fit; whitespace may have filled it.
    ended = [answer for answer in answers if answer.first.finish_reason != "length"]
    wrong = [answer for answer in ended if not right(answer.first)]
    if not ended:
        return [unclear(check, 0, "answers", f"none ended within {FORM_TOKENS} tokens")]
    if len(wrong) == len(ended) and greedy.endpoint.api == COMPLETIONS:
        return [not_offered(check, "OpenAI's completions have no such field, and it has no effect")]
    if wrong:
        words = wrong[0].text or str(wrong[0].first.calls)
        said = f"{len(wrong)} of {len(ended)} answers do not fit the schema, such as {words[:80]!r}"
        return [failed(check, len(ended), "answers", said)]
    streams = crowd[2 * len(places) :]
    parted = sum(_shape(one) != _shape(other) for one, other in zip(alone, streams, strict=False))
    if parted:
        said = f"{parted} of {len(streams)} streams say something else than whole answers; rounding can do this"
        return [unclear(check, len(ended), "answers", said)]
    return [passed(check, len(ended), "answers")]


def _shape(answer: Answer) -> tuple[str, list[tuple[str, str]]]:
    return answer.text.strip(), list(answer.first.calls)


async def check_logprobs(greedy: Greedy, others: Greedy | None) -> list[Finding]:
    """Log-probabilities of greedy texts: in order, the text's own, the same among others and by the other server."""
    places = range(len(greedy.prompts))
    alone = [await greedy.witness(place) for place in places]
    witnesses = [answer for answer in alone if answer is not None]
    if not witnesses:
        return [not_offered("log-probabilities", "no answer has any")]
    tokens = sum(len(answer.first.positions or ()) for answer in witnesses)
    faults = [fault for answer in witnesses for fault in faults_of(answer)]
    if faults:
        said = f"{faults[0]}; {len(faults)} such"
        findings = [failed("log-probabilities", tokens, "tokens", said)]
    else:
        findings = [passed("log-probabilities", tokens, "tokens")]
    changed = [
        (place, greedy.answers[place].text, answer.text) for place, answer in enumerate(alone) if answer is not None
    ]
    findings.append(await greedy.compare("greedy texts with log-probabilities", changed))
    work = [partial(greedy.ask, place, top=WITNESS_TOP) for place in places]
    crowd = await together(work, greedy.endpoint.concurrency)
    findings.append(_nearness("log-probabilities among others", alone, crowd))
    if others is not None:
        theirs = [await others.witness(place) for place in places]
        findings.append(_nearness("log-probabilities of both servers", alone, theirs))
    return findings


def faults_of(answer: Answer) -> list[str]:
    """What cannot be in the log-probabilities of a greedy answer."""
    faults = []
    positions = answer.first.positions or ()
    for position in positions:
        if position.chosen.logprob > 1e-6:
            faults.append(f"a log-probability is {position.chosen.logprob:.3g}, above 0")
        if sum(math.exp(each.logprob) for each in position.top) > 1 + 1e-3:
            faults.append("the probabilities of a position add up to more than 1")
        if position.top and position.chosen.logprob < position.top[0].logprob - TIE:
            faults.append(
                f"the greedy token has {position.chosen.logprob:.3g} where another has {position.top[0].logprob:.3g}"
            )
    spelt = ""
    for position in positions:
        spelt += shown(position.chosen.text, answer.text, len(spelt))
    if "\ufffd" not in spelt and not same(spelt, answer.text):
        faults.append(f"the listed tokens spell {spelt[-40:]!r} where the text ends {answer.text[-40:]!r}")
    return faults


def _nearness(check: str, ones: Sequence[Answer | None], others: Sequence[Answer | None]) -> Finding:
    """How far log-probabilities of likely tokens are from each other, as long as the texts agree."""
    furthest, compared = 0.0, 0
    for one, other in zip(ones, others, strict=True):
        if one is None or other is None:
            continue
        for mine, theirs in zip(one.first.positions or (), other.first.positions or (), strict=False):
            known = {each.text: each.logprob for each in theirs.top}
            for each in mine.top:
                if each.logprob > _LIKELY and each.text in known:
                    compared += 1
                    furthest = max(furthest, abs(each.logprob - known[each.text]))
            if mine.chosen.text != theirs.chosen.text:
                break
    if not compared:
        return not_offered(check, "there is nothing to compare")
    said = f"up to {furthest:.2g} nats apart"
    if furthest > _FURTHEST:
        return failed(check, compared, "tokens", f"{said}, more than rounding makes")
    return passed(check, compared, "tokens", said if furthest else "")
