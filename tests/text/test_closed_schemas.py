"""Objects of a schema hold what it declares: which texts may be said, and that something always may."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="needs the extra 'structured'")

from test_grammar import COMPILER, END, TOKENIZER

from headstart.errors import RequestError
from headstart.sampling.structured import StructuredOutputsParams
from headstart.text.closed_schemas import closed

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
NODE: dict[str, Any] = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["value"],
}

CASES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "plain": (A, [{"a": 1}, {}], [{"a": 1, "z": 1}, {"z": 1}]),
    "no properties": ({"type": "object", "properties": {}}, [{}], [{"z": 1}]),
    "nothing declared": ({"type": "object"}, [{}, {"z": 1}], [1]),
    "said to be open": (A | {"additionalProperties": True}, [{"a": 1}, {"a": 1, "z": 1}], []),
    "said to be open for some": (
        A | {"additionalProperties": {"type": "integer"}},
        [{"a": 1, "z": 1}],
        [{"a": 1, "z": "z"}],
    ),
    "open outside, closed inside": (
        {"type": "object", "properties": {"in": A}, "additionalProperties": True},
        [{"in": {"a": 1}, "z": 1}],
        [{"in": {"a": 1, "z": 1}}],
    ),
    "closed inside what further properties are": (
        {"type": "object", "properties": {}, "additionalProperties": A},
        [{"z": {"a": 1}}],
        [{"z": {"z": 1}}],
    ),
    "in a list": ({"type": "array", "items": A}, [[{"a": 1}]], [[{"z": 1}]]),
    "in a tuple": ({"type": "array", "prefixItems": [A, B]}, [[{"a": 1}, {"b": 1}]], [[{"a": 1, "z": 1}]]),
    "required only": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["z"]},
        [{"a": 1, "z": 1}, {"z": 1}],
        [{"a": 1, "z": 1, "y": 1}],
    ),
    "patterns": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "patternProperties": {"^x": {"type": "integer"}}},
        [{"a": 1, "x1": 1}],
        [{"a": 1, "z": 1}],
    ),
    "all of": ({"allOf": [A, B]}, [{"a": 1, "b": 1}, {"b": 1}], [{"a": 1}, {"a": 1, "b": 1, "z": 1}]),
    "all of beside properties": (
        {"type": "object", "properties": {"c": {"type": "integer"}}, "allOf": [A, B]},
        [{"c": 1, "a": 1, "b": 1}, {"b": 1}],
        [{"c": 1, "a": 1, "b": 1, "z": 1}],
    ),
    "all of with an open member": ({"allOf": [A | {"additionalProperties": True}, B]}, [{"a": 1, "b": 1}], [{"a": 1}]),
    "all of with objects inside": (
        {"allOf": [{"type": "object", "properties": {"in": A}}, B]},
        [{"in": {"a": 1}, "b": 1}],
        [{"in": {"z": 1}, "b": 1}],
    ),
    "any of": ({"anyOf": [A, B]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}, {"z": 1}]),
    "any of with null": ({"anyOf": [A, {"type": "null"}]}, [{"a": 1}, None], [{"z": 1}]),
    "any of beside properties": (
        {"type": "object", "properties": {"c": {"type": "integer"}}, "required": ["c"], "anyOf": [A, B]},
        [{"c": 1, "a": 1}, {"c": 1, "b": 1}],
        [{"c": 1, "z": 1}, {"c": 1, "a": 1, "b": 1}, {"a": 1}],
    ),
    "any of what is required": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{}, {"a": 1, "z": 1}],
    ),
    "any of within all of": (
        {"allOf": [{"anyOf": [A, B]}, {"type": "object", "properties": {"c": {"type": "integer"}}}]},
        [{"a": 1, "c": 1}, {"b": 1, "c": 1}],
        [{"a": 1, "c": 1, "z": 1}],
    ),
    "one of beside any of": (
        {
            "type": "object",
            "anyOf": [{"properties": {"x": {"const": 1}}, "required": ["x"]}],
            "allOf": [{"anyOf": [A]}],
        },
        [{"x": 1, "a": 1}, {"x": 1}],
        [{"x": 1, "z": 1}],
    ),
    "any of with an open branch": (
        {"anyOf": [A | {"additionalProperties": True, "required": ["a"]}, B]},
        [{"a": 1, "z": 1}, {"b": 1}],
        [{"b": 1, "z": 1}],
    ),
    "reference": ({"$ref": "#/$defs/a", "$defs": {"a": A}}, [{"a": 1}], [{"z": 1}]),
    "reference beside properties": (
        {"$ref": "#/$defs/b", "$defs": {"b": B}, "properties": {"a": {"type": "integer"}}},
        [{"b": 1, "a": 1}],
        [{"b": 1, "z": 1}],
    ),
    "inheritance": (
        {
            "allOf": [{"$ref": "#/definitions/b"}, {"properties": {"more": {"$ref": "#/definitions/b"}}}],
            "definitions": {"b": B},
        },
        [{"b": 1, "more": {"b": 1}}, {"b": 1}],
        [{"b": 1, "z": 1}, {"b": 1, "more": {"b": 1, "z": 1}}],
    ),
    "one of references beside properties": (
        {
            "type": "object",
            "properties": {"kind": {"type": "integer"}},
            "oneOf": [{"$ref": "#/$defs/b"}],
            "$defs": {"b": B},
        },
        [{"kind": 1, "b": 1}],
        [{"kind": 1, "b": 1, "z": 1}],
    ),
    "recursion": (
        {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
        [{"value": 1, "next": {"value": 2, "next": None}}],
        [{"value": 1, "next": {"value": 2, "z": 1}}],
    ),
    "recursion through the root": (
        {"type": "object", "properties": {"in": {"$ref": "#"}, "n": {"type": "integer"}}},
        [{"in": {"in": {"n": 1}}}],
        [{"in": {"in": {"z": 1}}}],
    ),
    "an own address": (
        {"$id": "https://a.test/s", "$ref": "https://a.test/s#/$defs/a~1b", "$defs": {"a/b": A}},
        [{"a": 1}],
        [{"z": 1}],
    ),
    "values that look like schemas": ({"enum": [{"properties": {"a": 1}}]}, [{"properties": {"a": 1}}], [{}]),
    "a property of a keyword's name": (
        {"type": "object", "properties": {"properties": A, "anyOf": {"type": "integer"}}},
        [{"properties": {"a": 1}, "anyOf": 1}],
        [{"properties": {"z": 1}}],
    ),
}


def accepts(schema: Any, value: Any) -> bool:
    constraint = COMPILER.constraint(StructuredOutputsParams(json=schema))
    tokens = [*TOKENIZER.encode(json.dumps(value)), END]
    return constraint.allowed(tokens) == len(tokens)


@pytest.mark.parametrize("name", CASES)
def test_objects_hold_what_is_declared(name: str) -> None:
    schema, good, bad = CASES[name]
    before = copy.deepcopy(schema)
    assert [value for value in good if not accepts(schema, value)] == []
    assert [value for value in bad if accepts(schema, value)] == []
    assert schema == before


@pytest.mark.parametrize("keyword", ["allOf", "anyOf"])
def test_each_schema_is_looked_at_once_however_many_refer_to_it(keyword: str) -> None:
    nodes = {f"n{i}": {keyword: [{"$ref": f"#/$defs/n{i - 1}"}] * 2} for i in range(1, 60)}
    made = closed({"$defs": {"n0": A} | nodes, "properties": {"in": {"$ref": "#/$defs/n59"}}})
    assert made["additionalProperties"] is False


def test_what_grows_without_end_is_refused() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(2000):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(RequestError, match="nested too deeply"):
        closed(deep)
    names = {f"p{i}": {"type": "integer"} for i in range(500)}
    branches = [{"properties": {f"q{i}": True}} for i in range(500)]
    with pytest.raises(RequestError, match="too many branches"):
        closed({"properties": names, "anyOf": branches})


@pytest.mark.parametrize("schema", [True, False, {}, {"$ref": "#/nowhere"}, {"properties": 3}, {"allOf": 1, "$ref": 2}])
def test_what_is_no_object_or_no_schema_is_left_to_others(schema: Any) -> None:
    assert closed(schema) == schema
