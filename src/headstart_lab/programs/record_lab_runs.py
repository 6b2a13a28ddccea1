"""Record the runs that come with the lab page: the default model, answering four messages of different kinds.

    python -m headstart_lab.programs.record_lab_runs [FILE.json]

writes ``src/headstart_lab/page/static/recorded/runs.json``, or the file that is named. Record on a machine that does
nothing else: the file says how busy it was, and so does the page.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from headstart import LLM
from headstart_lab.page.recording import record

RUNS = Path(__file__).parents[2] / "headstart" / "server" / "lab" / "recorded" / "runs.json"
MAX_TOKENS = 128
RENAME = """Rewrite this function and rename counts to totals:

```python
def count_words(path):
    counts = {}
    with open(path) as lines:
        for line in lines:
            for word in line.split():
                counts[word] = counts.get(word, 0) + 1
    return counts
```"""
SPELLING = """Correct the spelling of this text and repeat it:

The quick brown fox jumpd over the lazy dog. The dog was not amused, and barkd at the fox until the fox ran away into \
the forest."""
PROMPTS = {
    "Code": "Write a Python class for a bank account with deposit, withdraw and transfer methods.",
    "Edit code": RENAME,
    "Edit text": SPELLING,
    "Chat": "Why is the sky blue?",
}


def main(out: Path = RUNS) -> None:
    with LLM() as llm:
        runs = [record(llm, title, prompt, MAX_TOKENS, lambda: None) for title, prompt in PROMPTS.items()]
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"runs": runs}, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    for run in runs:
        print(f"{run['title']}: {', '.join(map(str, run['factors']))} times as fast as plain decoding")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
