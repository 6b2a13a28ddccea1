"""Writes the tables of docs/paper.md and their pictures into docs/images/, from benchmarks/results:
python docs/draw_paper.py"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from headstart_charts.page import Table
from headstart_lab.paper.paper_report import from_json, table_2, table_3, table_4
from headstart_lab.paper.pictures import lines_svg, timeline_svg

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
PAGE, IMAGES = DOCS / "paper.md", DOCS / "images"

PAIRS = {"t5": "2026-11-26-paper-t5", "gpt": "2026-11-26-paper-gpt"}
"""Name of a pair -> the newest file of ``headstart paper`` on it."""
TARGETS = {"t5": "T5", "gpt": "GPT-like"}
END = "<!-- end -->"


def markdown(table: Table) -> str:
    """A table with its title above it."""
    sides = ("---" if left else "--:" for left in table.left)
    lines = [f"**{table.title}**", "", f"| {' | '.join(table.columns)} |", f"|{'|'.join(sides)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in table.texts())])


def tables(pair: str) -> str:
    """The tables of a pair in Markdown: speeds of all drafts, laws and costs at the longest draft length."""
    rows, _, _ = from_json(json.loads((RESULTS / f"{PAIRS[pair]}.json").read_text(encoding="utf-8")))
    named = [replace(row, draft=draft_name(row.draft)) for row in rows]
    target = TARGETS[pair]
    longest = [row for row in named if row.gamma == max(each.gamma for each in named)]
    return "\n\n".join(map(markdown, (table_2(named, target), table_3(longest, target), table_4(longest))))


def draft_name(draft: str) -> str:
    """Without the folder that it lay in."""
    return re.sub(r":model=[^:, ]*", "", draft)


def pictures(pair: str) -> dict[str, str]:
    """File name -> SVG."""
    _, runs, lines = from_json(json.loads((RESULTS / f"{PAIRS[pair]}.json").read_text(encoding="utf-8")))
    named = [replace(run, label=draft_name(run.label)) for run in runs]
    return {
        f"paper-{pair}-figure5.svg": timeline_svg(named) + "\n",
        f"paper-{pair}-figure1.svg": lines_svg(lines) + "\n",
    }


def page(text: str) -> str:
    """The page ``text`` with each pair's tables between its marks.

    Raises:
        ValueError: a pair has no marks.
    """
    for pair in PAIRS:
        begin = f"<!-- {pair}: made by draw_paper.py -->\n"
        if begin not in text:
            raise ValueError(f"paper.md must hold the line {begin.strip()!r}, and {END!r} after the tables.")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{tables(pair)}\n\n{END}{rest.partition(END)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for each in PAIRS:
        for name, svg in pictures(each).items():
            (IMAGES / name).write_text(svg, encoding="utf-8")
