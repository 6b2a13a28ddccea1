"""Running a model's chat template without trusting it.

A template is a program that arrives with a download. Jinja's immutable sandbox keeps it from Python's internals and
from changing its arguments; this environment bounds its cost as well. The rule: no value is larger than ``MAX_CHARS``
characters or ``MAX_ITEMS`` items, the whole text no longer than ``MAX_CHARS``, no more than ``MAX_STEPS`` loop
steps and macro calls are made. What can multiply sizes is checked before it is done, everything else right after.
How long a step takes is not bounded here: the process that renders is (``text.template_worker``).

Import this module late: it imports jinja2.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, Literal, TypeVar, cast

import jinja2
from jinja2 import filters, nodes, pass_context, pass_environment
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_CHARS = 1 << 22
MAX_ITEMS = 1 << 17
MAX_STEPS = 1 << 20
_MAX_SOURCE_CHARS = 1 << 20
_MAX_INT_BITS = 4096
_MAX_WIDTH = 100
"""Indentation, digits of a number: amounts that make text out of nothing."""

_FILTERS = (
    *("capitalize", "lower", "string", "title", "trim", "truncate", "upper", "urlencode", "wordcount"),
    *("count", "first", "groupby", "items", "last", "length", "list", "map", "max", "min", "reverse", "sort", "unique"),
    *("dictsort", "reject", "rejectattr", "select", "selectattr"),
    *("abs", "attr", "d", "default", "e", "escape", "float", "int", "safe"),
)
_STRING_METHODS = frozenset(
    (
        *("capitalize", "casefold", "lower", "swapcase", "title", "upper"),
        *("count", "endswith", "find", "index", "rfind", "rindex", "startswith"),
        *("isalnum", "isalpha", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "isupper"),
        *("lstrip", "removeprefix", "removesuffix", "replace", "rstrip", "strip"),
        *("join", "partition", "rpartition", "rsplit", "split", "splitlines"),
    )
)

_Value = TypeVar("_Value")


class TemplateLimitError(jinja2.TemplateError):
    """A template wanted more than it may have."""


@lru_cache(maxsize=16)
def compile_template(source: str) -> jinja2.Template:
    """A template that stays within bounds, even an untrusted one.

    Raises:
        jinja2.TemplateError: it is not valid Jinja.
    """
    if len(source) > _MAX_SOURCE_CHARS:
        raise TemplateLimitError(f"the template has {len(source)} characters, more than {_MAX_SOURCE_CHARS}")
    environment = _BoundedEnvironment()
    tree = _Instrument().visit(environment.parse(source))
    return jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """The template's text.

    Raises:
        jinja2.TemplateError: the template failed, refused its input, or went over a limit.
    """
    with cast(_BoundedEnvironment, template.environment).budget:
        return "".join(template.generate(variables))


def checked(value: _Value) -> _Value:
    """The value itself, if it is within bounds. Containers are counted through, shared parts each time."""
    chars = items = 0
    stack: list[Any] = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            chars += len(part)
        elif isinstance(part, int):
            _require(part.bit_length() <= _MAX_INT_BITS, "a number is too large")
        elif isinstance(part, Mapping):
            items += len(part)
            stack += part.keys()
            stack += part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            items += len(part)
            stack += part
        _check_size(chars, items)
    return value


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise TemplateLimitError(message)


def _check_size(chars: int, items: int = 0) -> None:
    _require(chars <= MAX_CHARS, f"a text has more than {MAX_CHARS} characters")
    _require(items <= MAX_ITEMS, f"a value has more than {MAX_ITEMS} items")


class _Budget(threading.local):
    """What is left for the rendering that runs on this thread."""

    steps = 0
    chars = 0

    def __enter__(self) -> None:
        self.steps, self.chars = MAX_STEPS, MAX_CHARS

    def __exit__(self, *_: object) -> None:
        self.steps = self.chars = 0

    def step(self) -> None:
        self.steps -= 1
        _require(self.steps >= 0, f"the template makes more than {MAX_STEPS} steps")

    def spend(self, text: str) -> str:
        self.chars -= len(text)
        _require(self.chars >= 0, f"the template writes more than {MAX_CHARS} characters")
        return text


class _Instrument(NodeTransformer):
    """Has the environment told of every step, and of every value as it is made."""

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data).set_lineno(node.lineno)  # so that it passes through ``finalize``

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", node.nodes, node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._check(node) if node.ctx == "load" else self.generic_visit(node)

    def _check(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _call("checked", [node], node.lineno)

    visit_List = visit_Dict = _check

    def _count_steps(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        step = nodes.ExprStmt(_call("step", [], node.lineno)).set_lineno(node.lineno)
        node.body.insert(0, step)
        return node

    visit_For = visit_Macro = visit_CallBlock = _count_steps


def _call(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Node:
    """A call of one of the environment's own methods, which a template cannot name."""
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None).set_lineno(lineno)


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's part for training; its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(lineno)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The environment that transformers renders chat templates in (its options and helpers), within bounds."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock])
        self.budget = _Budget()
        self.finalize = _finalize
        known = {name: self.filters[name] for name in _FILTERS} | _OWN_FILTERS
        self.filters = {name: _bounded(function) for name, function in known.items()}
        self.globals = {
            "range": self.globals["range"],
            "namespace": self.globals["namespace"],
            "dict": lambda *arguments, **items: dict(*arguments, **items),
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def step(self) -> str:
        self.budget.step()
        return ""

    def checked(self, value: Any) -> Any:
        return checked(value)

    def joined(self, *values: Any) -> str:
        return checked("".join([str(value) for value in values]))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapper = super().wrap_str_format(value)
        if wrapper is not None:
            _check_format(value.__self__)
        return wrapper

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in _STRING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
                    size = len(sequence) * max(times, 0)
                    _check_size(size, 0 if isinstance(sequence, str) else size)
        elif operator == "**":
            _require(abs(right) <= _MAX_WIDTH, "an exponent is too large")
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return checked(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            if __obj.__name__ == "replace":
                _check_replace(owner, *args[:2])
            elif __obj.__name__ == "join":
                args = (list(args[0]), *args[1:])
                _check_size(len(owner) * len(args[0]))
        return checked(super().call(__context, __obj, *args, **kwargs))


@pass_context
def _finalize(context: Context, value: Any) -> str:
    return cast(_BoundedEnvironment, context.environment).budget.spend(str(value))


def _check_replace(text: str, old: str, new: str) -> None:
    _check_size(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def _check_format(pattern: str) -> None:
    wide = re.search(r"%[^%a-zA-Z]*(\d{3}|\*)|\{[^{}:]*:[^{}]*(\d{3}|\{)", pattern)
    _require(wide is None, "a format asks for a width that is too large or computed")


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        return checked(function(*args, **kwargs))

    return bounded


# Filters whose arguments can multiply sizes, so that they are checked beforehand.


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    _check_replace(str(value), str(old), str(new))
    return str(value).replace(str(old), str(new), -1 if count is None else count)


@pass_environment
def _join(environment: jinja2.Environment, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    items = list(value if attribute is None else map(filters.make_attrgetter(environment, attribute), value))
    _check_size(len(str(d)) * len(items))
    return str(d).join(map(str, items))


def _indent(value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _require((len(width) if isinstance(width, str) else width) <= _MAX_WIDTH, "an indentation is too large")
    return filters.do_indent(value, width, first, blank)


def _format(pattern: Any, *args: Any, **kwargs: Any) -> str:
    _check_format(str(pattern))
    return str(pattern) % (kwargs or args)


def _round(value: float, precision: int = 0, method: Literal["common", "ceil", "floor"] = "common") -> float:
    _require(abs(precision) <= _MAX_WIDTH, "a precision is too large")
    return filters.do_round(value, precision, method)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: unlike Jinja's own filter, without HTML escapes."""
    _require(indent is None or indent <= _MAX_WIDTH, "an indentation is too large")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


_OWN_FILTERS = {
    "replace": _replace,
    "join": _join,
    "indent": _indent,
    "format": _format,
    "round": _round,
    "tojson": _tojson,
}


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    _require(len(pattern) <= _MAX_WIDTH and not re.search(r"%[^%a-zA-Z]*\d", pattern), "a date format is too large")
    return datetime.now().strftime(pattern)
