"""Record the runs that come with the lab page: the default model, answering three messages of different kinds.

    python benchmarks/record_lab_runs.py

writes ``src/headstart/server/lab/recorded/runs.json``. Record on a machine that does nothing else: the file says how
busy it was, and so does the page.
"""

from __future__ import annotations

import json
from pathlib import Path

from headstart import LLM
from headstart.server.lab_recording import record

RUNS = Path(__file__).parent.parent / "src" / "headstart" / "server" / "lab" / "recorded" / "runs.json"
MAX_TOKENS = 128
EDIT = """Repeat this code with the name total instead of s, and change nothing else:

```python
def mean(values):
    s = 0
    for value in values:
        s = s + value
    return s / len(values)
```"""
PROMPTS = {
    "Code": "Write a Python class for a bank account with deposit, withdraw and transfer methods.",
    "Edit": EDIT,
    "Chat": "Why is the sky blue?",
}


def main() -> None:
    with LLM() as llm:
        runs = [record(llm, title, prompt, MAX_TOKENS, lambda: None) for title, prompt in PROMPTS.items()]
    RUNS.parent.mkdir(exist_ok=True)
    RUNS.write_text(json.dumps({"runs": runs}, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    for run in runs:
        print(f"{run['title']}: {', '.join(map(str, run['factors']))} times as fast as plain decoding")


if __name__ == "__main__":
    main()
