"""Guesses of what a constraint leaves no choice about: what they are, where they go, and that they change no output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from thinning import thorough_but

pytest.importorskip("llguidance", reason="needs the extra 'structured'")

from headstart import LLM, SamplingParams
from headstart.drafting.base import DraftBudget
from headstart.engine.constraint import TokenConstraint
from headstart.engine.forced import with_forced
from headstart.loading.model import Model, load_model
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.structured import StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {
        "first_name": {"enum": ["Ada", "Bob"]},
        "is_employed": {"type": "boolean"},
        "address": {"type": "object", "properties": {"street": {"const": "Main"}}, "required": ["street"]},
    },
    "required": ["first_name", "is_employed", "address"],
}
JSON = StructuredOutputsParams(json=SCHEMA)


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Model:
    return load_model(tiny_model_dir, "fp32")


class Counting:
    """Every token is followed by the next number."""

    def foreseen(self, path: Sequence[int], most: int) -> list[int]:
        last = path[-1] if path else 4
        return list(range(last + 1, last + 1 + most))


def grown(draft: DraftTree, nodes: int, depth: int) -> list[tuple[int, int]]:
    constraint: TokenConstraint = Counting()  # type: ignore[assignment]
    found = with_forced(draft, constraint, DraftBudget(nodes, depth))
    return list(zip(found.token_list, found.parents.tolist(), strict=True))


def test_what_is_foreseen_is_merged_within_the_budget() -> None:
    assert grown(DraftTree.empty(), 3, 9) == [(5, -1), (6, 0), (7, 1)]
    assert grown(DraftTree.empty(), 9, 2) == [(5, -1), (6, 0)]
    # What is guessed already is shared, ends of paths go on, and nodes keep their places.
    assert grown(DraftTree.chain([5, 8]), 6, 4) == [(5, -1), (8, 0), (6, 0), (7, 2), (8, 3), (9, 1)]
    assert grown(DraftTree.chain([5, 6]), 2, 9) == [(5, -1), (6, 0)]
    tree = DraftTree(np.array([5], np.int32), np.array([-1], np.int32), grades=np.array([3], np.int32))
    constraint: TokenConstraint = Counting()  # type: ignore[assignment]
    found = with_forced(tree, constraint, DraftBudget(3, 3))
    assert found.grades is not None
    assert found.grades.tolist()[0] == 3
    assert len(found.grades) == 3


def foreseen(llm: LLM, *said: str, wanted: StructuredOutputsParams = JSON) -> str:
    """What is foreseen behind an output that came in these pieces, as long as anything is."""
    tokenizer, constraint = llm.model.tokenizer, llm.grammars.constraint(wanted)
    *committed, guessed = said
    for token in tokenizer.encode("".join(committed), add_special_tokens=False):
        constraint.advance(token)
    path = tokenizer.encode(guessed, add_special_tokens=False)
    behind = constraint.foreseen(path, 4)
    for token in path:
        constraint.advance(token)
    all_found: list[int] = []
    while found := constraint.foreseen([], 200):
        assert len(found) <= 32
        all_found += found
        for token in found:
            constraint.advance(token)
    assert behind == all_found[:4]
    return tokenizer.decode(all_found, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (('{"', ""), 'first_name": "'),
        (('{"first_name": "B', ""), 'ob", "is_employed":'),
        # White space as the output has it.
        (('{"first_name":"A', ""), 'da", "is_employed":'),
        (('{"first_name":"Ada","is_employed":t', ""), 'rue,"address":{"street":"Main"}}'),
        (
            ('{\n    "first_name": "Ada",\n    "is_employed": f', ""),
            'alse,\n    "address": {\n        "street": "Main"\n    }\n}',
        ),
        (('{"first_name": "Ada"', ', "is_employed": true'), ', "address": {"street": "Main"}}'),
        # Nothing is certain here.
        (('{"first_name": "', ""), ""),
        (('{"first_name": "Eve', ""), ""),
    ],
)
def test_keys_signs_and_white_space_are_foreseen(model: Model, said: tuple[str, ...], expected: str) -> None:
    llm = LLM(model, "none")
    assert foreseen(llm, *said) == expected


def test_texts_of_a_grammar_are_foreseen_with_its_special_tokens(model: Model) -> None:
    token = next(token for token in model.tokenizer.special_ids if model.tokenizer.token_text(token) == "<|im_start|>")
    grammar = StructuredOutputsParams(grammar=f'start: "go: " <[{token}]> /[a-z]/ "!"')
    llm = LLM(model, "none")
    assert foreseen(llm, "", wanted=grammar) == "go: <|im_start|>"
    assert foreseen(llm, "go: <|im_start|>", "x", wanted=grammar) == "!"


@pytest.mark.parametrize("temperature", thorough_but([0.8], [0, 0.8]))
def test_outputs_stay_what_they_are_in_fewer_rounds(model: Model, temperature: float) -> None:
    params = [
        SamplingParams(max_tokens=120, temperature=temperature, seed=seed, structured_outputs=JSON) for seed in range(3)
    ]
    plain = LLM(model, "none").generate(["Say: "] * 3, params)
    assert all(output.outputs[0].stats.drafted == 0 for output in plain)
    # "auto" asks nobody while this machine is too busy for guesses to pay: what is forced stays.
    for drafter, at_once in (("suffix", 1.5), ("auto", 1.01)):
        with LLM(model, drafter) as llm:
            outputs = llm.generate(["Say: "] * 3, params)
        for output, expected in zip(outputs, plain, strict=True):
            assert output.outputs[0].token_ids == expected.outputs[0].token_ids
            stats = output.outputs[0].stats
            assert stats.tokens >= at_once * stats.rounds
