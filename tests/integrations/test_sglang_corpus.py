"""The drafter in the place of SGLang's corpus; ``test_in_sglang.py`` hands it to SGLang's own code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from engine_batches import VOCAB, looping

from headstart.passes.draft_tree import ROOT, DraftTree
from headstart_integrations.hosted import HostedDrafter
from headstart_integrations.sglang import DrafterCorpus, visibility

PROMPT = [3, 9, 4, 1, 5, 9, 2, 6]
ROWS = 8


def corpus(drafter: str = "suffix", **options: object) -> DrafterCorpus:
    hosted = HostedDrafter(drafter, options, vocab_size=VOCAB, draft_tokens=ROWS - 1, tree_nodes=ROWS - 1)
    return DrafterCorpus(hosted, ROWS)


def accepted(tokens: Sequence[int], sees: np.ndarray, truth: Sequence[int]) -> int:
    """How far the truth is followed from row 0, by the rows that see each other alone."""
    row, depth = 0, 0
    while depth < len(truth):
        below = [i for i in range(row + 1, ROWS) if sees[i, row] and sees[i].sum() == depth + 2]
        row = next((i for i in below if tokens[i] == truth[depth]), 0)
        if row == 0:
            return depth
        depth += 1
    return depth


@pytest.mark.parametrize("drafter", ["suffix", "recycling", "ngram", "copy"])
def test_trees_of_several_requests_follow_the_text(drafter: str) -> None:
    target, source = looping(5), corpus(drafter)
    texts = {"a": [*PROMPT], "b": [7, *PROMPT]}
    for text in texts.values():
        text.append(target(text))
    right = 0
    for _ in range(40):
        names = sorted(texts, reverse=bool(right % 2))
        ids, mask = source.batch_get(names, [list(texts[name]) for name in names], [len(texts[name]) for name in names])
        assert (ids.dtype, mask.dtype) == (np.int64, np.int64)
        assert (ids.shape, mask.shape) == ((2 * ROWS,), (2 * ROWS * ROWS,))
        for place, name in enumerate(names):
            text = texts[name]
            truth = list(text)
            while len(truth) < len(text) + ROWS:
                truth.append(target(truth))
            tokens, sees = ids.reshape(2, ROWS)[place], mask.reshape(2, ROWS, ROWS)[place]
            assert tokens[0] == text[-1]
            follows = accepted(tokens.tolist(), sees, truth[len(text) :])
            right += follows
            text.extend(truth[len(text) : len(text) + follows + 1])
    assert right > 15


def test_the_mask_is_the_tree() -> None:
    tree = DraftTree.from_paths([[5, 6, 7], [5, 8], [9]], 8)
    sees = visibility(tree, 8)
    for node in range(len(tree)):
        above = {0, *(other + 1 for other in tree.path_to(node))}
        assert set(np.flatnonzero(sees[node + 1])) == above
    assert set(np.flatnonzero(sees[0])) == {0}
    assert [set(np.flatnonzero(row)) for row in sees[6:]] == [{0, 6}, {0, 7}]
    assert ROOT == -1


def test_departed_requests_teach_later_ones_and_are_forgotten() -> None:
    source = corpus("suffix")
    said = [11, 23, 7, 42, 17, 30, 5, 50, 28, 33]
    source.batch_get(["a"], [[1, 2, said[0]]], [3])
    source.batch_get(["a"], [[1, 2, *said]], [12])
    source.erase_match_state(["a", "unknown"])
    tokens, _ = source.batch_get(["b"], [[4, said[0], said[1]]], [3])
    assert tokens[1:6].tolist() == said[2:7]
    source.reset()
    assert source._followed == {}
    assert source._hosted._held == 0


def test_a_request_whose_tokens_changed_is_begun_anew() -> None:
    source = corpus("ngram")
    source.batch_get(["a"], [[1, 2, 3, 1, 2]], [5])
    again, _ = source.batch_get(["a"], [[1, 2, 9, 1, 2]], [5])
    fresh, _ = corpus("ngram").batch_get(["a"], [[1, 2, 9, 1, 2]], [5])
    assert again.tolist() == fresh.tolist()
    assert again[1] == 9


def test_a_fault_leaves_plain_rows(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    source = corpus("ngram")

    def broken(*_: object) -> None:
        raise RuntimeError("told to")

    monkeypatch.setattr(source._hosted, "propose", broken)
    for _ in range(2):
        tokens, sees = source.batch_get(["a"], [[1, 2, 3, 1, 2]], [5])
        assert tokens.tolist() == [2] + [0] * (ROWS - 1)
        assert sees.reshape(ROWS, ROWS).tolist() == visibility(DraftTree.empty(), ROWS).tolist()
    assert len(caplog.records) == 1


def test_external_corpora_are_refused_with_the_way_that_works() -> None:
    source = corpus()
    with pytest.raises(ValueError, match="rest:texts=FILE"):
        source.load_external_corpus_named("books", [[1, 2]])
    assert source.list_external_corpora() == {}
    assert source.remaining_token_budget == 0
