"""Whatever value a drafter's option is given, it is refused in one sentence or does no harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from drafting_toys import CONTRACT_VOCAB, ToySequence, play, read_prompt, second_order_target
from head_toys import DRAFT_IDS

from headstart.drafting.base import DraftBudget, Drafter
from headstart.drafting.registry import available_drafters, drafter_options
from headstart.errors import CheckpointError, ConfigError

TARGET = second_order_target(CONTRACT_VOCAB)
NUMBERS = [0, 1, -1, 10**6, 10**12, 2**63, 10**30, 0.5, -0.5, 1e308, float("nan"), float("inf"), -float("inf")]
TEXTS = ["", "no such thing", "a\0b", "~nobody-of-this-name/x", "x" * 5000, b"x"]
LISTS: list[Any] = [[], [[]], [0], [[0]], [[10**30]], [[-1]], [["a"]], [[0.5]], [[[0]]], [[True]], [[0], [0, 0], [0]]]
LISTS += [[[0, 0]], [1] * 1000, [10**6] * 3, [10**30], [-1], [None], ["a", 7], [[0] * i for i in range(1, 100)]]
OTHERS = [True, False, None, {}, {"a": 1}, {1: 2}, {"suffix": 7}, object()]
OPTIONS = [(name, field.name) for name in available_drafters() for field in fields(drafter_options(name))]
DrafterWith = Callable[[str, dict[str, Any]], Drafter]


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=lambda value: value)
def test_absurd_values_are_refused_in_one_sentence_or_do_no_harm(
    drafter_with: DrafterWith, name: str, option: str
) -> None:
    harmless = 0
    for value in [*NUMBERS, *TEXTS, *LISTS, *OTHERS]:
        try:
            drafter = drafter_with(name, {option: value})
        except (ConfigError, CheckpointError) as error:
            said = str(error)
        except KeyError:
            assert option in ("model", "models")  # the toys know their models by name
            continue
        else:
            harmless += 1
            sequence = ToySequence(1, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 1, 4])
            drafter.begin(sequence)
            drafter.observe([read_prompt(sequence)])
            play(drafter, [sequence], TARGET, 4, DraftBudget(9, 6), CONTRACT_VOCAB)
            continue
        assert "\n" not in said
        assert len(said) < 1000, said
    assert harmless < 40


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ([[100000]], rf"rank 100000; the head says {len(DRAFT_IDS)} tokens"),
        ([[0], [len(DRAFT_IDS)]], rf"rank {len(DRAFT_IDS)}; the head says {len(DRAFT_IDS)} tokens"),
        ([[0] * depth for depth in range(1, 5)], "path of 4 ranks; the head has 3 slots"),
        ([[True]], "a list of lists of integers"),
    ],
)
def test_a_shape_of_medusa_must_fit_its_head(drafter_with: DrafterWith, shape: list[list[int]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        drafter_with("medusa", {"shape": shape})


def test_the_widest_and_deepest_shape_fits(drafter_with: DrafterWith) -> None:
    shape = [[len(DRAFT_IDS) - 1], [len(DRAFT_IDS) - 1, 0], [len(DRAFT_IDS) - 1, 0, 0]]
    drafter_with("medusa", {"shape": shape})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**10, -(10**10)])
def test_numbers_beyond_all_bounds_are_named(drafter_with: DrafterWith, value: float) -> None:
    with pytest.raises(ConfigError, match=r"option 'factor' of drafter 'suffix' is .*; it must lie within 1000000000"):
        drafter_with("suffix", {"factor": value})
