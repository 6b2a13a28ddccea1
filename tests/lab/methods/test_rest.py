from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from drafting_toys import ToySequence

from headstart.drafting.base import DraftBudget
from headstart.drafting.context import DraftContext
from headstart.drafting.text_store import TextStore
from headstart.errors import CheckpointError, ConfigError
from headstart.passes.draft_tree import ROOT
from headstart_lab.methods.rest.drafter import RestDrafter, RestOptions, tree_of
from headstart_train.text.corpus import Corpus, Document

BUDGET = DraftBudget(9, 9)


class Words:
    """A tokenizer of numbers."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]


def drafter(tmp_path: Path, text: str, **options: object) -> RestDrafter:
    path = tmp_path / "texts.txt"
    path.write_text(text, encoding="utf-8")
    return RestDrafter(DraftContext(50, tokenizer=Words()), RestOptions(str(path), **options))  # type: ignore[arg-type]


def drafted(rest: RestDrafter, tokens: list[int], budget: DraftBudget = BUDGET) -> list[tuple[int, int]]:
    (tree,) = rest.propose([ToySequence(0, tokens)], [budget])
    return list(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True))


def test_what_followed_the_longest_known_suffix_is_proposed_the_most_frequent_first(tmp_path: Path) -> None:
    rest = drafter(tmp_path, "1 2 3 4\n\n1 2 3 5\n\n1 2 6\n\n9 2 7 7")
    # Of 8, 1, 2 the last two stand in three texts: 3 follows in two of them, 4 and 5 in one each.
    assert drafted(rest, [8, 1, 2]) == [(3, ROOT), (6, ROOT), (4, 0), (5, 0)]
    assert drafted(rest, [9, 2]) == [(7, ROOT), (7, 0)]
    assert drafted(rest, [30]) == []
    assert drafted(rest, [4]) == []  # nothing follows
    assert drafted(rest, [8, 1, 2], DraftBudget(1, 9)) == [(3, ROOT)]
    assert drafted(rest, [8, 1, 2], DraftBudget(9, 1)) == [(3, ROOT), (6, ROOT)]
    assert drafted(rest, [8, 1, 2], DraftBudget(0, 0)) == []


def test_no_guess_goes_across_the_end_of_a_text(tmp_path: Path) -> None:
    assert drafted(drafter(tmp_path, "1 2\n\n3 4"), [1]) == [(2, ROOT)]


def test_options_bound_the_tree(tmp_path: Path) -> None:
    text = "1 2 3 4 5 6\n\n1 2 3 9\n\n7 2 8"
    assert drafted(drafter(tmp_path, text, draft_tokens=2), [1, 2]) == [(3, ROOT), (4, 0), (9, 0)]
    assert drafted(drafter(tmp_path, text, tree_nodes=1), [1, 2]) == [(3, ROOT)]
    assert drafted(drafter(tmp_path, text, min_probability=0.6), [1, 2]) == [(3, ROOT)]
    assert (8, ROOT) in drafted(drafter(tmp_path, text, max_match=1), [1, 2])


def test_grades_tell_long_matches_and_frequent_guesses_from_others() -> None:
    short, long = tree_of([[1], [2]], 1, 9, 0.1).tree(), tree_of([[1], [1]], 9, 9, 0.1).tree()
    rates = RestDrafter.grade_rates
    assert short.grades is not None
    assert long.grades is not None
    assert max(rates[grade] for grade in short.grades) < min(rates[grade] for grade in long.grades)


def test_scores_count_what_should_be_accepted() -> None:
    proposal = tree_of([[1, 2], [1, 3], [4, 2], [1, 2]], 3, 9, 0.0)
    assert proposal.score == pytest.approx(3 / 4 + 2 / 4 + 1 / 4 + 1 / 4 + 1 / 4)
    assert proposal.matches == [3, 4, 3, 4, 4]
    assert proposal.ratios == pytest.approx([3 / 4, 2 / 3, 1 / 4, 1 / 3, 1.0])


def test_the_corpus_of_a_training_is_a_store(tmp_path: Path) -> None:
    tokens = np.array([1, 2, 3], dtype=np.int32)
    Corpus(tmp_path, {"target_digest": "x"}).extend([Document(tokens, np.array([False, True, True]))])
    for digest in ("x", None):
        context = DraftContext(50, digest=None if digest is None else lambda: "x")
        assert drafted(RestDrafter(context, RestOptions(str(tmp_path))), [1]) == [(2, ROOT), (3, 0)]
    with pytest.raises(ConfigError, match="another directory"):
        RestDrafter(DraftContext(50, digest=lambda: "y"), RestOptions(str(tmp_path)))


def test_what_holds_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="texts is left out"):
        RestDrafter(DraftContext(50), RestOptions())
    with pytest.raises(CheckpointError, match="no '/nowhere' to take texts from"):
        RestDrafter(DraftContext(50), RestOptions("/nowhere"))
    with pytest.raises(ConfigError, match="holds no text of a training"):
        RestDrafter(DraftContext(50), RestOptions(str(tmp_path)))
    with pytest.raises(ConfigError, match="holds no text; name"):
        drafter(tmp_path, "\n\n")
    (tmp_path / "texts.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        RestDrafter(DraftContext(50, tokenizer=Words()), RestOptions(str(tmp_path / "texts.txt")))
    for wrong in ({"tree_nodes": 0}, {"draft_tokens": 0}, {"max_match": 99}, {"min_probability": 2.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            RestOptions("x", **wrong)  # type: ignore[arg-type]


def test_texts_that_were_given_are_guessed_from_in_their_scope(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("1 2 3", encoding="utf-8")
    texts = TextStore()
    context = DraftContext(50, tokenizer=Words(), scope_of=lambda sequence: sequence.id % 2, texts=texts)
    rest = RestDrafter(context, RestOptions(str(path)))

    def guessed(number: int, tokens: list[int]) -> list[int]:
        sequence = ToySequence(number, tokens)
        rest.begin(sequence)
        (tree,) = rest.propose([sequence], [BUDGET])
        return tree.tokens.tolist()

    assert guessed(1, [8, 9]) == []
    for given in ([7, 8, 9, 10], list(range(20, 40)), [8, 9, 11, 12], [30, 2, 4]):
        texts.add_all(1, [given])
        guessed(1, [0])
    # The longest match of the file and of all that was given; both at once where they are as long.
    assert guessed(1, [8, 9]) == [10, 11, 12]
    assert guessed(1, [22]) == [*range(23, 32)]
    assert guessed(1, [1, 2]) == [3]
    assert guessed(1, [2]) == [3, 4]
    assert guessed(2, [8, 9]) == []
    assert guessed(2, [2]) == [3]
