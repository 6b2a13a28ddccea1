"""JSON schemas whose objects hold what they declare and nothing else, unless they say otherwise.

JSON Schema lets every object hold further properties. Who writes ``properties`` for a model means them all, and a model
that may invent names does so; other servers' grammars close such objects, too. What a schema says itself about further
properties stays: ``additionalProperties``, ``unevaluatedProperties``, an object of which nothing is declared.

Several schemas may describe one object: the members of ``allOf``, what a ``$ref`` names, a branch beside the
``properties`` around it. Each alone must not be closed, for it would forbid what the others declare; the object is
closed once, over all that is declared for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.errors import RequestError

Schema = dict[str, Any]

_INNER = ("items", "contains", "additionalProperties", "additionalItems", "unevaluatedItems", "unevaluatedProperties")
_INNER_LISTS = ("prefixItems", "items")
_INNER_NAMED = ("properties", "patternProperties")
"""Keywords whose schemas describe another value than the schema around them."""
_SAME = ("if", "then", "else")
_BRANCHES = ("anyOf", "oneOf")
"""Keywords whose schemas describe the same value: these, ``allOf``, ``dependentSchemas`` and ``$ref``."""
_OPEN = ("additionalProperties", "unevaluatedProperties", "enum", "const", "propertyNames")
"""Keywords that say themselves what an object may hold."""
_MOST_ADDED = 20_000
"""Names that closing may add: branches repeat those of the object around them."""


def closed(schema: Any) -> Any:
    """The schema with its objects closed, in a form that means the same otherwise.

    Raises:
        RequestError: it is nested too deeply, or has too many branches of too many properties.
    """
    if not isinstance(schema, dict):
        return schema
    try:
        return _Closing(schema).whole()
    except RecursionError:
        raise RequestError("json is nested too deeply; flatten it.", "structured_outputs") from None


@dataclass
class _Declared:
    """What the schemas of one object declare."""

    names: dict[str, None] = field(default_factory=dict)
    patterns: dict[str, None] = field(default_factory=dict)
    any_properties: bool = False
    says_itself: bool = False
    """Whether one of them says what else the object may hold."""

    def add(self, other: _Declared) -> None:
        self.names |= other.names
        self.patterns |= other.patterns
        self.any_properties |= other.any_properties
        self.says_itself |= other.says_itself

    @property
    def closable(self) -> bool:
        return self.any_properties and not self.says_itself


_NOTHING = _Declared()


class _Closing:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._made: dict[tuple[str, bool], str] = {}
        """(reference, whether closed) -> the reference to what it became."""
        self._definitions: Schema = {}
        self._added = 0
        self._known: tuple[dict[int, _Declared], dict[int, _Declared]] = ({}, {})
        """[whether with branches] identity of a schema -> what it declares."""
        self._targets: dict[str, Any] = {}
        self._taken = frozenset(_named(root.get("$defs")))

    def whole(self) -> Schema:
        schema: Schema = self._closed(self._root, _Declared())
        if self._definitions:
            own = schema.get("$defs")
            schema["$defs"] = {**(own if isinstance(own, dict) else {}), **self._definitions}
        return schema

    def _closed(self, schema: Any, around: _Declared) -> Any:
        """A schema with its object closed; ``around``: what is declared beside it for the same object."""
        if not isinstance(schema, dict):
            return schema
        alone = not around.any_properties
        if alone and "$ref" in schema and not any(True for _ in _beside_ref(schema)):
            return self._emitted(schema, close_ref=True)
        here = _Declared()
        here.add(around)
        here.add(self._declared(schema, branches=False))
        groups = [name for name in _BRANCHES if isinstance(schema.get(name), list)]
        everything = self._declared(schema, branches=True)
        below = self._declared_below(schema)
        if len(groups) == 1 and not below and not here.says_itself:
            branches = [self._declared(branch, branches=True) for branch in schema[groups[0]]]
            if any(branch.any_properties or branch.says_itself for branch in branches):
                return self._emitted(schema, around_branches=here)
        everything.add(around)
        if not everything.closable or not _may_be_object(schema):
            return self._emitted(schema)
        return self._sealed(self._emitted(schema), everything)

    def _sealed(self, schema: Schema, declared: _Declared) -> Schema:
        """Allow what is declared, wherever that is, and nothing else."""
        self._added += len(declared.names)
        if self._added > _MOST_ADDED:
            raise RequestError(
                "json has too many branches of too many properties; give a simpler schema.", "structured_outputs"
            )
        properties = schema.get("properties", {})
        schema["properties"] = {**properties, **{name: True for name in declared.names if name not in properties}}
        patterns = schema.get("patternProperties", {})
        missing = {pattern: True for pattern in declared.patterns if pattern not in patterns}
        if patterns or missing:
            schema["patternProperties"] = {**patterns, **missing}
        schema["additionalProperties"] = False
        return schema

    def _emitted(self, schema: Any, *, close_ref: bool = False, around_branches: _Declared | None = None) -> Any:
        """A schema whose own object stays as it is, while those inside it are closed.

        ``close_ref``: what it refers to is closed. ``around_branches``: close its branches, with this around them.
        """
        if not isinstance(schema, dict):
            return schema
        made: Schema = {}
        for keyword, value in schema.items():
            if keyword in _INNER_NAMED and isinstance(value, dict):
                made[keyword] = {name: self._closed(item, _Declared()) for name, item in value.items()}
            elif keyword in _INNER_LISTS and isinstance(value, list):
                made[keyword] = [self._closed(item, _Declared()) for item in value]
            elif keyword in _INNER:
                made[keyword] = self._closed(value, _Declared())
            elif keyword in _BRANCHES and isinstance(value, list) and around_branches is not None:
                made[keyword] = [self._closed(branch, around_branches) for branch in value]
            elif keyword in (*_BRANCHES, "allOf") and isinstance(value, list):
                made[keyword] = [self._emitted(member) for member in value]
            elif keyword == "dependentSchemas" and isinstance(value, dict):
                made[keyword] = {name: self._emitted(item) for name, item in value.items()}
            elif keyword in _SAME:
                made[keyword] = self._emitted(value)
            elif keyword == "$ref" and isinstance(value, str):
                made[keyword] = self._reference(value, close_ref)
            else:
                made[keyword] = value
        return made

    def _reference(self, reference: str, close: bool) -> str:
        """The reference to what a reference's schema becomes."""
        target = self._target(reference)
        if target is None or (target is self._root and close):
            return reference
        key = (reference, close)
        if key not in self._made:
            name = f"closed-{len(self._made)}"
            while name in self._taken:
                name += "-"
            self._made[key] = f"#/$defs/{name}"
            self._definitions[name] = {}  # before what it holds, which may refer to it
            self._definitions[name] = self._closed(target, _Declared()) if close else self._emitted(target)
        return self._made[key]

    def _target(self, reference: str) -> Any:
        """What a reference into this schema names; None: it is not found."""
        if reference not in self._targets:
            self._targets[reference] = self._found(reference)
        return self._targets[reference]

    def _found(self, reference: str) -> Any:
        home = self._root.get("$id")
        if isinstance(home, str) and reference.startswith(f"{home.rstrip('#')}#"):
            reference = reference[len(home.rstrip("#")) :]
        if reference == "#":
            return self._root
        if not reference.startswith("#/"):
            return None
        found: Any = self._root
        for step in reference[2:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                return None
        return found

    def _declared(self, schema: Any, branches: bool) -> _Declared:
        """What a schema declares for its own object; ``branches``: with what its alternatives declare.

        Each schema is looked at once, however many refer to it: what lies below it is known before it is.
        """
        known, begun, stack = self._known[branches], set[int](), [schema]
        while stack:
            here = stack[-1]
            if not isinstance(here, dict) or id(here) in known:
                stack.pop()
                continue
            parts = list(self._parts(here, branches))
            if id(here) not in begun:
                begun.add(id(here))
                stack += (part for part in parts if id(part) not in begun)
                continue
            found = _own(here, self._target)
            if all(id(part) in known or not isinstance(part, dict) for part in parts):
                for part in parts:
                    found.add(known.get(id(part), _NOTHING))
            else:  # it is a part of itself
                found = self._reached(here, branches)
            known[id(here)] = found
            stack.pop()
        return known.get(id(schema), _NOTHING)

    def _reached(self, schema: Schema, branches: bool) -> _Declared:
        """The same, by everything that can be reached from a schema."""
        known, found, seen, stack = self._known[branches], _Declared(), {id(schema)}, [schema]
        while stack:
            here = stack.pop()
            found.add(_own(here, self._target))
            for part in self._parts(here, branches):
                if id(part) in known:
                    found.add(known[id(part)])
                elif isinstance(part, dict) and id(part) not in seen:
                    seen.add(id(part))
                    stack.append(part)
        return found

    def _parts(self, schema: Schema, branches: bool) -> Iterator[Any]:
        """The schemas that describe the same value as a schema, one step from it."""
        if isinstance(reference := schema.get("$ref"), str):
            yield self._target(reference)
        yield from _same(schema, branches)

    def _declared_below(self, schema: Schema) -> bool:
        """Whether what stands beside a schema's branches has branches of its own that declare properties."""
        parts = list(self._parts(schema, branches=False))
        alone, all_of_them = _own(schema, self._target), _own(schema, self._target)
        for part in parts:
            alone.add(self._declared(part, branches=False))
            all_of_them.add(self._declared(part, branches=True))
        return alone != all_of_them


def _own(schema: Schema, target: Callable[[str], Any]) -> _Declared:
    """What a schema's own keywords declare for its object."""
    found = _Declared()
    found.any_properties = isinstance(schema.get("properties"), dict)
    found.says_itself = any(keyword in schema for keyword in _OPEN)
    found.names |= dict.fromkeys(_named(schema.get("properties")))
    found.patterns |= dict.fromkeys(_named(schema.get("patternProperties")))
    found.names |= dict.fromkeys(_texts(schema.get("required")))
    for name, needed in _named(schema.get("dependentRequired")).items():
        found.names |= dict.fromkeys([name, *_texts(needed)])
    reference = schema.get("$ref")
    found.says_itself |= isinstance(reference, str) and target(reference) is None
    return found


def _same(schema: Schema, branches: bool) -> Iterator[Any]:
    """The schemas inside a schema that describe the same value, but for what it refers to."""
    for keyword in ("allOf", *(_BRANCHES if branches else ())):
        value = schema.get(keyword)
        yield from value if isinstance(value, list) else ()
    for keyword in _SAME:
        if keyword in schema:
            yield schema[keyword]
    yield from _named(schema.get("dependentSchemas")).values()


def _beside_ref(schema: Schema) -> Iterator[str]:
    """Keywords beside ``$ref`` that describe the same object."""
    same = {"properties", "patternProperties", "required", "dependentRequired", *_OPEN}
    same |= {"allOf", "dependentSchemas", *_SAME, *_BRANCHES}
    return (keyword for keyword in schema if keyword in same)


def _may_be_object(schema: Schema) -> bool:
    kinds = schema.get("type", "object")
    return kinds == "object" or (isinstance(kinds, list) and "object" in kinds)


def _named(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
