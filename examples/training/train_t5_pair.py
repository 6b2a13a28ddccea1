"""A small T5 and a smaller one under it, trained from scratch on the same text: a pair for ``headstart paper``.

    python examples/training/train_t5_pair.py pairs.jsonl --out t5-pair --minutes 30
    headstart paper --model t5-pair/target --drafts draft-model:model=t5-pair/draft --prompts t5-pair/prompts.jsonl

A .jsonl file holds what is read and what is said to it, one object a line: ``prompt`` or ``question`` with ``answer``,
``completion`` or ``response``, or ``messages`` of a user and an assistant. Of any other file the paragraphs are taken,
and the task is to put a text right: it is read with slips in it, and said without them. Such a
task is learnt quickly, and most of its output is easy to guess. One file of each kind makes two tasks of one model,
which are told apart by a first word, as T5 does it.

The first form wants many pairs; a few thousand lines are learnt by heart. Both models read and say the tokens of one
tokenizer, which is trained on the same files. A twentieth of the examples, at most 64, is kept back as prompts.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pair_training import (
    END,
    IGNORED,
    MOST_PROMPTS,
    PAD,
    Shape,
    arguments,
    batched,
    heads_of,
    padded,
    paragraphs_of,
    shape,
    split_off,
    train_pair,
    train_tokenizer,
    write_prompts,
)
from tokenizers import Tokenizer
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

ASKED, SAID = ("prompt", "question"), ("answer", "completion", "response")


@dataclass(frozen=True)
class Example:
    task: str
    read: str
    said: str


def read_examples(path: Path, rng: random.Random, characters: int) -> list[Example]:
    """The examples of one task.

    Raises:
        ValueError: there are too few, or a line is not in one of the forms.
    """
    if path.suffix == ".jsonl":
        lines = path.read_text(encoding="utf-8").splitlines()
        examples = [_of_line(line, number) for number, line in enumerate(lines, 1) if line]
    else:
        sentences = [part for paragraph in paragraphs_of(path) for part in _pieces(paragraph, characters)]
        examples = [Example("editing", with_slips(part, rng), part) for part in sentences]
    if len(examples) < 2:
        raise ValueError(f"{path} has {len(examples)} examples; give a longer text")
    rng.shuffle(examples)
    return examples


def _of_line(line: str, number: int) -> Example:
    fields = json.loads(line)
    if "messages" in fields:
        by_role = {message["role"]: message["content"] for message in reversed(fields["messages"])}
        asked, said = by_role.get("user"), by_role.get("assistant")
    else:
        asked = next((fields[name] for name in ASKED if name in fields), None)
        said = next((fields[name] for name in SAID if name in fields), None)
    if not isinstance(asked, str) or not isinstance(said, str):
        raise ValueError(f"line {number} has no {' or '.join(ASKED)} with {' or '.join(SAID)}")
    return Example("answers", asked, said)


def _pieces(paragraph: str, longest: int) -> Iterator[str]:
    """Whole words of a paragraph, so many characters at most; scraps are left out."""
    piece = ""
    for word in paragraph.split(" "):
        if len(piece) + len(word) >= longest:
            yield piece
            piece = ""
        piece = f"{piece} {word}" if piece else word
    if len(piece) > 20:
        yield piece


def with_slips(text: str, rng: random.Random) -> str:
    """The text with about every tenth word misspelt, doubled, missing or exchanged with the next."""
    words = text.split(" ")
    place, written = 0, []
    while place < len(words):
        word, slip = words[place], rng.random()
        if slip < 0.04 and len(word) > 3:
            at = rng.randrange(1, len(word) - 1)
            written.append(word[:at] + word[at + 1] + word[at] + word[at + 2 :])
        elif slip < 0.06:
            written += [word, word]
        elif slip < 0.08 and place + 1 < len(words):
            written += [words[place + 1], word]
            place += 1
        elif slip >= 0.1 or len(words) < 4:
            written.append(word)
        place += 1
    return " ".join(written)


def make_model(tokenizer: Tokenizer, sizes: Shape) -> T5ForConditionalGeneration:
    """A T5 v1.1 with so many layers in each half; its head is its embedding."""
    width, layers = sizes
    config = T5Config(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=width,
        d_kv=width // heads_of(width),
        num_heads=heads_of(width),
        d_ff=width * 5 // 2,
        num_layers=layers,
        num_decoder_layers=layers,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        pad_token_id=tokenizer.token_to_id(PAD),
        eos_token_id=tokenizer.token_to_id(END),
        decoder_start_token_id=tokenizer.token_to_id(PAD),
    )
    return T5ForConditionalGeneration(config)


@dataclass(frozen=True)
class Pair:
    """An example in tokens; as long as both halves together."""

    read: list[int]
    said: list[int]

    def __len__(self) -> int:
        return len(self.read) + len(self.said)


def batches_of(pairs: list[Pair], size: int, rng: random.Random) -> Iterator[dict[str, Tensor]]:
    for batch in batched(pairs, size, rng):
        read, said = padded([pair.read for pair in batch], 0), padded([pair.said for pair in batch], IGNORED)
        yield {"input_ids": read, "attention_mask": (read != 0).long(), "labels": said}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="file", help="examples as .jsonl, a text, or one of each"
    )
    parser.add_argument("--target", type=shape, default=(384, 6), help="width,layers (384,6: some 20 million weights)")
    parser.add_argument("--draft", type=shape, default=(128, 2), help="likewise (128,2: some 1.5 million)")
    parser.add_argument("--characters", type=int, default=240, help="of a piece of text at most")
    parser.add_argument("--length", type=int, default=192, help="longest text read or said, in tokens")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    try:
        tasks = {found[0].task: found for found in (read_examples(path, rng, args.characters) for path in args.files)}
    except (OSError, ValueError) as error:
        sys.exit(f"Error: {error}.")
    if len(tasks) < len(args.files):
        sys.exit("Error: two files hold the same task; join them.")
    if len(tasks) > 1:
        tasks = {
            task: [Example(task, f"{task}: {each.read}", each.said) for each in examples]
            for task, examples in tasks.items()
        }
    parted = [split_off(examples, MOST_PROMPTS // len(tasks)) for examples in tasks.values()]
    examples = [each for _, rest in parted for each in rest]
    tokenizer = train_tokenizer(
        (text for each in examples for text in (each.read, each.said)), args.vocabulary, f"$A {END}"
    )
    encoded = [Pair(tokenizer.encode(each.read).ids, tokenizer.encode(each.said).ids) for each in examples]
    pairs = [pair for pair in encoded if max(len(pair.read), len(pair.said)) <= args.length]
    if not pairs:
        sys.exit(f"Error: no example has {args.length} tokens or fewer; raise --length.")
    print(f"{len(pairs)} examples of {len(encoded)}, {tokenizer.get_vocab_size()} tokens in the vocabulary")
    train_pair(make_model, lambda order: batches_of(pairs, args.batch, order), tokenizer, args)
    write_prompts(args.out / "prompts.jsonl", [(each.task, each.read) for kept, _ in parted for each in kept])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
