"""Records stay small: results are summaries, pages short, words few."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "docs" / "experiments").glob("*.md"))
DOCUMENTS = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.split()
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
RESULTS = sorted((ROOT / "benchmarks" / "results").iterdir())


def words(path: Path) -> int:
    """As ``wc -w`` counts them."""
    return len(path.read_text(encoding="utf-8").split())


def test_no_file_is_a_link() -> None:
    """One that was moved led nowhere; nor does a wheel carry links."""
    assert [name for name in TRACKED if (ROOT / name).is_symlink()] == []


def test_a_wheel_carries_every_file_of_the_packages() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    data = settings["tool"]["setuptools"]["package-data"]
    carried = {path for name, globs in data.items() for each in globs for path in (ROOT / "src" / name).glob(each)}
    others = [name for name in TRACKED if name.startswith("src/") and not name.endswith(".py")]
    assert others
    assert [name for name in others if ROOT / name not in carried] == []


def test_results_are_small_and_hold_no_single_runs() -> None:
    assert sum(path.stat().st_size for path in RESULTS) <= 1_500_000
    for path in RESULTS:
        assert not {"runs", "forecasts"} & set(json.loads(path.read_text(encoding="utf-8")))


def test_experiments_are_few_short_pages_of_numbered_entries() -> None:
    assert len(EXPERIMENTS) <= 10
    assert all(words(path) <= 600 for path in EXPERIMENTS)
    numbers = [each for path in EXPERIMENTS for each in re.findall(r"\*\*(\d{4})\*\*", path.read_text("utf-8"))]
    assert len(numbers) == len(set(numbers)) >= 125
    listed = (ROOT / "docs" / "experiments" / "README.md").read_text(encoding="utf-8")
    assert all(f"({path.name})" in listed for path in EXPERIMENTS if path.name != "README.md")


def test_decisions_are_half_a_page() -> None:
    assert [path.name for path in DECISIONS if words(path) > 200] == []
    assert sum(map(words, DECISIONS)) <= 14_000


def test_documents_are_no_longer_than_a_reader_has_time_for() -> None:
    counted = {name: words(ROOT / name) for name in DOCUMENTS if (ROOT / name).exists()}
    assert sum(counted.values()) <= 62_300
    assert sum(count for name, count in counted.items() if re.fullmatch(r"docs/[^/]+\.md", name)) <= 35_000
    assert counted["CHANGELOG.md"] <= 1_000
    assert counted["heads/README.md"] <= 420


def test_the_glossary_is_short() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## Words\n")[2].partition("\n## ")[0]
    assert 5 < len(re.findall(r"^\| (?!word |-)", section, re.MULTILINE)) <= 25
