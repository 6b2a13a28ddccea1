"""``headstart native`` as the author of an image meets it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import headstart, refusal, rows
from typer.testing import Result

from headstart.backends.native import loader


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    loader.forget_loaded()
    yield
    loader.forget_loaded()


def native(folder: Path, *arguments: str, compiler: str = 'echo > "$last"', **env: str) -> Result:
    """One call with a cache and a compiler of its own."""
    script = folder / "compiler"
    script.write_text(f"#!/bin/sh\nfor last; do :; done\n[ $last = --version ] && echo 1 && exit\n{compiler}\n")
    script.chmod(0o755)
    surroundings = {"CXX": str(script), "XDG_CACHE_HOME": str(folder / "cache"), "HEADSTART_NATIVE": ""}
    return headstart("native", *arguments, **{**surroundings, **env})


def test_instruction_sets_that_are_named_are_compiled_once(tmp_path: Path) -> None:
    result = native(tmp_path, "--isa", "amx", "--isa", "avx2")
    assert result.exit_code == 0
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["amx", "avx2"]
    made = {str(path) for path in (tmp_path / "cache" / "headstart").glob("*.so")}
    assert {line.split()[1] for line in result.stdout.splitlines()} == made
    assert len(result.stderr.splitlines()) == 2
    again = native(tmp_path, "--isa", "avx2", compiler="exit 1")
    assert again.exit_code == 0
    assert again.stderr == ""
    assert "there already" in again.stdout
    (told,) = rows(native(tmp_path, "--isa", "avx2", "--json", compiler="exit 1"))
    assert (told["isa"], told["compiled_in_seconds"]) == ("avx2", None)
    assert told["path"] in made


def test_left_to_itself_it_compiles_what_is_used_here(tmp_path: Path) -> None:
    usable = loader.usable_sets()
    if not usable or (library := loader.find_library(usable[0])) is None:
        pytest.skip("no native path on this machine")
    name = usable[0].name
    result = native(tmp_path, compiler=f'cat {library} > "$last"', HEADSTART_NATIVE=name)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{name}: {tmp_path}")


def test_where_nothing_can_be_used_it_says_so(tmp_path: Path) -> None:
    assert "--isa" in refusal(native(tmp_path, HEADSTART_NATIVE="0"), status=1)


def test_an_unknown_instruction_set_is_misuse(tmp_path: Path) -> None:
    assert "avx512" in refusal(native(tmp_path, "--isa", "sse9"), status=2)


@pytest.mark.parametrize(
    ("compiler", "env", "reason"),
    [
        ("exit 0", {"CXX": "/nonexistent/compiler"}, "/nonexistent/compiler"),
        ("echo no room >&2; exit 1", {}, "no room"),
    ],
)
def test_what_cannot_be_compiled_fails_with_its_reason(
    tmp_path: Path, compiler: str, env: dict[str, str], reason: str
) -> None:
    result = native(tmp_path, "--isa", "avx2", compiler=compiler, **env)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert reason in result.stderr.splitlines()[-1]
