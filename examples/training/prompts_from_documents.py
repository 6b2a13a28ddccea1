"""Prompts on documents of your own, for ``headstart train --prompts``: translations, summaries, questions with and
without the text before them.

    python examples/training/prompts_from_documents.py --english articles.txt --german zitate.txt --out documents.jsonl
    headstart train eagle3 --out heads/eagle3 --prompts documents.jsonl

A drafter guesses best what it has seen its target say, and a target that asks itself seldom asks for a translation.
Texts are plain text (a blank line or a line with % alone between passages), HTML, or a dump of a wiki (XML); a
name that ends in .bz2 or .gz is unpacked.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import html
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_OPENERS = {".bz2": bz2.open, ".gz": gzip.open}
_QUESTIONS = (
    "What does the text say about {name}?",
    "Who or what is {name}?",
    "Describe {name} in a few sentences.",
    "What happened, and when?",
    "Why does {name} matter here?",
    "What are the main points?",
)
_SHORT = (
    "who is {name}?",
    "what is {name}?",
    "where is {name}?",
    "when did {name} begin?",
    "What is {name} known for?",
    "where does the name {name} come from",
)
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}(?: [A-Z][a-z]+)*")


def passages(path: Path, longest: int) -> Iterator[str]:
    """Passages of a file, neighbours joined up to ``longest`` characters."""
    with _OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8", errors="ignore") as file:
        text = file.read()
    if "<mediawiki" in text[:200]:
        text = "\n\n".join(_wiki(page) for page in re.findall(r"<text[^>]*>(.*?)</text>", text, re.DOTALL))
    elif "<html" in text[:500].lower():
        text = re.sub(r"<(script|style|pre).*?</\1>", "", text, flags=re.DOTALL)
        text = html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"</?(p|h\d|li|div)\b[^>]*>", "\n\n", text)))
    elif path.suffix == ".cor":  # one document a line
        text = text.replace("\n", "\n\n")
    joined = ""
    for part in re.split(r"\n\s*(?:%\s*)?\n|\n%\n", text):
        part = " ".join(re.sub(r"\s-- .*", "", part, flags=re.DOTALL).split())
        if len(part) < 30 or not any(mark in part for mark in ".!?"):
            continue
        if joined and len(joined) + len(part) > longest:
            yield joined[:longest].rsplit(" ", 1)[0]
            joined = ""
        joined = f"{joined} {part}".strip()
    if joined:
        yield joined[:longest]


def _wiki(page: str) -> str:
    page = html.unescape(page)
    for pattern in (r"\{\{[^{}]*\}\}", r"\{\{[^{}]*\}\}", r"\{\|.*?\|\}", r"<ref[^>]*/>", r"<ref.*?</ref>", r"<[^>]+>"):
        page = re.sub(pattern, "", page, flags=re.DOTALL)
    page = re.sub(r"\[\[(?:[^\]|]*\|)?([^\]]*)\]\]", r"\1", page)
    lines = (line for line in page.splitlines() if line[:1] not in ("|", "*", "#", "=", "{", "!", ":", ";"))
    return "\n".join(lines).replace("'''", "").replace("''", "")


def sentences(passage: str) -> Iterator[str]:
    """Sentences of a length that one would ask to have translated."""
    for sentence in re.split(r"(?<=[.!?]) ", passage):
        if 40 <= len(sentence) <= 240:
            yield sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--english", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--german", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--count", type=int, default=2000, help="prompts at most (default: 2000)")
    parser.add_argument("--longest", type=int, default=2400, help="characters of a passage (default: 2400)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)

    english = [passage for path in arguments.english for passage in passages(path, arguments.longest)]
    german = [line for path in arguments.german for passage in passages(path, 1 << 30) for line in sentences(passage)]
    names = sorted({name for passage in english for name in _NAME.findall(passage)})
    asked = {
        "summarize": [f"Summarize: {passage}" for passage in english],
        "documents": [
            f"{passage}\n{random.choice(_QUESTIONS).format(name=random.choice(_NAME.findall(passage) or ['it']))}"
            for passage in english
        ],
        "translate": [f"Translate German to English: {sentence}" for sentence in german],
        "short": [random.choice(_SHORT).format(name=name) for name in names],
    }
    kinds = [prompts for prompts in asked.values() if prompts]
    for prompts in kinds:
        random.shuffle(prompts)
    turns = (prompts[i] for i in range(max(map(len, kinds), default=0)) for prompts in kinds if i < len(prompts))
    with arguments.out.open("w", encoding="utf-8") as file:
        for _, prompt in zip(range(arguments.count), turns, strict=False):
            file.write(json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n")
    print(f"{arguments.out}: " + ", ".join(f"{len(prompts)} {kind}" for kind, prompts in asked.items()))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
