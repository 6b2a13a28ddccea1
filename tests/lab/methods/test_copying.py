from __future__ import annotations

import pytest
from drafting_toys import ToySequence
from hypothesis import given
from hypothesis import strategies as st

from headstart.drafting.base import DraftBudget
from headstart.drafting.context import DraftContext
from headstart.errors import ConfigError
from headstart.passes.batch import EncoderInput
from headstart_lab.methods.copying.drafter import CopyDrafter, CopyOptions, InputCopy


def unique_place(prompt: list[int], output: list[int], min_match: int) -> int | None:
    """Behind the only place of the input where an output suffix stands."""
    for length in range(min_match, len(output) + 1):
        ends = [end for end in range(length, len(prompt) + 1) if prompt[end - length : end] == output[-length:]]
        if len(ends) == 1:
            return ends[0]
    return None


def reference(prompt: list[int], output: list[int], options: CopyOptions, limit: int) -> list[int]:
    place = 0 if options.from_start else None
    for end, token in enumerate(output, 1):
        if place is not None and place < len(prompt) and prompt[place] == token:
            place += 1
        else:
            place = unique_place(prompt, output[:end], options.min_match)
    return [] if place is None else prompt[place : place + limit]


@pytest.mark.parametrize("options", [CopyOptions(), CopyOptions(from_start=False), CopyOptions(min_match=3)], ids=str)
@given(
    prompt=st.lists(st.integers(0, 3), min_size=4, max_size=25),
    output=st.lists(st.integers(0, 3), min_size=4, max_size=25),
    piece=st.sampled_from([1, 2, 5, 25]),
)
def test_the_draft_equals_a_search(options: CopyOptions, prompt: list[int], output: list[int], piece: int) -> None:
    copy = InputCopy(prompt, options)
    copy.extend(prompt)
    for start in range(0, len(output), piece):
        copy.extend(output[start : start + piece])
        assert copy.rest(7) == reference(prompt, output[: start + piece], options, 7)


def test_the_papers_course_of_events() -> None:
    """Copy from the start, a word replaced, single decoding, then the rest of the input."""
    prompt = [1, 2, 3, 4, 5, 6, 7]
    copy = InputCopy(prompt, CopyOptions())
    copy.extend(prompt)
    assert copy.rest(3) == [1, 2, 3]
    copy.extend([1, 2, 9])
    assert copy.rest(3) == []
    copy.extend([4])
    assert copy.rest(9) == [5, 6, 7]
    copy.extend([5, 6, 7])
    assert copy.rest(9) == []


def test_a_place_that_is_not_unique_is_no_place() -> None:
    prompt = [1, 2, 3, 1, 2, 4]
    copy = InputCopy(prompt, CopyOptions(from_start=False))
    copy.extend([*prompt, 1, 2])
    assert copy.rest(9) == []
    copy.extend([3])
    assert copy.rest(9) == [1, 2, 4]


def test_the_output_is_no_input() -> None:
    drafter = CopyDrafter(DraftContext(10), CopyOptions(from_start=False))
    sequence = ToySequence(1, [1, 2, 7, 8, 9, 7], prompt_length=2)
    drafter.begin(sequence)
    assert len(drafter.propose([sequence], [DraftBudget(9, 9)])[0]) == 0


def test_the_prompt_before_the_output_does_not_make_a_match_unique() -> None:
    prompt = [1, 2, 7, 3, 2, 8, 3]
    copy = InputCopy(prompt, CopyOptions(from_start=False))
    copy.extend([*prompt, 2])
    assert copy.rest(9) == []


def test_a_repetitive_input_is_given_up_on() -> None:
    prompt = [1] * 300
    copy = InputCopy(prompt, CopyOptions(from_start=False))
    copy.extend([*prompt, *[1] * 200])
    assert copy.rest(9) == []


@pytest.mark.parametrize("options", [{"draft_tokens": 0}, {"min_match": 0}, {"min_match": 65}], ids=str)
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        CopyOptions(**options)


@pytest.mark.parametrize(
    ("begun", "said", "drafted"),
    [
        ([9], [], [1, 2, 3, 4, 5]),  # T5: the start token stands for nothing
        ([9, 1], [], [2, 3, 4, 5]),  # BART: a forced first token is the input's first
        ([9], [1, 2, 7], []),
        ([9], [1, 2, 7, 4], [5]),
        ([9, 8], [], []),  # a language of the output, which the input does not hold
    ],
)
def test_the_input_is_what_the_encoder_reads(begun: list[int], said: list[int], drafted: list[int]) -> None:
    drafter = CopyDrafter(DraftContext(10), CopyOptions())
    sequence = ToySequence(3, begun, source=EncoderInput((1, 2, 3, 4, 5)))
    drafter.begin(sequence)
    for token in (None, *said):
        if token is not None:
            sequence.tokens.append(token)
        (tree,) = drafter.propose([sequence], [DraftBudget(15, 15)])
    assert tree.tokens.tolist() == drafted
    # Begun anew after a preemption, it stands where it stood.
    drafter.end(3)
    drafter.begin(sequence)
    assert drafter.propose([sequence], [DraftBudget(15, 15)])[0].tokens.tolist() == drafted
