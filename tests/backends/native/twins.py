"""What is written in Python and in C++ alike, so that rounds run the same in one call (decision 0063).

    python tests/backends/native/twins.py

runs the tests that hold the halves of each changed pair together, and notes in ``twins.json`` that they passed.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from headstart.backends.native.loader import load_library

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "headstart"
NATIVE = SOURCE / "backends" / "native" / "src"
NOTES = Path(__file__).with_name("twins.json")


@dataclass(frozen=True)
class Pair:
    """Two halves that do the same, and the tests that fail where they do not."""

    python: tuple[str, ...]
    """Below ``src/headstart``."""
    native: tuple[str, ...]
    """Below ``backends/native/src``."""
    tests: tuple[str, ...]
    """Below ``tests``: file, or file::test."""

    @property
    def files(self) -> list[Path]:
        return [*(SOURCE / name for name in self.python), *(NATIVE / name for name in self.native)]

    def digest(self) -> str:
        """Of the code of both halves: neither comments, docstrings nor white space."""
        key = hashlib.sha256()
        for path in self.files:
            key.update(code_of(path).encode() + b"\0")
        return key.hexdigest()[:16]


PAIRS = {
    "planner": Pair(
        (
            "drafting/planning/merged.py",
            "drafting/planning/learned_acceptance.py",
            "drafting/planning/guess_rates.py",
            "drafting/planning/round_costs.py",
        ),
        ("rounds/tree_cut.h", "rounds/guesses.h"),
        ("backends/native/test_native_stretch_batches.py::test_guesses_are_merged_and_cut_as_in_python",),
    ),
    "suffix index": Pair(
        ("drafting/model_free/suffix_automaton.py", "drafting/model_free/suffix.py"),
        ("rounds/suffix_text.h",),
        ("backends/native/test_native_suffix_text.py",),
    ),
    "tree growth": Pair(
        ("drafting/head_drafters/head_trees.py",),
        ("rounds/draft.h", "rounds/growing_tree.h"),
        ("drafting/head_drafters/test_grown_trees.py",),
    ),
    "trees of one pass": Pair(
        ("drafting/head_drafters/marginal_trees.py",),
        ("rounds/likeliest_paths.h",),
        ("drafting/head_drafters/test_grown_trees.py::test_grown_trees_are_those_of_steps",),
    ),
    "block factors": Pair(
        ("drafting/head_drafters/dflash.py", "backends/torch/block_factors.py"),
        ("rounds/block_factors.h",),
        (
            "drafting/head_drafters/test_grown_trees.py::test_grown_trees_are_those_of_steps",
            "drafting/head_drafters/test_grown_trees.py::test_a_confidence_ends_drafts_of_each_sequence_where_it_should",
        ),
    ),
    "noise ranking": Pair(
        ("drafting/head_drafters/noise_ranking.py",),
        ("rounds/noise_ranking.h",),
        ("drafting/head_drafters/test_grown_trees.py::test_with_the_noise_of_sampling_requests",),
    ),
    "text vocabulary": Pair(
        ("heads/text_vocabulary.py",),
        ("rounds/text_vocabulary.h",),
        ("drafting/head_drafters/test_grown_trees.py::test_tokens_of_the_text_that_the_head_lacks_are_guessed",),
    ),
    "draws": Pair(
        ("sampling/noise.py", "sampling/transforms.py"),
        ("rounds/sampling.h",),
        ("backends/native/test_native_sampling.py", "backends/native/test_native_stretch_sampled.py"),
    ),
    "round": Pair(
        ("engine/round.py", "engine/commit.py", "engine/stretch.py"),
        ("rounds/stretch.h", "rounds/round_states.h"),
        ("backends/native/test_native_stretch.py", "backends/native/test_native_stretch_batches.py"),
    ),
}


def code_of(path: Path) -> str:
    """A source without what only people read."""
    text = path.read_text(encoding="utf-8")
    people = r'"""[\s\S]*?"""|#[^\n]*' if path.suffix == ".py" else r"//[^\n]*|/\*[\s\S]*?\*/"
    return re.sub(r"\s+", "", re.sub(people, "", text))


def noted() -> dict[str, str]:
    """Pair -> digest of the code that its tests passed with."""
    return dict(json.loads(NOTES.read_text(encoding="utf-8"))) if NOTES.exists() else {}


def main() -> int:
    if load_library() is None:
        print("The native library is not to be had here, so that its halves cannot be tested.")
        return 1
    before = noted()
    changed = [name for name, pair in PAIRS.items() if before.get(name) != pair.digest()]
    tests = sorted({test for name in changed for test in PAIRS[name].tests})
    if tests and subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], cwd=ROOT / "tests").returncode:
        return 1
    NOTES.write_text(json.dumps({name: pair.digest() for name, pair in PAIRS.items()}, indent=2) + "\n")
    print(f"noted: {', '.join(changed) or 'nothing had changed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
