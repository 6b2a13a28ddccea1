"""A small T5 and a smaller one under it, trained from scratch on the same text: a pair for ``headstart paper``.

    python examples/training/train_t5_pair.py pairs.jsonl --out t5-pair --minutes 30
    headstart paper --model t5-pair/target --drafts draft-model:model=t5-pair/draft --prompts t5-pair/prompts.jsonl

A .jsonl file holds what is read and what is said to it, one object a line: ``prompt`` or ``question`` with ``answer``,
``completion`` or ``response``, or ``messages`` of a user and an assistant. Of any other file the paragraphs are taken,
and the task is to put a text right: it is read with slips in it, and said without them. Such a
task is learnt quickly, and most of its output is easy to guess.

The first form wants many pairs; a few thousand lines are learnt by heart. Both models read and say the tokens of one
tokenizer, which is trained on the same file. A twentieth of the examples, at most 64, is kept back as prompts.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
ASKED, SAID = ("prompt", "question"), ("answer", "completion", "response")
MOST_PROMPTS = 64
WARM_UP = 0.05
IGNORED = -100
"""Label that the loss leaves out, in transformers."""


@dataclass(frozen=True)
class Example:
    read: str
    said: str


def read_examples(path: Path, rng: random.Random) -> tuple[str, list[Example]]:
    """What the task is called, and its examples.

    Raises:
        ValueError: there are too few, or a line is not in one of the forms.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        task, examples = "answers", [_of_line(line, number) for number, line in enumerate(text.splitlines(), 1) if line]
    else:
        paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
        sentences = [part for paragraph in paragraphs for part in _pieces(paragraph)]
        task, examples = "editing", [Example(with_slips(part, rng), part) for part in sentences]
    if len(examples) < 2:
        raise ValueError(f"{path} has {len(examples)} examples; give a longer text")
    rng.shuffle(examples)
    return task, examples


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
    return Example(asked, said)


def _pieces(paragraph: str, longest: int = 240) -> Iterator[str]:
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


def train_tokenizer(examples: list[Example], size: int) -> Tokenizer:
    """Byte-level BPE; an end token behind every text, as T5 has it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, END, UNKNOWN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for each in examples for text in (each.read, each.said)), trainer)
    end = (END, tokenizer.token_to_id(END))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[end])
    return tokenizer


def make_model(tokenizer: Tokenizer, width: int, layers: int) -> T5ForConditionalGeneration:
    """A T5 v1.1 with so many layers in each half; its head is its embedding."""
    heads = max(1, width // (64 if width >= 256 else 32))
    config = T5Config(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=width,
        d_kv=width // heads,
        num_heads=heads,
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


def train(
    model: T5ForConditionalGeneration, pairs: list[tuple[list[int], list[int]]], args: argparse.Namespace, name: str
) -> float:
    """AdamW with a warm-up and a cosine, over batches of about equally long pairs; the mean loss at its end."""
    rng = random.Random(args.seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.01)
    began, shown, losses = time.monotonic(), 0.0, list[float]()
    model.to(args.device).train()
    for step, batch in zip(range(args.steps), _batches(pairs, args.batch, rng), strict=False):
        passed = time.monotonic() - began
        done = max(step / args.steps, passed / (60 * args.minutes) if args.minutes else 0.0)
        if done >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = args.rate * min((step + 1) / (WARM_UP * args.steps), 0.5 * (1 + math.cos(math.pi * done)))
        read, said = (_padded([pair[half] for pair in batch], fill) for half, fill in ((0, 0), (1, IGNORED)))
        read, said = read.to(args.device), said.to(args.device)
        loss = model(input_ids=read, attention_mask=(read != 0).long(), labels=said).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses = [*losses[-49:], float(loss.detach())]
        if passed > shown + 10:
            shown = passed
            said_so_far = f"step {step + 1} of {args.steps}, {passed:.0f} s, loss {fmean(losses):.3f}"
            print(f"{name}: {said_so_far}", file=sys.stderr)
    return fmean(losses) if losses else math.nan


def _batches(
    pairs: list[tuple[list[int], list[int]]], size: int, rng: random.Random
) -> Iterator[list[tuple[list[int], list[int]]]]:
    while True:
        order = list(pairs)
        rng.shuffle(order)
        # Sorted within a stretch of the shuffled text, so that a batch has little padding.
        for start in range(0, len(order), 16 * size):
            stretch = sorted(order[start : start + 16 * size], key=lambda pair: len(pair[0]) + len(pair[1]))
            batches = [stretch[place : place + size] for place in range(0, len(stretch), size)]
            rng.shuffle(batches)
            yield from batches


def _padded(rows: list[list[int]], fill: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])


def shape(text: str) -> tuple[int, int]:
    """``width,layers``."""
    width, layers = map(int, text.split(","))
    if width % 32 or width < 32 or layers < 1:
        raise argparse.ArgumentTypeError(f"{text} is no shape: give a width that 32 divides, and layers")
    return width, layers


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="examples as .jsonl, or a text")
    parser.add_argument("--out", type=Path, required=True, help="folder for target/, draft/ and prompts.jsonl")
    parser.add_argument("--target", type=shape, default=(384, 6), help="width,layers (384,6: some 20 million weights)")
    parser.add_argument("--draft", type=shape, default=(128, 2), help="likewise (128,2: some 1.5 million)")
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokens at most")
    parser.add_argument("--length", type=int, default=192, help="longest text read or said, in tokens")
    parser.add_argument("--steps", type=int, default=20_000, help="of each model")
    parser.add_argument("--minutes", type=float, help="of each model at most")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse()
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    try:
        task, examples = read_examples(args.file, rng)
    except (OSError, ValueError) as error:
        sys.exit(f"Error: {error}.")
    held_back = examples[: max(1, min(MOST_PROMPTS, len(examples) // 20))]
    examples = examples[len(held_back) :]
    tokenizer = train_tokenizer(examples, args.vocabulary)
    encoded = [(tokenizer.encode(each.read).ids, tokenizer.encode(each.said).ids) for each in examples]
    pairs = [pair for pair in encoded if max(map(len, pair)) <= args.length]
    if not pairs:
        sys.exit(f"Error: no example has {args.length} tokens or fewer; raise --length.")
    print(f"{len(pairs)} examples of {len(encoded)}, {tokenizer.get_vocab_size()} tokens in the vocabulary")
    for name, (width, layers) in (("target", args.target), ("draft", args.draft)):
        model = make_model(tokenizer, width, layers)
        loss = train(model, pairs, args, name)
        model.to("cpu").save_pretrained(args.out / name)
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN)
        fast.save_pretrained(args.out / name)
        print(f"{args.out / name}: {model.num_parameters() / 1e6:.1f} million weights, loss {loss:.3f}")
    with (args.out / "prompts.jsonl").open("w", encoding="utf-8") as file:
        for number, each in enumerate(held_back):
            file.write(json.dumps({"id": number, "category": task, "turns": [each.read]}, ensure_ascii=False) + "\n")
    print(f"{args.out / 'prompts.jsonl'}: {len(held_back)} prompts that neither has seen")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
