"""A family's own form of calls as a grammar, in the syntax of Lark as llguidance reads it: what a forced call is held
to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headstart.text.answers.tools import Tools

Special = Callable[[str], int | None]
"""The id of the special token that is spelled so; None: there is none."""
_TEXT = "/(?s:.*)/"
_MARK = re.compile(r"(<[|｜/a-zA-Z][^<>\n ]{0,60}>|\[/?[A-Z_]{2,20}\])")
"""What special tokens are spelled like."""


class Grammar:
    """Rules that grow. ``special``: see there."""

    def __init__(self, special: Special) -> None:
        self._special = special
        self._rules: list[str] = []

    def literal(self, text: str) -> str:
        """A text as it stands, special tokens in it as such."""
        parts: list[str] = []
        plain = ""
        for part in _MARK.split(text):
            token = self._special(part) if part else None
            if token is None:
                plain += part
                continue
            parts += [_quoted(plain), f"<[{token}]>"] if plain else [f"<[{token}]>"]
            plain = ""
        return " ".join([*parts, *([_quoted(plain)] if plain or not parts else [])])

    def rule(self, body: str, attributes: str = "") -> str:
        """A new rule; its name."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def json(self, schema: Any) -> str:
        """What fits a schema, as JSON."""
        return self.rule(f"%json {json.dumps(schema, ensure_ascii=False)}")

    def text_until(self, end: str) -> str:
        """Any text without the mark that ends it, and that."""
        mark = end.rstrip()
        ending = self.literal(mark)
        # No text can hold a special token.
        text = f"{self.rule(_TEXT)} {ending}" if "<[" in ending else self.rule(_TEXT, f"[suffix={ending}]")
        return f"{text} {self.literal(end[len(mark) :])}"

    def source(self, start: str) -> str:
        """All rules, and what the output begins with."""
        return "\n".join([f"start: {start}", *self._rules])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class ForcedCalls(Protocol):
    """How forced calls are written."""

    def grammar(self, tools: Tools, most: int, special: Special) -> str:
        """Of at least one call, and at most so many."""


class ArgumentsForm(Protocol):
    """How the arguments of a call are written."""

    def rule(self, grammar: Grammar, schema: Mapping[str, Any]) -> str:
        """A grammar of arguments that fit the schema of an object."""


@dataclass(frozen=True)
class Frame:
    """What stands around names and arguments."""

    opening: str
    """Before a function's name."""
    named: str
    """Between its name and its arguments."""
    closing: str
    arguments: ArgumentsForm
    before: str = ""
    """Before all calls."""
    between: str = ""
    after: str = ""
    quoted: bool = False
    """Names stand in quotes."""
    most: int | None = None
    """Calls that an answer may hold; None: any number."""

    def grammar(self, tools: Tools, most: int, special: Special) -> str:
        """As ``ForcedCalls``."""
        made = Grammar(special)
        calls = []
        for name, schema in tools.schemas.items():
            written = json.dumps(name, ensure_ascii=False) if self.quoted else name
            arguments = self.arguments.rule(made, schema or {"type": "object"})
            head = made.literal(self.opening + written + self.named)
            calls.append(f"({head} {arguments} {made.literal(self.closing)})")
        call = made.rule(" | ".join(calls))
        further = min(most, self.most or most) - 1
        more = f" ({made.literal(self.between)} {call}){{0,{further}}}" if further > 0 else ""
        return made.source(f"{made.literal(self.before)} {call}{more} {made.literal(self.after)}")


@dataclass(frozen=True)
class JsonArguments:
    """A JSON object."""

    def rule(self, grammar: Grammar, schema: Mapping[str, Any]) -> str:
        """As ``ArgumentsForm``."""
        return grammar.json(schema)


def json_frame(opening: str, closing: str, arguments: str = "arguments", **others: str) -> Frame:
    """Calls that are JSON objects; ``opening``, ``closing``: around each of them."""
    return Frame(
        opening + '{"name": ',
        f', "{arguments}": ',
        "}" + closing,
        JsonArguments(),
        quoted=True,
        **others,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class Pairs:
    """Parameters one after another, each with its value, in the order of the schema."""

    opening: str
    """Before a parameter's name."""
    named: str
    """Between its name and a value that is a text."""
    closing: str
    """Behind a value that is a text."""
    between: str = ""
    before: str = ""
    after: str = ""
    quote: str | None = ""
    """Around texts; None: they are written as JSON."""
    named_json: str | None = None
    """``named`` of other values, where it differs."""
    closing_json: str | None = None
    """``closing`` of other values, where it differs."""
    words: tuple[str, str, str] = ("true", "false", "null")
    nested: bool = False
    """Objects inside are written alike, with braces; else as JSON."""

    def rule(self, grammar: Grammar, schema: Mapping[str, Any]) -> str:
        """As ``ArgumentsForm``."""
        pairs = self._pairs(grammar, schema, schema)
        return f"{grammar.literal(self.before)} {pairs} {grammar.literal(self.after)}"

    def _pairs(self, grammar: Grammar, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        declared = schema.get("properties")
        properties = declared if isinstance(declared, Mapping) else {}
        required = schema.get("required")
        needed = set(required) if isinstance(required, list) else set()
        # [first or not] what may follow from here on.
        tails = ['""', '""']
        for name, own in reversed(list(properties.items())):
            head = self.opening + name
            pair = self._value(grammar, own, root, head)
            here = [f"{pair} {tails[1]}", f"{grammar.literal(self.between)} {pair} {tails[1]}"]
            if name not in needed:
                here = [f"({body}) | {tail}" for body, tail in zip(here, tails, strict=True)]
            tails = [grammar.rule(body) for body in here] if self.between else [grammar.rule(here[0])] * 2
        return tails[0]

    def _value(self, grammar: Grammar, schema: Any, root: Mapping[str, Any], head: str) -> str:
        """A value of a parameter whose name is written, with all around it."""
        types = _type_of(schema)
        named = self.named if self.named_json is None else self.named_json
        closing = grammar.literal(self.closing if self.closing_json is None else self.closing_json)
        before = grammar.literal(head + named)
        if types == "string" and self.quote is not None:
            choices = _texts(schema)
            start, end = self.named + self.quote, self.quote + self.closing
            if choices is None:
                return f"{grammar.literal(head + start)} {grammar.text_until(end)}"
            texts = " | ".join(grammar.literal(text) for text in choices)
            return f"{grammar.literal(head + start)} ({texts}) {grammar.literal(self.quote)} {closing}"
        return f"{before} {self._other(grammar, schema, root)} {closing}"

    def _other(self, grammar: Grammar, schema: Any, root: Mapping[str, Any]) -> str:
        match _type_of(schema):
            case "boolean" if "enum" not in schema and "const" not in schema:
                return f'("{self.words[0]}" | "{self.words[1]}")'
            case "null":
                return f'"{self.words[2]}"'
            case "object" if self.nested and schema.get("properties"):
                return f'"{{" {self._pairs(grammar, schema, root)} "}}"'
            case "array" if self.nested and isinstance(schema.get("items"), Mapping):
                inner = replace(self, opening="", named="", closing="", named_json=None, closing_json=None)
                item = grammar.rule(inner._value(grammar, schema["items"], root, ""))
                more = f"({grammar.literal(self.between)} {item})*"
                return f'("[" "]" | "[" {item} {more} "]")'
        named = {key: root[key] for key in ("$defs", "definitions") if key in root}
        return grammar.json({**named, **schema} if isinstance(schema, Mapping) else schema)


def _type_of(schema: Any) -> str:
    declared = schema.get("type") if isinstance(schema, Mapping) else None
    if declared is None and _texts(schema) is not None:
        return "string"
    return declared if isinstance(declared, str) else ""


def _texts(schema: Any) -> Sequence[str] | None:
    """The texts that a schema allows; None: others, too."""
    if not isinstance(schema, Mapping):
        return None
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    texts = isinstance(choices, list) and bool(choices) and all(isinstance(text, str) for text in choices)
    return choices if texts else None


def python_frame(before: str, between: str, after: str) -> Frame:
    """Calls in Python's notation, ``f(a=1)``; ``before``, ``after``: around all of them."""
    arguments = Pairs("", "=", "", ", ", "(", ")", quote=None, words=("True", "False", "None"))
    return Frame("", "", "", arguments, before=before, between=between, after=after)
