"""``headstart drafters`` as a user meets it."""

from __future__ import annotations

import json

import pytest
from cli_runs import headstart, refusal

from headstart.drafting.registry import available_drafters

NAMES = list(available_drafters())


def test_every_drafter_is_listed_with_a_line_and_its_source() -> None:
    result = headstart("drafters", COLUMNS="300")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()[1:]
    for line, info in zip(lines, available_drafters().values(), strict=True):
        assert line.startswith(info.name)
        assert info.summary in line
        assert info.source in line


def test_the_list_as_json() -> None:
    listed = json.loads(headstart("drafters", "--json").stdout)
    assert [entry["name"] for entry in listed] == NAMES
    assert all(entry["summary"] and entry["source"] for entry in listed)


@pytest.mark.parametrize("name", NAMES)
def test_each_drafter_shows_its_options(name: str) -> None:
    shown = json.loads(headstart("drafters", name, "--json").stdout)
    assert shown["name"] == name
    assert all(option["type"] for option in shown["options"])
    text = headstart("drafters", name).stdout
    assert text.startswith(f"{name}: ")
    assert all(option["name"] in text for option in shown["options"])


def test_options_have_type_default_and_meaning() -> None:
    shown = json.loads(headstart("drafters", "ngram", "--json").stdout)
    window = next(option for option in shown["options"] if option["name"] == "window")
    assert (window["type"], window["default"]) == ("int | None", 512)
    assert window["help"].startswith("Tokens that are counted")


def test_options_of_a_base_class_are_explained_too() -> None:
    shown = json.loads(headstart("drafters", "early-exit", "--json").stdout)
    assert next(option for option in shown["options"] if option["name"] == "draft_tokens")["help"]


@pytest.mark.parametrize("name", ["dspark", "jetspec", "dflash2"])
def test_other_names_show_what_runs_their_heads(name: str) -> None:
    assert headstart("drafters", name, "--json").stdout == headstart("drafters", "dflash", "--json").stdout
    assert name in refusal(headstart("drafters", f"{name}x"))


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_an_option_can_be_given(name: str) -> None:
    """Where an option has a default that says something, the example is that one."""
    (line,) = [line for line in headstart("drafters", name).stdout.splitlines() if "--drafter-option" in line] or [""]
    shown = json.loads(headstart("drafters", name, "--json").stdout)["options"]
    assert "=null" not in line or all(option["default"] is None for option in shown)


def test_an_unknown_drafter_is_refused_with_the_choice() -> None:
    sentence = refusal(headstart("drafters", "clairvoyant"))
    assert "'clairvoyant'" in sentence
    assert "ngram" in sentence
