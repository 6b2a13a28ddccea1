"""A method of drafting is a folder: nobody else keeps tables of methods by their names."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from headstart.drafting.registry import available_drafters, trained_kinds

SOURCE = Path(__file__).parents[2] / "src"
METHODS = "headstart/drafting/methods/"
WORDS = {"auto", "none", "pass", "copy", "random", "suffix", "rest", "lookahead", "synthetic", "self", "assistant"}
"""Names that are plain words, too, and mean other things elsewhere."""
EXCEPTIONS = {
    METHODS + "auto/members.py": "the drafters that it asks unless told otherwise",
    "headstart_lab/methods/hierarchical/drafter.py": "the drafter that it asks unless told otherwise",
    METHODS + "eagle/": "P-EAGLE's head is an EAGLE-3 head with masks",
    METHODS + "p_eagle/__init__.py": "P-EAGLE's head begins from EAGLE-3's",
    "headstart_lab/methods/medusa/": "blockwise heads are of the same module",
    "headstart/loading/roles.py": "names of file formats",
    "headstart_lab/stand_ins.py": "shapes of what nobody has trained yet",
    "headstart_lab/plan/published_rates.py": "what is published of drafters, by their names",
    "headstart/common/other_names.py": "vLLM's names of its options",
    "headstart_lab/commands/theory.py": "a model of guesses in the theory of speed",
    "headstart_lab/programs/": "programs that measure drafters by their names",
}
"""Files and folders that may name methods of other folders -> why."""


@cache
def folders() -> dict[str, str]:
    """The names of methods -> the folder of each, below ``src``."""
    found = {
        name: method.drafter.partition(":")[0].rpartition(".")[0].replace(".", "/")
        for name, method in available_drafters().items()
        if method.drafter.startswith(("headstart.drafting.methods.", "headstart_lab.methods."))
    }
    found |= {other: found[name] for name, method in available_drafters().items() for other in method.other_names}
    return {name: folder for name, folder in found.items() if name not in WORDS}


def strangers(path: str, source: str) -> set[str]:
    """Names of methods that stand as texts in a file out of their folder."""
    strange = {name for name, folder in folders().items() if not path.startswith(f"{folder}/")}
    # Most files hold no such word at all, and need not be parsed.
    if not any(name in source for name in strange):
        return set()
    return strange & {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}


def test_names_of_methods_out_of_their_folder_are_found() -> None:
    assert strangers("headstart/engine/round.py", 'KINDS = {"eagle3": 4}') == {"eagle3"}
    assert not strangers(METHODS + "eagle/drafter.py", 'KIND = "eagle3"')
    assert strangers("headstart_lab/methods/medusa/drafter.py", 'if name == "dspark": pass') == {"dspark"}


def test_names_of_methods_stand_in_their_own_folder() -> None:
    naming = {
        path
        for path, source in (
            (each.relative_to(SOURCE).as_posix(), each.read_text(encoding="utf-8")) for each in SOURCE.rglob("*.py")
        )
        if strangers(path, source)
    }
    allowed = {place: {path for path in naming if path.startswith(place)} for place in EXCEPTIONS}
    assert naming - set().union(*allowed.values()) == set()
    assert [place for place, paths in allowed.items() if not paths] == [], "these exceptions are used no longer"


def test_what_is_trained_has_a_row_in_its_methods_folder() -> None:
    assert set(trained_kinds()) <= {*available_drafters(), *folders()}
    assert all(kind.trunk in {"", *trained_kinds()} for kind in trained_kinds().values())
