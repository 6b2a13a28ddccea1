"""Prompts of many tasks, for ``headstart train --prompts``, from a checkout of Self-Instruct's repository.

    git clone https://github.com/yizhongw/self-instruct
    python examples/training/prompts_from_tasks.py self-instruct --out tasks.jsonl
    headstart train eagle3 --out heads/eagle3 --prompts tasks.jsonl

The repository (Wang et al. 2022, arXiv:2212.10560; Apache 2.0) holds a part of T0's training prompts (Sanh et al. 2021,
arXiv:2110.08207) and instructions that people wrote. Of these come summaries of news, passages with a question, several
passages with one, short questions, instructions, and other tasks. CNN/DailyMail is left out: benchmarks ask for it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_TEMPLATES = Path("data/finetuning/t0_train_50k/data_per_template")
_INSTRUCTIONS = (Path("human_eval/user_oriented_instructions.jsonl"), Path("data/seed_tasks.jsonl"))
_WITH_QUESTION = (
    *("adversarial_qa_d*", "quoref_*", "ropes_*", "sciq_Direct_Question", "duorc_SelfRC_answer*"),
    *("duorc_ParaphraseRC_answer*", "wiki_hop_original_generate*", "wiki_bio_*"),
)
_OTHERS = (
    *("cosmos_qa_*", "samsum_*", "dream_*", "common_gen_*", "amazon_polarity_*", "imdb_*", "kilt*", "social_i*"),
    *("wiki_qa_Gen*", "gigaword_*", "ag_news_*", "yelp*", "app_reviews*", "rotten*", "qasc*", "wiqa*", "quarel*"),
    *("quartz*", "paws*", "glue_*"),
)
_SHORT = {
    "kilt_tasks_hotpotqa_*": r"([A-Z][^:\n]{15,160}\?)",
    "trec_*": r"([A-Z][^:\n]{12,120} ?\?)",
    "wiki_qa_*": r"[Qq]uestion: ([^\n]{12,120}\?)",
    "sciq_Direct_Question_Closed*": r"([A-Z][^:\n]{12,160}\?)",
}
"""Templates, and what a question is in them."""
_ASKED = (
    *("who is {name}?", "what is {name} known for?", "where is {name}?", "when was {name} founded?"),
    *("why is {name} important?", "who was involved with {name}?", "what happened to {name}?"),
    "what is the relationship between {name} and {other}?",
)
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}(?: [A-Z][a-z]+)*")


def prompts_of(root: Path, pattern: str) -> list[str]:
    """The prompts of all templates of a pattern."""
    paths = sorted((root / _TEMPLATES).glob(f"{pattern}.jsonl"))
    return [
        json.loads(line)["prompt"].strip()
        for path in paths
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]


def news(root: Path) -> list[str]:
    """Articles: the documents of Multi-News, and XSum's."""
    several = (re.split(r"\n+Document:\s*", prompt)[1:] for prompt in prompts_of(root, "multi_news_*"))
    single = (prompt.partition(":")[2] for prompt in prompts_of(root, "xsum_summarize_*"))
    articles = {" ".join(text.split()) for text in [*(text for each in several for text in each), *single]}
    return sorted(article for article in articles if len(article) > 400)


def cut(text: str, length: int) -> str:
    """The sentences that fit into ``length`` characters, or the words."""
    if len(text) <= length:
        return text
    end = text.rfind(". ", length // 2, length)
    return text[: end + 1] if end > 0 else text[:length].rsplit(" ", 1)[0]


def short_questions(root: Path) -> list[str]:
    found = (re.search(form, prompt) for pattern, form in _SHORT.items() for prompt in prompts_of(root, pattern))
    return sorted({match[1].replace(" ?", "?") for match in found if match})


def instructions(root: Path) -> Iterable[str]:
    for name in _INSTRUCTIONS:
        for line in (root / name).read_text(encoding="utf-8").splitlines():
            task = json.loads(line)
            given = task["instances"][0]["input"].strip()
            yield f"{task['instruction']}\n\n{given}"[:2500].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--longest", type=int, default=3600, help="characters of a passage (default: 3600)")
    parser.add_argument("--count", type=int, default=1300, help="prompts of each kind at most (default: 1300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
    arguments = parser.parse_args()
    root, longest, random = arguments.repository, arguments.longest, np.random.default_rng(arguments.seed)

    passages = {
        passage
        for prompt in prompts_of(root, "wiki_hop_original_*")
        for passage in re.findall(r"^- (.{200,1200})$", prompt, re.MULTILINE)
    }
    retrieved = []
    shuffled = random.permutation(sorted(passages)).tolist()
    for first in range(0, len(shuffled) - 3, 4):
        several = shuffled[first : first + int(random.integers(2, 5))]
        names = [name for passage in several for name in _NAME.findall(passage)]
        if len(names) > 1:
            name, other = random.choice(names, 2, replace=False)
            retrieved.append(" ".join(several) + "\n" + random.choice(_ASKED).format(name=name, other=other))
    kinds = {
        "summaries": [f"Summarize: {cut(article, int(random.integers(900, longest)))}" for article in news(root)],
        "passages": [prompt for pattern in _WITH_QUESTION for prompt in prompts_of(root, pattern)],
        "retrieved": retrieved,
        "short": short_questions(root),
        "instructions": list(instructions(root)),
        "others": [prompt for pattern in _OTHERS for prompt in prompts_of(root, pattern)],
    }
    placed = []
    for prompts in kinds.values():
        fitting = [prompt for prompt in prompts if len(prompt) <= longest + 200]
        chosen = random.permutation(len(fitting))[: arguments.count]
        # Every kind from the beginning to the end, however many there are.
        placed += [((place + random.random()) / len(chosen), fitting[index]) for place, index in enumerate(chosen)]
    with arguments.out.open("w", encoding="utf-8") as file:
        for _, prompt in sorted(placed):
            file.write(json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n")
    print(f"{arguments.out}: {len(placed)} of " + ", ".join(f"{len(all_of)} {kind}" for kind, all_of in kinds.items()))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
