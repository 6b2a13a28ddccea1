from __future__ import annotations

import numpy as np
import pytest

from headstart_train.text.corpus import Document
from headstart_train.text.packs import make_packs, split_held_out


def document(*tokens: int, prompt: int = 1) -> Document:
    return Document(np.asarray(tokens, dtype=np.int32), np.arange(len(tokens)) >= prompt)


def test_packs_hold_whole_documents_where_there_is_room() -> None:
    documents = [document(*range(count)) for count in (3, 4, 5, 12, 1, 2)]
    packs = make_packs(documents, 8)
    assert [[len(part.tokens) for part in pack.documents] for pack in packs] == [[3, 4], [5, 2], [8]]
    assert [len(pack) for pack in packs] == [7, 7, 8]


def test_one_in_twenty_is_held_out() -> None:
    train, held_out = split_held_out(45)
    assert [index // 20 for index in held_out] == [0, 1]
    assert sorted(train + held_out) == list(range(45))
    assert split_held_out(5)[1] == []
    assert split_held_out(400)[1][:2] == held_out


@pytest.mark.parametrize("kinds", [2, 3, 4, 5, 10])
def test_what_takes_turns_is_held_out_alike(kinds: int) -> None:
    """Temperatures and sources do, with periods that divide twenty."""
    held_out = split_held_out(40_000)[1]
    counts = [sum(index % kinds == kind for index in held_out) for kind in range(kinds)]
    expected = len(held_out) / kinds
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts)
