"""What a node has behind it is counted as if its path had been committed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.sampling.history import TokenHistory


@given(
    prompt=st.lists(st.integers(0, 15), max_size=10),
    output=st.lists(st.integers(0, 15), max_size=150),
    path=st.lists(st.integers(0, 15), max_size=5),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_path_counts_like_committed_tokens(prompt, output, path):
    grown = TokenHistory(prompt)
    for token in output:
        grown.append(token)
    overlaid = grown.along(path)
    whole = TokenHistory(prompt, output + path).along()
    assert overlaid.output_length == whole.output_length == len(output) + len(path)
    for history in (overlaid, whole):
        ids, counts = history.counts()
        assert len(set(ids.tolist())) == len(ids)
        assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {
            token: (output + path).count(token) for token in {*prompt, *output, *path}
        }


def test_the_tail_is_of_output_and_path_alone():
    history = TokenHistory([1, 2], [3, 4])
    assert list(history.along([5]).tail(2)) == [4, 5]
    assert list(history.along([5, 6, 7]).tail(2)) == [6, 7]
    assert list(history.along().tail(9)) == [3, 4]


@given(
    prompt=st.lists(st.integers(0, 3), max_size=12),
    output=st.lists(st.integers(0, 3), max_size=20),
    path=st.lists(st.integers(0, 3), max_size=6),
    source=st.none() | st.lists(st.integers(0, 3), max_size=12),
    size=st.integers(1, 4),
    asked_first=st.booleans(),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_repeats_are_those_of_a_plain_search(prompt, output, path, source, size, asked_first):
    history = TokenHistory(prompt, source=source)
    if asked_first:  # what is counted must then keep up
        history.repeats(size, [])
    for token in output:
        history.append(token)
    line, read = [*prompt, *output, *path], prompt if source is None else source

    def following(tokens):
        begun = line[len(line) + 1 - size :] if len(line) >= size - 1 else None
        return {tokens[i + size - 1] for i in range(len(tokens) - size + 1) if tokens[i : i + size - 1] == begun}

    assert set(history.along(path).repeats(size)) == following(line)
    assert set(history.along(path).repeats_read(size)) == following(read)
