"""Which form a model's answers have: by its own ``response_template``, by its chat template, or as the user says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal, TypeVar

from headstart.errors import ConfigError, closest
from headstart.text.answers import families
from headstart.text.answers.forms import CallForm, ThoughtForm

OWN_TEMPLATE = "hf"
"""vLLM's name of the parser that follows the model's own ``response_template``."""
NONE = "none"
USUAL = "hermes"
"""What calls are looked for where nothing shows how a model writes them."""
F = TypeVar("F", CallForm, ThoughtForm)


@cache
def call_forms() -> tuple[CallForm, ...]:
    """Those of all families, by the names of their files."""
    return tuple(form for module in _modules() for form in getattr(module, "CALLS", ()))


@cache
def thought_forms() -> tuple[ThoughtForm, ...]:
    """Likewise of thoughts."""
    return tuple(form for module in _modules() for form in getattr(module, "THOUGHTS", ()))


def _modules() -> Iterable[Any]:
    return [import_module(f"{families.__name__}.{each.name}") for each in iter_modules(families.__path__)]


@dataclass(frozen=True)
class AnswerForm:
    """How a model's answers are read."""

    calls: CallForm | None = None
    """None: no calls are looked for."""
    thought: ThoughtForm | None = None
    """None: no thoughts are told apart."""
    template: Mapping[str, Any] | None = None
    """The model's own ``response_template``, where that is followed in place of ``calls`` and ``thought``."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Special tokens that must be seen in an answer's text."""
        if self.template is not None:
            return (json.dumps(self.template, ensure_ascii=False).replace("\\\\", ""),)
        found: list[str] = []
        if self.calls is not None:
            found += [*self.calls.marks, *self.calls.hidden]
            found += [mark for opening in self.calls.openings for mark in opening.marks]
        if self.thought is not None:
            found += [self.thought.opening, self.thought.closing, *self.thought.marks, *self.thought.hidden]
        return tuple(found)

    @property
    def names(self) -> tuple[str, str]:
        """Of the parsers of calls and of thoughts."""
        if self.template is not None:
            return OWN_TEMPLATE, OWN_TEMPLATE
        return (
            NONE if self.calls is None else self.calls.names[0],
            NONE if self.thought is None else self.thought.names[0],
        )


def choose(
    chat_template: str | None,
    response_template: Mapping[str, Any] | None = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> AnswerForm:
    """The form of a model's answers.

    The model's own ``response_template`` goes first: where it shows the marks of a family, that family's form reads
    them, which tells arguments as they come; else the template is followed. Without one the chat template decides.

    Args:
        chat_template, response_template: the model's.
        tool_parser, reasoning_parser: names that the user gives; None: as above.

    Raises:
        ConfigError: there is no such parser, or none such for this model.
    """
    if OWN_TEMPLATE in (tool_parser, reasoning_parser):
        if response_template is None:
            raise ConfigError(
                f"the parser {OWN_TEMPLATE!r} follows a model's own response_template, which this model does not "
                f"have; name one of {', '.join(known_names('calls'))}."
            )
        return AnswerForm(template=response_template)
    said = None if response_template is None else json.dumps(response_template, ensure_ascii=False)
    calls = _named(call_forms(), tool_parser, "tool_parser", "calls")
    thought = _named(thought_forms(), reasoning_parser, "reasoning_parser", "thoughts")
    own_calls = None if said is None else _first(call_forms(), lambda form: _calls_match(form, said))
    own_thought = None if said is None else _first(thought_forms(), lambda form: _thoughts_match(form, said))
    if said is not None and tool_parser is None and reasoning_parser is None and not (own_calls or own_thought):
        return AnswerForm(template=response_template)
    template = chat_template or ""
    if tool_parser is None:
        calls = own_calls or _first(call_forms(), lambda form: _calls_match(form, template))
        calls = calls or (_named_usual() if template else None)
    if reasoning_parser is None:
        thought = own_thought or _first(thought_forms(), lambda form: _thoughts_match(form, template))
    return AnswerForm(calls, thought)


def check_names(tool_parser: str | None, reasoning_parser: str | None) -> None:
    """Refuse names of no parser, before a model is read.

    Raises:
        ConfigError: there is no such parser.
    """
    _named(call_forms(), tool_parser, "tool_parser", "calls")
    _named(thought_forms(), reasoning_parser, "reasoning_parser", "thoughts")


def known_names(what: Literal["calls", "thoughts"]) -> list[str]:
    """Names that a user may give."""
    forms: Iterable[CallForm | ThoughtForm] = call_forms() if what == "calls" else thought_forms()
    return [*sorted({name for form in forms for name in form.names}), OWN_TEMPLATE, NONE]


def _named(forms: Iterable[F], name: str | None, option: str, what: Literal["calls", "thoughts"]) -> F | None:
    if name in (None, NONE, OWN_TEMPLATE):
        return None
    found = next((form for form in forms if name in form.names), None)
    if found is None:
        known = known_names(what)
        near = closest(str(name), known)
        hint = f" (did you mean {near!r}?)" if near else ""
        raise ConfigError(f"{option} is {name!r}, which is not known{hint}; name one of {', '.join(known)}.")
    return found


def _named_usual() -> CallForm:
    return next(form for form in call_forms() if USUAL in form.names)


def _first(forms: Iterable[F], fits: Callable[[F], bool]) -> F | None:
    return next((form for form in forms if fits(form)), None)


def _calls_match(form: CallForm, template: str) -> bool:
    return any(sign in template for sign in form.signs) and not any(sign in template for sign in form.without)


def _thoughts_match(form: ThoughtForm, template: str) -> bool:
    if form.signs:
        return all(sign in template for sign in form.signs)
    return form.opening in template or form.closing in template
