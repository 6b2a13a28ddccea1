"""Names and methods that other packages add to the library."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import headstart
from headstart.common.installed import LIBRARY, AddedMethod, of_library

with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as file:
    ADDED = tomllib.load(file)["project"]["entry-points"][LIBRARY]


@pytest.mark.parametrize(("name", "value"), ADDED.items())
def test_what_packages_add_is_found_where_users_look_for_it(name: str, value: str) -> None:
    owner, _, method = name.rpartition(".")
    found = getattr(getattr(headstart, owner) if owner else headstart, method)
    assert found is of_library(name) is EntryPoint(name, value, LIBRARY).load()
    assert found.__doc__


def test_an_added_method_is_bound_to_its_object() -> None:
    llm = object.__new__(headstart.LLM)
    assert llm.transcribe.__self__ is llm


def test_what_no_package_adds_is_said_in_a_sentence() -> None:
    class Door:
        sing = AddedMethod()

    with pytest.raises(AttributeError, match=r"no installed package adds Door\.sing to headstart; install"):
        Door().sing()
    with pytest.raises(AttributeError, match="has no attribute 'Sonnet'"):
        _ = headstart.Sonnet
