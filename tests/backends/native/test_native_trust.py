"""What is loaded as code, or as weights that were packed before, was written by nobody else and is whole."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_cases import has_isa

from headstart.backends.native import loader, packed_cache, toolchain, trust
from headstart.backends.native.isa import InstructionSet, by_name

pytestmark = pytest.mark.skipif(not has_isa("generic"), reason="no compiler on this machine")
STRANGER = 54321


@pytest.fixture(scope="module")
def compiled() -> Path:
    own = loader.usable_sets()[0]
    return loader.find_library(own) or loader.compile_library(own)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder, and a compiler that builds in no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADSTART_NATIVE", raising=False)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(loader.tempfile, "tempdir", str(tmp_path / "other"))
    monkeypatch.setattr(toolchain, "SHIPPED", tmp_path / "compiled")
    script = tmp_path / "compiler"
    script.write_text(
        "#!/bin/sh\nfor last; do :; done\n[ $last = --version ] && echo 1 && exit\n"
        f'echo build >> {tmp_path}/builds\numask 022; cat {compiled} > "$last"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    loader.forget_loaded()
    yield tmp_path / "cache" / "headstart"
    loader.forget_loaded()


def generic() -> InstructionSet:
    isa = by_name("generic")
    assert isa is not None
    return isa


def builds(tmp_path: Path) -> int:
    log = tmp_path / "builds"
    return len(log.read_text().splitlines()) if log.exists() else 0


def kept() -> Path:
    """A library in the cache that is as it should be."""
    path = loader.compile_library(generic())
    assert loader.find_library(generic()) == path
    return path


def another_library(path: Path, tmp_path: Path) -> None:
    """One that loads, and lacks what Headstart calls."""
    source = tmp_path / "other.c"
    source.write_text("int other(void) { return 1; }\n")
    path.unlink(missing_ok=True)
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
@pytest.mark.parametrize("which", ["file", "folder", "above"])
def test_what_others_may_write_is_compiled_anew(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    which: str,
    mode: int,
) -> None:
    monkeypatch.setattr(trust, "_is_own_group", lambda group: False)
    path = kept()
    {"file": path, "folder": cache, "above": cache.parent}[which].chmod(mode)
    if which == "above" and mode & 0o1000:  # others cannot touch there what is not theirs
        assert loader.find_library(generic()) == path
        return
    with caplog.at_level(logging.WARNING):
        assert loader.load_library("generic") is not None
    assert builds(tmp_path) == 2
    assert "other users may write" in caplog.text
    assert "XDG_CACHE_HOME" in caplog.text
    assert len(list((tmp_path / "other").rglob("*.so"))) == (which != "file")  # where nobody else writes
    loader.forget_loaded()
    assert loader.load_library("generic") is not None
    assert builds(tmp_path) == 2


@pytest.mark.parametrize("which", ["file", "folder"])
def test_what_belongs_to_others_is_compiled_anew(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("root alone gives files away")
    path = kept()
    os.chown(path if which == "file" else cache, STRANGER, -1)
    with caplog.at_level(logging.WARNING):
        assert loader.load_library("generic") is not None
    assert builds(tmp_path) == 2
    assert "belongs to another user" in caplog.text


def test_a_link_is_judged_by_what_it_leads_to(tmp_path: Path, cache: Path) -> None:
    path = kept()
    planted = tmp_path / "open" / path.name
    planted.parent.mkdir()
    path.rename(planted)
    path.symlink_to(planted)
    assert loader.find_library(generic()) == path
    planted.parent.chmod(0o777)
    assert loader.find_library(generic()) is None


def test_the_group_that_a_user_has_alone_is_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = trust.pwd.getpwuid(os.geteuid())
    folder = tmp_path / "folder"
    folder.mkdir()
    os.chown(folder, -1, user.pw_gid)
    folder.chmod(0o775)
    for name, members, problem in (
        (user.pw_name, [], False),
        (user.pw_name, [user.pw_name], False),
        (user.pw_name, ["mallory"], True),
        ("staff", [], True),
    ):
        group = trust.grp.struct_group((name, "x", user.pw_gid, members))
        monkeypatch.setattr(trust.grp, "getgrgid", lambda _, group=group: group)
        assert (trust.why_distrusted(folder) is not None) is problem


@pytest.mark.parametrize("damage", ["cut", "a byte", "empty", "another library", "no digest"])
def test_what_is_not_whole_is_compiled_anew(tmp_path: Path, damage: str) -> None:
    path = kept()
    whole = path.read_bytes()
    if damage == "another library":
        another_library(path, tmp_path)
    elif damage == "no digest":
        path.with_suffix(".sha256").unlink()
    else:
        path.write_bytes({"cut": whole[: len(whole) // 2], "a byte": whole[:-1] + b"?", "empty": b""}[damage])
    assert loader.load_library("generic") is not None
    assert builds(tmp_path) == 2
    assert path.read_bytes() == whole


@pytest.mark.parametrize("damage", ["cut", "another library"])
def test_a_broken_library_of_a_wheel_is_compiled_anew(tmp_path: Path, damage: str) -> None:
    path = kept()
    shipped = tmp_path / "compiled" / path.name
    shipped.parent.mkdir()
    whole = path.read_bytes()
    path.unlink()
    if damage == "cut":
        shipped.write_bytes(whole[: len(whole) // 2])
    else:
        another_library(shipped, tmp_path)
    assert loader.load_library("generic") is not None
    assert builds(tmp_path) == 2


def test_packed_weights_of_others_are_not_read(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(packed_cache.VARIABLE, "1GB")
    found = packed_cache.packed_cache()
    assert found is not None
    restored: list[int] = []

    def restore(file: int, start: int) -> None:
        restored.append(file)

    found.store("key", 10, lambda file, start: None)
    assert found.load("key", restore)
    (entry,) = found.directory.iterdir()
    entry.chmod(0o666)
    with caplog.at_level(logging.INFO):
        assert not found.load("key", restore)
    assert len(restored) == 1
    assert f"other users may write {entry}" in caplog.text
    found.directory.chmod(0o777)
    assert packed_cache.packed_cache() is None
