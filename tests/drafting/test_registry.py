from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
from drafting_toys import ToySequence

from headstart.drafting.base import DraftBudget
from headstart.drafting.context import DraftContext, ScopedMemory
from headstart.drafting.method import FOLDERS
from headstart.drafting.options import asked_rows, parse_drafter
from headstart.drafting.registry import (
    ENTRY_POINT_GROUP,
    available_drafters,
    create_drafter,
    drafter_info,
    drafter_options,
    free_drafters,
    hosted_drafters,
)
from headstart.errors import ConfigError

CONTEXT = DraftContext(10)

PACKAGE = '''
from headstart.drafting.methods.none.drafter import NoDrafter

class Silent(NoDrafter):
    """Says nothing, elsewhere."""

    def __init__(self, context, options):
        self.vocab_size = context.vocab_size

from headstart.drafting.method import Method
METHODS = (
    Method("silent", "says nothing", "nowhere", __name__ + ":Silent", "text", from_tokens=True),
    Method("ngram", "takes a name that is taken", "nowhere", __name__ + ":Silent", "text"),
)
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a package with entry points on the path, as an installer would."""

    def install(entry_points: str, group: str = ENTRY_POINT_GROUP) -> None:
        (tmp_path / "silent_drafters.py").write_text(PACKAGE, encoding="utf-8")
        info = tmp_path / "silent_drafters-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: silent-drafters\nVersion: 1.2\nSummary: Drafters that say nothing\n",
            encoding="utf-8",
        )
        (info / "entry_points.txt").write_text(f"[{group}]\n{entry_points}\n", encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))

    yield install
    sys.modules.pop("silent_drafters", None)


def test_a_drafter_and_its_options_in_one_word() -> None:
    assert parse_drafter("ngram") == ("ngram", {})
    assert parse_drafter("eagle3:model=a/b:width=4") == ("eagle3", {"model": "a/b", "width": 4})
    assert parse_drafter('auto:drafter_options={"eagle3":{"width":4}}') == (
        "auto",
        {"drafter_options": {"eagle3": {"width": 4}}},
    )
    with pytest.raises(ConfigError, match="write it as option=value"):
        parse_drafter("ngram:max_order")


def test_every_drafter_is_listed_with_one_line_and_a_source() -> None:
    for name, info in available_drafters().items():
        assert info.name == name
        assert info.summary
        assert "\n" not in info.summary
        assert info.source


@pytest.mark.parametrize("name", available_drafters())
def test_options_are_frozen_and_have_defaults(name: str) -> None:
    options = drafter_options(name)()
    assert dataclasses.is_dataclass(options)
    for field in dataclasses.fields(options):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(options, field.name, None)


def test_listing_imports_no_drafter() -> None:
    code = (
        "import sys; from headstart.drafting.registry import available_drafters as names; names();"
        "print([info.drafter for info in names().values() if info.drafter.split(':')[0] in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_package_brings_a_folder_of_methods(install) -> None:
    install("whatever = silent_drafters", FOLDERS)
    assert drafter_info("silent").summary == "says nothing"
    assert "silent" in hosted_drafters()
    assert type(create_drafter("silent", CONTEXT)).__name__ == "Silent"
    assert available_drafters()["suffix"].drafter.startswith("headstart.")


def test_a_folder_that_cannot_be_read_is_passed_over(install) -> None:
    install("whatever = silent_drafters.nothing", FOLDERS)
    with pytest.warns(UserWarning, match=r"silent_drafters\.nothing are passed over"):
        assert "ngram" in available_drafters()


@pytest.mark.thorough
def test_who_asks_for_a_drafter_of_the_core_reads_no_other_folder() -> None:
    code = (
        "import sys; from headstart.drafting.registry import drafter_info, drafter_options, is_drafter;"
        "drafter_info('auto'), drafter_options('suffix'), is_drafter('dspark');"
        "print([name for name in sys.modules if name.startswith('headstart_')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_what_requests_may_name_unasked_needs_no_model() -> None:
    assert set(free_drafters()) == {"suffix", "ngram", "prompt-lookup", "recycling"}


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no drafter 'ngrams'.*'ngram'.*none, suffix"):
        create_drafter("ngrams", CONTEXT)


@pytest.mark.parametrize("name", ["uno", "UNO", "domino", "xpress", "lilicorr", "eagle-4"])
def test_what_others_have_and_nothing_here_runs_is_refused_by_what_it_lacks(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"drafter '{name}' would run heads of \w.* \(.*\), which is not built"
    ) as raised:
        create_drafter(name, CONTEXT)
    assert "noise tokens" in str(raised.value) or name.lower() != "uno"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_token": 3}, r"'ngram' has no option 'draft_token'; its options are draft_tokens, max_order"),
        ({"draft_tokens": "3"}, "'draft_tokens' of drafter 'ngram' is '3'; it must be an integer"),
        ({"draft_tokens": True}, "'draft_tokens' of drafter 'ngram' is True; it must be an integer"),
        ({"window": 5.5}, "'window' of drafter 'ngram' is 5.5; it must be an integer or None"),
        ({"draft_tokens": -1}, "draft_tokens is -1; it must be 1 or more"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_drafter("ngram", CONTEXT, **options)


def test_choices_and_empty_options_are_named() -> None:
    with pytest.raises(ConfigError, match="'latest' or 'leftmost'"):
        create_drafter("prompt-lookup", CONTEXT, match="best")
    with pytest.raises(ConfigError, match="'none' has no option 'x'; it has no options"):
        create_drafter("none", CONTEXT, x=1)
    with pytest.raises(ConfigError, match="must be a number"):
        create_drafter("suffix", CONTEXT, factor="2")
    assert create_drafter("suffix", CONTEXT, factor=2)


def test_what_is_no_dictionary_of_options_is_refused() -> None:
    for value in ('{"eagle3":{"width":4}', 3, [1]):
        with pytest.raises(ConfigError, match=r"'drafter_options' of drafter 'auto' is .*; it must be a dict"):
            create_drafter("auto", CONTEXT, drafter_options=value)


def test_another_package_adds_a_drafter(install) -> None:
    install("silent = silent_drafters:Silent")
    info = available_drafters()["silent"]
    assert (info.summary, info.source) == ("Drafters that say nothing", "package silent-drafters 1.2")
    assert "silent_drafters" not in sys.modules
    drafter = create_drafter("silent", CONTEXT)
    assert drafter.vocab_size == 10
    assert len(drafter.propose([ToySequence(1, [3])], [DraftBudget(4, 4)])[0]) == 0
    with pytest.raises(ConfigError, match="'silent' has no option 'loud'"):
        create_drafter("silent", CONTEXT, loud=True)


@pytest.mark.parametrize("target", ["not_installed:Silent", "silent_drafters:Loud"])
def test_a_broken_package_is_listed_but_cannot_be_built(install, target: str) -> None:
    install(f"silent = {target}")
    assert "silent" in available_drafters()
    with pytest.raises(ConfigError, match="'silent' cannot be loaded"):
        create_drafter("silent", CONTEXT)


def test_a_package_cannot_take_a_built_in_name(install) -> None:
    install("suffix = silent_drafters:Silent")
    with pytest.warns(UserWarning, match="'suffix' of silent_drafters:Silent is ignored"):
        assert available_drafters()["suffix"].source != "package silent-drafters 1.2"
    assert type(create_drafter("suffix", CONTEXT)).__module__ == "headstart.drafting.methods.suffix.drafter"


@pytest.mark.parametrize("field", ["runner", "tokenizer", "loader"])
def test_a_missing_part_of_the_context_is_named(field: str) -> None:
    with pytest.raises(ConfigError, match="load_model" if field == "loader" else field):
        getattr(CONTEXT, f"require_{field}")()


def test_scopes_used_last_are_kept() -> None:
    memory: ScopedMemory[list[int]] = ScopedMemory(list, max_scopes=2)
    memory["a"].append(1)
    memory["b"].append(2)
    assert memory["a"] == [1]
    memory["c"].append(3)
    assert memory["a"] == [1]
    assert memory["b"] == []


def test_the_rows_that_options_ask_for_are_those_of_any_drafter_in_them() -> None:
    _, options = parse_drafter('auto:drafter_options={"medusa":{"tree_nodes":63},"ngram":{"draft_tokens":4}}')
    assert asked_rows(options) == 63
    assert asked_rows({"draft_tokens": 40, "tree_nodes": 12}) == 40
    assert asked_rows({"width": 8}) == 0


def test_the_servers_page_names_those_that_requests_may_choose_by_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    said = re.search(r"one of `--also` \(by default (.*?) and the heads", page, flags=re.S)
    assert said is not None
    assert set(re.findall(r"`([\w-]+)`", said[1])) == set(free_drafters())
