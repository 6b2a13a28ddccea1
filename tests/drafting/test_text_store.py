"""Texts that drafters copy from: kept apart, bounded, and found again after a restart."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from threading import Event

import pytest

from headstart.drafting.text_store import TextStore
from headstart.errors import RequestError

VOCAB = 1000


def store(directory: Path | None, most_bytes: int = 1 << 16, identity: str = "one") -> TextStore:
    opened = TextStore(directory, most_bytes, identity, VOCAB)
    opened.is_read = True
    return opened


def texts(of: TextStore, scope: str = "") -> list[list[int]]:
    return of.since(scope, 0, VOCAB)[1]


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("texts-*"))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was logged."""
    sentences: list[str] = []
    monkeypatch.setattr(
        logging.getLogger("headstart.common.kept_files"), "warning", lambda _, said: sentences.append(said)
    )
    return sentences


def test_each_scope_has_its_own_texts_before_and_after_a_restart(tmp_path: Path) -> None:
    first = store(tmp_path)
    first.add("a", [1, 2, 3])
    first.add("b", [4])
    first.add("a", [5, 6])
    first.add("a", [])
    first.close()
    for opened in (first, store(tmp_path)):
        assert texts(opened, "a") == [[1, 2, 3], [5, 6]]
        assert texts(opened, "b") == [[4]]
        assert texts(opened, "c") == []
    assert texts(store(tmp_path, identity="another tokenizer"), "a") == []
    assert not any(path.name == "a" or path.stat().st_mode & 0o077 for path in files(tmp_path))


def test_readers_hear_of_each_text_once(tmp_path: Path) -> None:
    opened = store(None)
    opened.add("", [1])
    opened.add("", [2, 3])
    number, new = opened.since("", 0, 100)
    assert new == [[1], [2, 3]]
    assert opened.since("", number, 100) == (number, [])
    opened.add("", [4])
    # One that is there already is as good as new, and takes no room.
    opened.add("", [1])
    assert opened.since("", number, 100)[1] == [[4], [1]]
    assert texts(opened) == [[2, 3], [4], [1]]
    assert not files(tmp_path)


def test_a_scope_is_bounded_and_so_are_all_files(tmp_path: Path) -> None:
    opened = store(tmp_path, most_bytes=1 << 14)
    for first in range(40):
        opened.add("", [first] * 48)
    opened.add("long", list(range(VOCAB)))
    # A sixteenth of 16,384 bytes, of which each text takes 64 beside its tokens.
    assert texts(opened) == [[first] * 48 for first in (36, 37, 38, 39)]
    assert texts(opened, "long") == [list(range(VOCAB - 240, VOCAB))]
    assert opened.since("", 0, 60)[1] == [[38] * 12, [39] * 48]
    for scope in range(12):
        opened.add(f"{scope}", [scope] * 48)
        opened.save()
        # A small file takes a block of 4,096 bytes.
        assert 0 < len(files(tmp_path)) <= 4
    again = store(tmp_path, 1 << 14)
    assert texts(again, "11") == [[11] * 48]
    assert texts(again, "long") == []


def test_scopes_that_went_out_of_memory_are_read_again(tmp_path: Path) -> None:
    opened = store(tmp_path, 1 << 18)
    for scope in range(40):
        opened.add(f"{scope}", [scope])
        if scope == 20:
            opened.save()
    assert [texts(opened, f"{scope}") for scope in range(40)] == [[[scope]] for scope in range(40)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-3],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content.replace(b"texts 1", b"texts 2"),
        lambda content: b"",
        lambda content: b"\0" * 100,
    ],
    ids=["cut off", "one bit", "another version", "empty", "zeros"],
)
def test_a_damaged_file_costs_a_sentence(tmp_path: Path, told: list[str], damage) -> None:
    first = store(tmp_path)
    first.add("", [1, 2, 3])
    first.close()
    (path,) = files(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    broken = path.read_bytes()
    second = store(tmp_path)
    assert texts(second) == []
    assert len(told) == 1
    assert "left aside" in told[0]
    second.add("", [7])
    second.close()
    assert texts(store(tmp_path)) == [[7]]
    assert path.with_name(path.name + ".damaged").read_bytes() == broken


def test_tokens_that_the_model_lacks_are_never_guessed(tmp_path: Path, told: list[str]) -> None:
    large = TextStore(tmp_path, identity="one", vocab_size=5000)
    large.add("", [1, 4000])
    large.close()
    assert texts(store(tmp_path)) == []
    assert len(told) == 1


def test_the_directory_may_go_at_any_time(tmp_path: Path, told: list[str]) -> None:
    directory = tmp_path / "not" / "there"
    opened = store(directory)
    opened.add("", [1])
    opened.save()
    shutil.rmtree(directory)
    opened.add("", [2])
    opened.save()
    assert texts(store(directory)) == [[1], [2]]
    shutil.rmtree(directory)
    directory.parent.rmdir()
    directory.parent.write_text("in the way")
    opened.add("", [3])
    opened.save()
    opened.save()
    assert texts(opened) == [[1], [2], [3]]
    assert len(told) == 1
    assert "cannot be written" in told[0]


def test_what_came_is_written_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.drafting.text_store.WRITE_SECONDS", 0.0)
    opened, written = store(tmp_path), Event()
    save = opened.save
    monkeypatch.setattr(opened, "save", lambda: (save(), written.set()))
    for number in (1, 2):
        opened.add("", [number])
        assert written.wait(30)
        written.clear()
        assert texts(store(tmp_path))[-1] == [number]


def test_what_is_no_text_of_the_model_is_refused_as_a_whole() -> None:
    opened = store(None)
    with pytest.raises(RequestError, match="token 1000; this model's ids go from 0 to 999"):
        opened.add_all("", [[1], [2, 1000]])
    with pytest.raises(RequestError, match="token -1"):
        opened.add_all("", [[-1]])
    assert texts(opened) == []
    assert opened.add_all("", [[1, 2], [], [3]]) == 3
    opened.is_read = False
    with pytest.raises(RequestError, match="no drafter of this engine copies"):
        opened.add_all("", [[1]])
