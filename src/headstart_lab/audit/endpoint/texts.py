"""Texts that must be the same: asked again, among others, streamed, shorter, by the other server.

A greedy text may part from itself where the two best tokens are as good as equal and the arithmetic of a fuller batch
rounds differently. The server's own log-probabilities at that place tell such a tie from a fault.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from headstart_lab.audit.endpoint.answers import Answer, Position
from headstart_lab.audit.endpoint.client import Endpoint, Refused
from headstart_lab.audit.endpoint.findings import Finding, Result, failed, not_offered, passed, unclear

TIE = 0.25
"""Nats between two tokens that rounding may swap: two steps of bf16 for logits up to 32."""
WITNESS_TOP = 5
"""Best tokens that are asked for beside each token of a greedy text."""
_SHOWN = 40
"""Characters of a text that a report shows on either side."""


@dataclass(frozen=True)
class Parting:
    """Where one text leaves another."""

    prompt: int
    """Its number, from 1."""
    character: int
    expected: str
    heard: str
    gap: float | None
    """Nats between the tokens that the two texts go on with, by the server's own log-probabilities; None: not known."""
    tie: bool | None
    """Rounding explains it; None: nothing tells."""


@dataclass
class Greedy:
    """The greedy texts of one server, asked one at a time: what everything else is held against."""

    endpoint: Endpoint
    prompts: Sequence[str]
    max_tokens: int
    answers: list[Answer] = field(default_factory=list)
    """[prompt]"""
    seen: list[tuple[int, int, Answer]] = field(default_factory=list)
    """(prompt, max_tokens, answer) of every greedy request with one choice, for the checks of counts."""
    streams: bool = True
    """The server has not refused to stream."""
    _witnesses: dict[int, Answer | None] = field(default_factory=dict)

    async def ask(self, place: int, max_tokens: int | None = None, **fields: Any) -> Answer:
        """A greedy answer to the prompt of that number."""
        length = max_tokens or self.max_tokens
        answer = await self.endpoint.ask(self.prompts[place], temperature=0, max_tokens=length, **fields)
        if "n" not in fields and "stop" not in fields:
            self.seen.append((place, length, answer))
        return answer

    async def begin(self) -> None:
        """Ask for all texts, one after the other."""
        for place in range(len(self.prompts)):
            self.answers.append(await self.ask(place))

    async def witness(self, place: int) -> Answer | None:
        """The same answer with log-probabilities; None: the server gives none."""
        if place not in self._witnesses:
            try:
                answer = await self.ask(place, top=WITNESS_TOP)
            except Refused:
                self._witnesses[place] = None
            else:
                self._witnesses[place] = answer if answer.first.positions else None
        return self._witnesses[place]

    async def parting(self, place: int, expected: str, heard: str) -> Parting:
        """Where and why two texts of a prompt part."""
        at = shared_length(expected, heard)
        witness = await self.witness(place)
        gap, tie = (None, None) if witness is None else _judge(witness, expected, heard, at)
        around = slice(max(at - _SHOWN // 2, 0), at + _SHOWN // 2)
        return Parting(place + 1, at, expected[around], heard[around], gap, tie)

    async def compare(self, check: str, pairs: Sequence[tuple[int, str, str]]) -> Finding:
        """A finding about (prompt, expected text, heard text) pairs that must be equal."""
        partings = [await self.parting(*pair) for pair in pairs if not same(pair[1], pair[2])]
        return judged(check, len(pairs), partings)


def judged(check: str, trials: int, partings: Sequence[Parting]) -> Finding:
    """What the places where texts part make of a check."""
    details = [asdict(parting) for parting in partings]
    if not partings:
        return passed(check, trials, "texts")
    faults = [parting for parting in partings if parting.tie is False]
    blind = [parting for parting in partings if parting.tie is None]
    if faults:
        furthest = max((parting.gap for parting in faults if parting.gap is not None), default=None)
        gap = "" if furthest is None else f", where the best token leads by up to {furthest:.2g} nats"
        return failed(check, trials, "texts", f"{len(faults)} of {trials} texts differ{gap}", details)
    if blind:
        why = f"{len(partings)} of {trials} texts differ, and no log-probabilities tell rounding from a fault"
        return unclear(check, trials, "texts", why, details)
    furthest = max(parting.gap or 0.0 for parting in partings)
    said = f"{len(partings)} of {trials} texts differ, all where tokens are within {furthest:.2g} nats"
    return Finding(check, trials, "texts", Result.ROUNDING, said, details=tuple(details))


async def check_greedy(greedy: Greedy) -> list[Finding]:
    """Greedy texts: again, among others, shorter."""
    places = range(len(greedy.prompts))
    short = max(greedy.max_tokens // 4, 1)

    async def again(place: int) -> tuple[int, str, str]:
        return place, greedy.answers[place].text, (await greedy.ask(place)).text

    async def shorter(place: int) -> tuple[int, str, str]:
        heard = (await greedy.ask(place, short)).text
        return place, greedy.answers[place].text[: len(heard)], heard

    async def noise(place: int) -> None:
        await greedy.endpoint.draw(greedy.prompts[place], place, temperature=1, max_tokens=greedy.max_tokens)

    findings = [
        await greedy.compare("greedy texts asked again", [await again(place) for place in places]),
        await greedy.compare("greedy texts cut shorter", [await shorter(place) for place in places]),
    ]
    for level in sorted({2, greedy.endpoint.concurrency}):
        work: list[Callable[[], Awaitable[tuple[int, str, str] | None]]] = []
        for place in places:
            # Between them, texts of other lengths, and draws.
            work += [partial(again, place), partial(noise, place), partial(shorter, place)]
        heard = [pair for pair in await together(work, level) if pair is not None]
        findings.append(await greedy.compare(f"greedy texts, {level} at a time", heard))
    return findings


async def check_streams(greedy: Greedy) -> Finding:
    """Greedy texts, piece by piece."""
    check = "greedy texts, streamed"
    pairs = []
    try:
        for place, answer in enumerate(greedy.answers):
            pairs.append((place, answer.text, (await greedy.ask(place, stream=True)).text))
    except Refused as error:
        greedy.streams = False
        return not_offered(check, str(error))
    return await greedy.compare(check, pairs)


async def check_ends(greedy: Greedy) -> Finding:
    """Texts that end by themselves end there whatever the limit, and say so."""
    check = "texts that end by themselves"
    ended = [place for place, answer in enumerate(greedy.answers) if answer.first.finish_reason == "stop"]
    pairs, wrong = [], 0
    for place in ended:
        answer = await greedy.ask(place, 2 * greedy.max_tokens)
        pairs.append((place, greedy.answers[place].text, answer.text))
        wrong += answer.first.finish_reason != "stop" and same(answer.text, greedy.answers[place].text)
    if not pairs:
        return unclear(check, 0, "texts", f"none ends within {greedy.max_tokens} tokens")
    if wrong:
        return failed(check, len(pairs), "texts", f"{wrong} of {len(pairs)} name another finish_reason than stop")
    return await greedy.compare(check, pairs)


async def check_stops(greedy: Greedy) -> list[Finding]:
    """A stop string from the middle of a known text cuts it there, whole or streamed."""
    findings: list[Finding] = []
    for streamed in (False, True) if greedy.streams else (False,):
        check = "stop strings, streamed" if streamed else "stop strings"
        pairs: list[tuple[int, str, str]] = []
        faults: list[str] = []
        for place, answer in enumerate(greedy.answers):
            for stop in _inner_pieces(answer.text):
                try:
                    heard = await greedy.ask(place, stop=[stop], stream=streamed)
                except Refused as error:
                    return [*findings, not_offered(check, str(error))]
                expected = answer.text[: answer.text.find(stop)]
                pairs.append((place, expected, heard.text))
                if stop in heard.text:
                    faults.append("a stop string is in the text")
                elif same(heard.text, expected) and heard.first.finish_reason != "stop":
                    faults.append(f"finish_reason is {heard.first.finish_reason!r} after a stop string")
                elif heard.text.startswith(expected) and not same(heard.text, expected):
                    faults.append("a text goes on where its stop string stands")
        if faults:
            said = f"{faults[0]}, in {len(faults)} of {len(pairs)} answers"
            findings.append(failed(check, len(pairs), "texts", said))
        else:
            findings.append(await greedy.compare(check, pairs))
    return findings


async def check_counts(greedy: Greedy) -> list[Finding]:
    """``usage`` against what is known: the limit where a text reached it, the listed tokens, the prompt's other
    answers."""
    counted = [(place, limit, answer) for place, limit, answer in greedy.seen if answer.completion_tokens is not None]
    if not counted:
        return [not_offered("usage", "no answer has counts")]
    faults: list[str] = []
    prompts: dict[int, int | None] = {}
    for place, limit, answer in counted:
        said = answer.completion_tokens or 0
        if answer.first.finish_reason == "length" and said != limit:
            faults.append(f"completion_tokens is {said} for a text cut at max_tokens {limit}")
        elif said > limit:
            faults.append(f"completion_tokens is {said}, beyond max_tokens {limit}")
        parts = answer.prompt_tokens, answer.total_tokens
        if None not in parts and answer.total_tokens != (answer.prompt_tokens or 0) + said:
            faults.append(f"total_tokens is {answer.total_tokens}, not prompt_tokens + completion_tokens")
        # The token that ends a text may be counted and not listed.
        listed = answer.first.positions
        if listed is not None and said - len(listed) not in (0, int(answer.first.finish_reason == "stop")):
            faults.append(f"completion_tokens is {said} where {len(listed)} tokens have log-probabilities")
        if prompts.setdefault(place, answer.prompt_tokens) != answer.prompt_tokens:
            faults.append(f"prompt_tokens of one prompt is {prompts[place]} and {answer.prompt_tokens}")
    if faults:
        return [failed("usage", len(counted), "answers", f"{faults[0]}; {len(faults)} such in {len(counted)} answers")]
    return [passed("usage", len(counted), "answers")]


async def check_samples(greedy: Greedy, count: int = 3) -> list[Finding]:
    """``n`` greedy samples are the one text ``n`` times; drawn ones are not all the same."""
    pairs: list[tuple[int, str, str]] = []
    drawn: list[list[str]] = []
    for place, answer in enumerate(greedy.answers):
        try:
            several = await greedy.ask(place, n=count)
            sampled = await greedy.endpoint.draw(
                greedy.prompts[place], place, temperature=1, n=count, max_tokens=greedy.max_tokens
            )
        except Refused as error:
            return [not_offered("n", str(error))]
        if len(several.choices) == 1:
            return [not_offered("n", f"one choice came back where n is {count}")]
        if len(several.choices) != count or len(sampled.choices) != count:
            said = f"{len(several.choices)} and {len(sampled.choices)} choices came back where n is {count}"
            return [failed("n", 2, "answers", said)]
        if several.completion_tokens and all(choice.finish_reason == "length" for choice in several.choices):
            wanted = count * greedy.max_tokens
            if several.completion_tokens != wanted:
                said = f"completion_tokens is {several.completion_tokens} for n = {count}, not {wanted}"
                return [failed("n", 1, "answers", said)]
        pairs += [(place, answer.text, choice.text) for choice in several.choices]
        drawn.append([choice.text for choice in sampled.choices])
    if all(len(set(texts)) == 1 for texts in drawn):
        return [failed("n", len(drawn), "answers", f"all {count} draws are the same text, for every prompt")]
    return [await greedy.compare("n", pairs)]


async def check_seeds(greedy: Greedy, others: Greedy | None) -> list[Finding]:
    """A seeded draw is the same again, among others; by the other server, which is only told."""
    places = range(len(greedy.prompts))

    def ask(place: int, asked: Greedy = greedy) -> Awaitable[Answer]:
        return asked.endpoint.ask(asked.prompts[place], temperature=1, seed=1000 + place, max_tokens=asked.max_tokens)

    try:
        first = [(await ask(place)).text for place in places]
        second = [(await ask(place)).text for place in places]
    except Refused as error:
        return [not_offered("seeds asked again", str(error))]
    work = [partial(ask, place) for place in places for _ in range(2)]
    crowd = [answer.text for answer in await together(work, greedy.endpoint.concurrency)]
    differing = sum(not same(*pair) for pair in zip(first, second, strict=True))
    among = sum(not same(first[i // 2], text) for i, text in enumerate(crowd))
    if len(places) > 1 and differing == len(places):
        return [not_offered("seeds asked again", "a seed changes nothing: no text came back the same")]
    findings = [_told("seeds asked again", differing, len(first))]
    findings.append(_told(f"seeds, {greedy.endpoint.concurrency} at a time", among, len(crowd)))
    if others is not None:
        theirs = [(await ask(place, others)).text for place in places]
        findings.append(
            _told("seeds of both servers", sum(not same(*pair) for pair in zip(first, theirs, strict=True)), len(first))
        )
    return findings


async def check_against(greedy: Greedy, others: Greedy) -> Finding:
    """The greedy texts of two servers of one model."""
    pairs = [
        (place, theirs.text, ours.text)
        for place, (ours, theirs) in enumerate(zip(greedy.answers, others.answers, strict=True))
    ]
    return await greedy.compare("greedy texts of both servers", pairs)


async def together(work: Sequence[Callable[[], Awaitable[Any]]], level: int) -> list[Any]:
    """Results of requests of which so many are under way at once, in order."""
    room = asyncio.Semaphore(level)

    async def one(begin: Callable[[], Awaitable[Any]]) -> Any:
        async with room:
            return await begin()

    # If one fails the others end with it: what is asked next may have to be alone.
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(begin)) for begin in work]
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


def same(one: str, other: str) -> bool:
    """Equal, but for white space around: servers of chats may trim it."""
    return one == other or one.strip() == other.strip()


def shared_length(one: str, other: str) -> int:
    """Characters that two texts begin with in common."""
    length = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    return min(len(one), len(other)) if length is None else length


def hidden(text: str) -> bool:
    """Whether a token of this text is one that answers do not show, such as the end of a text."""
    return not text or (text.startswith("<") and text.endswith(">") and len(text) > 2)


def shown(token: str, text: str, at: int) -> str:
    """What of a token stands at a place of a text: nothing, where it is hidden and the text does not have it."""
    return "" if hidden(token) and not text.startswith(token, at) else token


def _told(check: str, differing: int, trials: int) -> Finding:
    if not differing:
        return passed(check, trials, "texts")
    return unclear(check, trials, "texts", f"{differing} of {trials} differ; rounding can do this, and so can a fault")


def _inner_pieces(text: str) -> list[str]:
    """Two short pieces from the inside of a text, neither of which it begins with."""
    pieces = []
    for part in (3, 2):
        at = len(text) // part
        piece = text[at : at + 3 + part].strip()
        if len(piece) >= 2 and text.find(piece) > 0 and piece not in pieces:
            pieces.append(piece)
    return pieces


def _judge(witness: Answer, expected: str, heard: str, at: int) -> tuple[float | None, bool | None]:
    """(nats between the two continuations, whether that is a tie) at the token where two texts part."""
    text, positions = "", witness.first.positions or ()
    for position in positions:
        piece = shown(position.chosen.text, witness.text, len(text))
        if len(text) + len(piece) > at or (len(text) == at and not piece):
            if not expected.startswith(text) or not heard.startswith(text):
                return None, None
            return _between(position, expected[len(text) :], heard[len(text) :])
        text += piece
    return None, None


def _between(position: Position, *rests: str) -> tuple[float | None, bool | None]:
    """The same, from the texts after the token's place."""
    matched = []
    for rest in rests:
        fitting = [each for each in position.top if _begins(rest, each.text)]
        if not fitting:
            return None, False
        # The longest is what the text goes on with: "no" begins "not", too.
        matched.append(max(fitting, key=lambda each: len(each.text)))
    best = position.top[0].logprob
    gap = max(best - each.logprob for each in matched)
    # Servers that say minus infinity: of no use in a report.
    return (gap, gap <= TIE) if math.isfinite(gap) else (None, False)


def _begins(rest: str, token: str) -> bool:
    if hidden(token):
        return not rest
    if "\ufffd" in token:  # part of a character
        return True
    return bool(rest) and (rest.startswith(token) or token.startswith(rest))
