"""Structured outputs as masks over a real vocabulary of merged tokens."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

pytest.importorskip("llguidance", reason="needs the extra 'structured'")

from headstart.errors import RequestError
from headstart.sampling.structured import StructuredOutputsParams as Wanted
from headstart.text.grammar import Constraint, GrammarCompiler
from headstart.text.token_bytes import BYTE_ALPHABET
from headstart.text.tokenizer import Tokenizer

MERGES = ["ab", "abc", "ye", "yes", "no", '{"', '":', '"a', "1,", "tr", "true", "}<"]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["yes", "no"]}},
    "required": ["a"],
    "additionalProperties": False,
}


def make_tokenizer() -> Tokenizer:
    vocabulary, merges = dict(BYTE_ALPHABET), []
    for text in MERGES:
        for end in range(2, len(text) + 1):
            if text[:end] not in vocabulary:
                merges.append((text[: end - 1], text[end - 1]))
                vocabulary[text[:end]] = len(vocabulary)
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<|tool|>", "<|end|>")])
    return Tokenizer(backend)


TOKENIZER = make_tokenizer()
END = TOKENIZER.vocabulary["<|end|>"]
VOCAB = TOKENIZER.vocab_size + 5
"""A model's head may have more rows than there are tokens."""
COMPILER = GrammarCompiler(TOKENIZER, VOCAB, [END])


def is_object(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict)


def fits_schema(text: str) -> bool:
    value = json.loads(text) if is_object(text) else {}
    return type(value.get("a")) is int and set(value) <= {"a", "b"} and value.get("b", "no") in ("yes", "no")


LANGUAGES: dict[str, tuple[Wanted, Callable[[str], object]]] = {
    "regex": (Wanted(regex=r"(abc|no){1,3}\d?"), re.compile(r"(abc|no){1,3}\d?").fullmatch),
    "choice": (Wanted(choice=("abc", "ab", 'say "no"\n/', "é")), {"abc", "ab", 'say "no"\n/', "é"}.__contains__),
    "json": (Wanted(json=SCHEMA), fits_schema),
    "json_object": (Wanted(json_object=True), is_object),
}


def walk(constraint: Constraint, rng: random.Random, steps: int) -> list[int]:
    """Random allowed tokens, guesses looked at and forgotten on the way; ends with END if it gets there."""
    said: list[int] = []
    while len(said) < steps:
        mask = constraint.mask(())
        guess = rng.choices(range(VOCAB), k=3)
        constraint.mask(guess)
        constraint.allowed([*guess, END, *guess])
        assert (constraint.mask(()) == mask).all()
        options = np.flatnonzero(mask).tolist()
        said.append(rng.choice(options))
        if said[-1] == END:
            break
        constraint.advance(said[-1])
    return said


@pytest.mark.parametrize("name", LANGUAGES)
def test_whatever_ends_belongs_to_the_language(name: str) -> None:
    wanted, belongs = LANGUAGES[name]
    ended = 0
    for seed in range(40):
        said = walk(COMPILER.constraint(wanted), random.Random(seed), 60)
        assert not TOKENIZER.special_ids & set(said[:-1])
        assert max(said) < TOKENIZER.vocab_size
        if said[-1] == END:
            ended += 1
            text = TOKENIZER.decode(said[:-1])
            assert belongs(text), text
    assert ended >= 5


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_mask_depends_on_the_path_alone(name: str) -> None:
    wanted, _ = LANGUAGES[name]
    said = walk(COMPILER.constraint(wanted), random.Random(1), 12)
    said = said[:-1] if said[-1] == END else said
    stepwise, whole = COMPILER.constraint(wanted), COMPILER.constraint(wanted)
    for count, token in enumerate(said):
        assert (stepwise.mask(()) == whole.mask(said[:count])).all()
        assert whole.allowed(said[: count + 1]) == count + 1
        forbidden = np.flatnonzero(~stepwise.mask(()))[:50].tolist()
        assert all(stepwise.allowed([other, token]) == 0 for other in forbidden if other != END)
        assert stepwise.mask([forbidden[0], token]).all()
        stepwise.advance(token)


def test_every_spelling_of_a_text_is_allowed() -> None:
    spelt = {
        tuple(TOKENIZER.token_text(t) for t in np.flatnonzero(COMPILER.constraint(Wanted(choice=("abc",))).mask(())))
    }
    assert spelt == {("a", "ab", "abc")}
    constraint = COMPILER.constraint(Wanted(choice=("abc",)))
    constraint.advance(TOKENIZER.vocabulary["ab"])
    assert [TOKENIZER.token_text(t) for t in np.flatnonzero(constraint.mask(()))] == ["c"]


def test_an_output_ends_where_it_is_complete_and_not_before() -> None:
    constraint = COMPILER.constraint(Wanted(regex="ab|abc"))
    a, b, c = (TOKENIZER.vocabulary[letter] for letter in "abc")
    assert not constraint.mask([a])[END]
    assert set(np.flatnonzero(constraint.mask([a, b])).tolist()) == {c, END}
    assert np.flatnonzero(constraint.mask([a, b, c])).tolist() == [END]
    assert constraint.allowed([a, b, END, c]) == 3
    assert constraint.mask([a, b, END, c]).all()


@pytest.mark.parametrize(
    ("blank", "allowed"), [(" ", 1), ("\n", 1), ("\t", 0), ("\n" + " " * 60, 41), ("\r\n\t\t\t", 5)]
)
def test_white_space_is_a_space_or_a_new_line_with_its_indentation(blank: str, allowed: int) -> None:
    constraint = COMPILER.constraint(Wanted(json_object=True))
    tokens = TOKENIZER.encode(blank) + TOKENIZER.encode("\n" * 5)
    assert constraint.allowed([TOKENIZER.vocabulary["{"], *tokens]) == 1 + allowed


@pytest.mark.parametrize("indent", [None, 0, 2, 4, "\t"])
def test_every_usual_way_to_write_json_is_allowed(indent: int | str | None) -> None:
    value = {"a": [1, {"b": []}, {"c": [[[{"d": "x"}]]]}], "e": {}}
    tokens = TOKENIZER.encode(json.dumps(value, indent=indent))
    assert COMPILER.constraint(Wanted(json_object=True)).allowed(tokens) == len(tokens)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(json={"type": "strin"}), "Invalid type: strin"),
        (Wanted(json={"not": {}}), "not"),
        (Wanted(json="false"), "false"),
        (Wanted(json="[1]"), "schema must be an object or boolean"),
        (Wanted(json={"$ref": "https://example.org/schema.json"}), "does not fetch"),
        (Wanted(regex="("), "unclosed group"),
        (Wanted(regex="a(?=b)"), "look-around"),
    ],
)
def test_what_cannot_be_enforced_is_refused_in_one_line(wanted: Wanted, message: str) -> None:
    with pytest.raises(RequestError, match="structured_outputs cannot be enforced: .*" + message) as caught:
        COMPILER.constraint(wanted)
    assert "\n" not in str(caught.value)
    assert "at 2(8)" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "names nothing"),
        ({"regex": "a", "choice": ["b"]}, "names regex and choice"),
        ({"json": "{"}, "json is no JSON schema"),
        ({"json": {"const": float("nan")}}, "json is no JSON schema"),
        ({"choice": []}, "choice"),
        ({"choice": ["a", ""]}, "choice"),
        ({"choice": "ab"}, "choice"),
        ({"regex": 3}, "regex is 3"),
    ],
)
def test_a_wrong_wish_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Wanted(**fields)  # type: ignore[arg-type]


def test_a_model_without_an_end_is_refused() -> None:
    with pytest.raises(RequestError, match="no end-of-sequence token"):
        GrammarCompiler(TOKENIZER, VOCAB, [])


class Fragile:
    """A matcher that fails for good where its path comes to more than two tokens ``7``, as one whose limits are
    reached: only guesses take it there."""

    def __init__(self, path: tuple[int, ...] = ()) -> None:
        self.path, self.failed = list(path), False

    def deep_copy(self) -> Fragile:
        return Fragile(tuple(self.path))

    def _visit(self, path: list[int]) -> None:
        self.failed |= path.count(7) > 2

    def validate_tokens(self, path: list[int]) -> int:
        self._visit([*self.path, *path])
        return 0 if self.failed else len(path)

    def consume_tokens(self, path: list[int]) -> bool:
        self.path += path
        self._visit(self.path)
        return not self.failed

    def consume_token(self, token: int) -> bool:
        return self.consume_tokens([token])

    def compute_bitmask(self) -> bytes:
        return bytes([1 << (len(self.path) % 8)])

    def rollback(self, count: int) -> None:
        self.path = self.path[: len(self.path) - count]

    def is_error(self) -> bool:
        return self.failed

    def get_error(self) -> str:
        return "too many"


def test_guesses_that_a_matcher_fails_at_leave_the_output_as_it_is() -> None:
    constraint = Constraint(Fragile(), 8, frozenset({0}))
    for said, token in enumerate([1, 7, 2, 7, 3]):
        assert np.flatnonzero(constraint.mask([])).tolist() == [said]
        for guesses in (constraint.mask, constraint.allowed):
            with pytest.raises(RequestError, match="cannot be followed any further: too many"):
                guesses([7, 7, 7])
        constraint.advance(token)
    constraint.advance(7)
    for _ in range(2):
        with pytest.raises(RequestError, match="too many"):
            constraint.mask([])
