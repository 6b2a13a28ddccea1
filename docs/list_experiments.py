"""Writes docs/experiments/README.md, the list of experiments by subject: python docs/list_experiments.py"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent / "experiments"
SUBJECTS = (
    "Drafters without training",
    "Trained heads",
    "The planner",
    "Batches and servers",
    "The native pass",
    "Requests that sample",
    "Beam search",
    "Models that load",
    "Accelerators",
)
BEGINNING = """# Experiments

What was tried, what was expected, what came out. Results that disappoint stay in.
Each experiment has a file, in one form:

> **What.** One sentence. **Prediction.** Made before. **Outcome.** With the figure.
> **Command.** So that anyone can try again. **So.** What follows.

A new one takes the next number and names its subject in the third line. `python docs/list_experiments.py` lists it.

Numbers follow time; later experiments may overturn earlier ones. Ratios taken in one run count; times of a shared
machine do not. Where a sample was small, the file says how small.
Until experiment [0068](0068-weights-in-four-bits.md) a command without `--precision` computed the default model in
bf16. Since then it does so where there is a matrix unit, elsewhere in int4.
"""


def listing() -> str:
    """The list, from the experiments' own titles and subjects.

    Raises:
        ValueError: an experiment has no known subject.
    """
    rows: dict[str, list[str]] = {subject: [] for subject in SUBJECTS}
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        found = re.match(r"# (.+)\n\nSubject: (.+)\.\n", path.read_text(encoding="utf-8"))
        if found is None or found[2] not in rows:
            raise ValueError(f"{path.name} must begin with a title and 'Subject: X.', X one of {', '.join(SUBJECTS)}.")
        rows[found[2]].append(f"- {path.name[:4]} [{found[1]}]({path.name})")
    return BEGINNING + "".join(f"\n## {subject}\n\n" + "\n".join(listed) + "\n" for subject, listed in rows.items())


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(listing(), encoding="utf-8")
