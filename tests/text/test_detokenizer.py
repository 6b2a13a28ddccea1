"""Text that grows: the pieces join to the whole, and no piece is ever taken back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import byte_level, sentencepiece

from headstart.models.aliases import ALIASES, DEFAULT_MODEL
from headstart.models.checkpoint import open_checkpoint
from headstart.text.detokenizer import CommittedText, IncrementalDetokenizer
from headstart.text.tokenizer import Tokenizer

TOKENIZERS = {
    "byte-level": byte_level(),
    "sentencepiece": sentencepiece(),
    "sentencepiece-no-prefix": sentencepiece(add_space_prefix=False),
}
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁\ufffd"), max_size=25)
over_tokenizers = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())


@over_tokenizers
@pytest.mark.parametrize("skip", [True, False])
def test_pieces_of_any_tokens_join_to_the_whole(tokenizer: Tokenizer, skip: bool) -> None:
    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.integers(0, tokenizer.vocab_size), max_size=25))
    def joins(ids: list[int]) -> None:
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
        whole = tokenizer.decode(ids, skip_special_tokens=skip)
        shown = ""
        for token_id in ids:
            shown += detokenizer.append(token_id)
            assert whole.startswith(shown)
        shown += detokenizer.finish()
        assert shown == detokenizer.text == whole

    joins()


@over_tokenizers
def test_pieces_go_on_where_the_prompt_ends(tokenizer: Tokenizer) -> None:
    @settings(max_examples=200, deadline=None)
    @given(TEXT, st.integers(0, 30))
    def goes_on(text: str, cut: int) -> None:
        ids = tokenizer.encode(text, parse_special=False)
        prompt, output = ids[:cut], ids[cut:]
        detokenizer = IncrementalDetokenizer(tokenizer, prompt)
        pieces = "".join(detokenizer.append(token_id) for token_id in output) + detokenizer.finish()
        complete = tokenizer.decode(prompt).rstrip("\ufffd") if cut < len(ids) else tokenizer.decode(prompt)
        assert complete + pieces == tokenizer.decode(ids)

    goes_on()


def test_the_space_between_prompt_and_output_is_kept() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    the = tokenizer.vocabulary["▁the"]
    assert IncrementalDetokenizer(tokenizer, [tokenizer.vocabulary["a"]]).append(the) == " the"
    assert IncrementalDetokenizer(tokenizer).append(the) == "the"
    assert IncrementalDetokenizer(tokenizer, [1]).append(the) == "the"  # a special token is no text


def test_characters_are_held_back_until_complete() -> None:
    tokenizer = byte_level("")
    *first, last = tokenizer.encode("🎉")
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.append(token_id) for token_id in first] == ["", "", ""]
    assert detokenizer.append(last) == "🎉"
    cut_short = IncrementalDetokenizer(tokenizer)
    assert cut_short.extend(first).text == ""
    assert cut_short.finish() == "\ufffd"
    assert cut_short.finish() == ""


def test_special_tokens_are_silent() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("a<|im_end|>b")
    assert IncrementalDetokenizer(tokenizer).extend(ids).text == "ab"
    assert IncrementalDetokenizer(tokenizer, skip_special_tokens=False).extend(ids).text == "a<|im_end|>b"


# stop strings


@over_tokenizers
def test_stops_act_on_the_text_and_not_on_its_tokens(tokenizer: Tokenizer) -> None:
    words = st.sampled_from(["the ", "th", "he", "ing", "☃", "日本", "\n\n", "a", "e", " "])
    stops = st.lists(st.sampled_from(["the", "he th", "ing", "☃日", "\n\n", "ea", "e", "aa"]), max_size=3, unique=True)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(words, max_size=12), stops, st.lists(st.integers(1, 5), min_size=30, max_size=30))
    def act(parts: list[str], stop: list[str], runs: list[int]) -> None:
        ids = tokenizer.encode("".join(parts), add_special_tokens=False)
        text = tokenizer.decode(ids)
        ends = [(at + len(s), at, s) for s in stop for at in range(len(text)) if text.startswith(s, at)]
        end, start, matched = min(ends, default=(None, len(text), None))

        detokenizer = IncrementalDetokenizer(tokenizer, stop=stop)
        shown, taken, rest = "", 0, ids
        for run in runs:
            part, rest = rest[:run], rest[run:]
            extension = detokenizer.extend(part)
            shown, taken = shown + extension.text, taken + extension.taken
            assert text[:start].startswith(shown)
            if detokenizer.stop is not None:
                break
        shown += detokenizer.finish()
        if not rest or matched is not None:
            assert (shown, detokenizer.text, detokenizer.stop) == (text[:start], text[:start], matched)
        if end is not None:
            complete = [len(tokenizer.decode(ids[:n]).rstrip("\ufffd")) for n in range(len(ids) + 1)]
            assert taken == next(n for n in range(len(ids) + 1) if complete[n] >= end)

    act()


def test_a_stop_inside_one_token_cuts_that_token() -> None:
    tokenizer = byte_level("abcdef")
    (token_id,) = tokenizer.encode("abcdef")
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["cd"])
    assert detokenizer.extend([token_id, token_id]) == ("ab", 1)
    assert (detokenizer.stop, detokenizer.text) == ("cd", "ab")
    assert detokenizer.append(token_id) == ""
    assert detokenizer.finish() == ""


def test_the_prompt_is_not_searched() -> None:
    tokenizer = byte_level("")
    detokenizer = IncrementalDetokenizer(tokenizer, tokenizer.encode("xa"), stop=["ab"])
    assert detokenizer.extend(tokenizer.encode("bab")) == ("b", 3)


def test_the_first_tokens_may_be_exempt() -> None:
    tokenizer = byte_level("")
    ids = tokenizer.encode("a.b.c")
    assert IncrementalDetokenizer(tokenizer, stop=["."]).extend(ids) == ("a", 2)
    assert IncrementalDetokenizer(tokenizer, stop=["."], min_tokens=1).extend(ids) == ("a", 2)
    assert IncrementalDetokenizer(tokenizer, stop=["."], min_tokens=2).extend(ids) == ("a.b", 4)


@pytest.mark.model
def test_the_default_model_streams_its_text() -> None:
    if ALIASES[DEFAULT_MODEL].installed_file() is None:
        pytest.skip(f"the package {ALIASES[DEFAULT_MODEL].package!r} with the default model is not installed")
    tokenizer = Tokenizer.from_checkpoint(open_checkpoint(DEFAULT_MODEL))
    text = "Numbers: 1, 22, 333. Emoji: 👩‍👩‍👧‍👦 🏳️‍🌈. 日本語 with  spaces\n\tand code: x = {'a': [1]}."
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert detokenizer.extend(tokenizer.encode(text)).text + detokenizer.finish() == text


class Counted(IncrementalDetokenizer):
    """Counts the tokens that it has made into text."""

    made = 0

    def append(self, token_id: int, ends: bool = False) -> str:
        self.made += 1
        return super().append(token_id, ends)


def test_committed_text_waits_until_it_is_asked_for() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("abc déf")
    eager, detokenizer = IncrementalDetokenizer(tokenizer), Counted(tokenizer)
    text = CommittedText(detokenizer)
    for token_id in ids:
        eager.append(token_id)
        text.append(token_id, False)
    assert text.stop is None
    assert detokenizer.made == 0
    assert (text.text, text.offsets) == (eager.text, eager.offsets)
    text.finish()
    assert text.text == "abc déf"
    assert detokenizer.made == len(ids)


def test_committed_text_is_made_at_once_where_a_stop_string_may_end_it() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    text = CommittedText(IncrementalDetokenizer(tokenizer, stop=["c"]))
    stops = []
    for token_id in tokenizer.encode("a b c"):
        text.append(token_id, False)
        stops.append(text.stop)
    assert stops[0] is None
    assert stops[-1] == "c"
    assert text.text == "a b "
