"""Headstart beside its peers: the same prompts, the same model file, as many tokens, in one sitting.

    python -m headstart_lab.programs.peers.run --per-group 2 --precision bf16,int8-fast --drafters ngram,suffix \\
        --out results
    python -m headstart_lab.programs.peers.run --per-group 1 --max-tokens 48 --peers openvino,ctranslate2
    python -m headstart_lab.programs.peers.run --input-tokens 1024,4096,8000 --max-tokens 64 --drafters auto

Every peer runs in an environment of its own (``environments.py``, made by the first run if need be), as a process that
waits for requests. Each prompt is decoded by all contenders one right after the other. Headstart's plain decoding in
the first precision says how many tokens an answer has; everybody decodes as many, whatever it says. All are greedy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import torch

from headstart.errors import HeadstartError
from headstart.loading.model import load_model
from headstart.models.aliases import DEFAULT_MODEL
from headstart_lab.bench.lengths import of_lengths, parse_lengths
from headstart_lab.bench.prompts import BenchPrompt, choose, groups_of, read_prompts
from headstart_lab.programs.peers.environments import PEERS
from headstart_lab.programs.peers.peers_report import report
from headstart_lab.programs.peers.sitting import sit
from headstart_lab.provenance import finished, model_record, provenance

MAX_CONTEXT = 2048
"""Tokens of a prompt and its answer that there is room for, unless longer prompts are asked for."""


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    where = provenance()
    models = [load_model(options.model, precision) for precision in options.precision]
    texts = read_prompts(options.prompts)
    if options.input_tokens:
        prompts = of_lengths(models[0], texts, options.input_tokens, options.per_group or 1, options.max_tokens)
    else:
        prompts = in_turns(choose(texts, options.per_group))
    sitting = sit(
        models,
        options.drafters,
        [PEERS[name] for name in options.peers],
        prompts,
        max_tokens=options.max_tokens,
        repeats=options.repeats,
        threads=options.threads,
        max_context=max([MAX_CONTEXT, *(length + options.max_tokens for length in options.input_tokens)]),
    )
    if not sitting.runs:
        sys.exit("Error: nothing was measured.")
    record = {
        "provenance": finished(where),
        "model": model_record(models[0]),
        "versions": sitting.versions,
        "settings": {
            "prompts": "package" if options.prompts is None else options.prompts.name,
            "input_tokens": options.input_tokens,
            "prompt_ids": [prompt.id for prompt in prompts],
            "backends": [model.backend.name for model in models],
            "max_tokens": options.max_tokens,
            "repeats": options.repeats,
            "threads": options.threads,
            "batch_size": 1,
        },
    }
    report(sitting, record, options.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as for headstart; a GGUF file serves all peers")
    parser.add_argument("--precision", default="auto", type=names, help="of Headstart; several with commas")
    parser.add_argument("--peers", default=",".join(PEERS), type=names)
    parser.add_argument("--drafters", default="ngram", help="Headstart's, beside its plain decoding")
    parser.add_argument("--prompts", type=Path, help="JSONL in Spec-Bench's form; first turns are used")
    parser.add_argument("--per-group", type=int)
    parser.add_argument(
        "--input-tokens",
        type=parse_lengths,
        default=[],
        help="lengths of prompts made of the prompts' texts, --per-group (1) of each",
    )
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="directory for peers.json and peers.html")
    options = parser.parse_args()
    unknown = set(options.peers) - set(PEERS)
    if unknown:
        parser.error(f"there is no peer {min(unknown)!r}; choose from {', '.join(PEERS)}")
    return options


def in_turns(prompts: Sequence[BenchPrompt]) -> list[BenchPrompt]:
    """A prompt of each group, then another of each: a sitting that ends early has seen all groups alike."""
    members = {group: [prompt for prompt in prompts if prompt.group == group] for group in groups_of(prompts)}
    return [prompt for turn in zip_longest(*members.values()) for prompt in turn if prompt is not None]


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    try:
        main()
    except HeadstartError as error:
        sys.exit(f"Error: {error}")
