"""What the sources cite is in the repository, so that a reader who follows a comment arrives somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".h", ".cpp", ".js", ".css", ".html"}
SOURCES = sorted(
    path
    for folder in ("src", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in SUFFIXES
)
ELSEWHERE = {"docs/gguf.md"}
"""Cited as another project's."""
EXPERIMENTS = {
    (path.name, number)
    for path in (ROOT / "docs" / "experiments").glob("*.md")
    for number in re.findall(r"\*\*(\d{4})\*\*", path.read_text(encoding="utf-8"))
}
"""Pages and the numbers of their entries."""
DECISIONS = {path.name[:4] for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}


def headings(document: str) -> set[str]:
    """Numbers of a document's numbered sections."""
    return set(re.findall(r"^## (\d+)\.", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE))


def lost_citations(text: str) -> list[str]:
    """Citations in a source that lead nowhere."""
    words = re.sub(r"\s+(?:#|//|\*)?\s*", " ", text)
    lost = [name for name in re.findall(r"\bdocs/[\w/-]+\.(?:md|json)\b", words) if not _is_there(name)]
    for document, numbers in re.findall(r"\b(docs/[\w/-]+\.md) (\d+(?:, \d+)*)", words):
        known = headings(document) if (ROOT / document).exists() else set()
        lost += [f"{document} {number}" for number in numbers.split(", ") if number not in known]
    decisions = re.findall(r"\b(?:docs/decisions/|[Dd]ecision )(\d{4})\b", words)
    lost += [f"decision {number}" for number in decisions if number not in DECISIONS]
    experiments = re.findall(r"\bdocs/experiments/([\w-]+\.md), (\d{4})\b", words)
    lost += [f"experiment {number}" for page, number in experiments if (page, number) not in EXPERIMENTS]
    lost += re.findall(r"\bmethods-\w+|\bDESIGN\b(?: section \d+)?|\bseeds? 00\d|\bsota-\d+", words)
    return lost


def _is_there(name: str) -> bool:
    return name in ELSEWHERE or (ROOT / name).exists()


@pytest.mark.thorough
def test_citations_lead_somewhere() -> None:
    lost = {path: found for path in SOURCES if (found := lost_citations(path.read_text(encoding="utf-8")))}
    assert lost == {}


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("exact (docs/exactness.md 5, 6), see decision 0031 and docs/decisions/0033", []),
        ("(docs/exactness.md 5,\n    # 77)", ["docs/exactness.md 77"]),
        ("see docs/nothing.md", ["docs/nothing.md"]),
        ("see docs/decisions/9999", ["decision 9999"]),
        ("see docs/experiments/training.md, 0027 and docs/experiments/heads.md, 0027", ["experiment 0027"]),
        ("as Decision 9998 says", ["decision 9998"]),
        ("(methods-exact A5), DESIGN section 4, seed 001", ["methods-exact", "DESIGN section 4", "seed 001"]),
    ],
)
def test_a_citation_that_leads_nowhere_is_found(text: str, lost: list[str]) -> None:
    assert lost_citations(text) == lost
