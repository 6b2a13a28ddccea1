"""What the recipes for a target and a smaller draft under it share: one tokenizer, one way to train, two folders."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

try:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast
except ModuleNotFoundError:
    sys.exit("Error: this recipe trains models of transformers; pip install 'headstart[transformers]'")

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
MOST_PROMPTS = 64
WARM_UP = 0.05
IGNORED = -100
"""Label that the loss leaves out, in transformers."""

Shape = tuple[int, int]
"""Width and layers."""


def paragraphs_of(path: Path) -> list[str]:
    """What stands between blank lines, on one line each."""
    parts = (" ".join(part.split()) for part in path.read_text(encoding="utf-8").split("\n\n"))
    return [part for part in parts if part]


def train_tokenizer(texts: Iterable[str], size: int, around: str) -> Tokenizer:
    """Byte-level BPE. ``around`` says where the end token stands: "$A </s>" or "</s> $A"."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, END, UNKNOWN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    end = (END, tokenizer.token_to_id(END))
    tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=[end])
    return tokenizer


def heads_of(width: int) -> int:
    """Heads of 64 where they fit, else of 32."""
    return max(1, width // (64 if width >= 256 and width % 64 == 0 else 32))


def train(
    model: PreTrainedModel, batches: Iterable[dict[str, Tensor]], args: argparse.Namespace, minutes: float | None
) -> tuple[float, int, float]:
    """AdamW with a warm-up and a cosine, until the steps or the minutes are over.

    Returns:
        The mean loss of the last 50 steps, the steps, and the minutes that they took.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.01, betas=(0.9, 0.98))
    began, shown, losses, steps = time.monotonic(), 0.0, list[float](), 0
    model.to(args.device).train()
    for step, batch in zip(range(args.steps), batches, strict=False):
        passed = time.monotonic() - began
        done = max(step / args.steps, passed / (60 * minutes) if minutes else 0.0)
        if done >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = args.rate * min(done / WARM_UP + 0.01, 0.5 * (1 + math.cos(math.pi * done)))
        on_device = {name: each.to(args.device) for name, each in batch.items()}
        with torch.autocast(args.device.partition(":")[0], torch.bfloat16, enabled=args.bf16):
            loss = model(**on_device).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses, steps = [*losses[-49:], float(loss.detach())], step + 1
        if passed > shown + 10:
            shown = passed
            print(f"step {steps} of {args.steps}, {passed:.0f} s, loss {fmean(losses):.3f}", file=sys.stderr)
    return (fmean(losses) if losses else math.nan), steps, (time.monotonic() - began) / 60


def train_pair(
    make: Callable[[Tokenizer, Shape], PreTrainedModel],
    batches: Callable[[random.Random], Iterator[dict[str, Tensor]]],
    tokenizer: Tokenizer,
    args: argparse.Namespace,
) -> None:
    """Train ``target`` and ``draft`` on the same batches, and write them below ``args.out``."""
    minutes = {"target": args.minutes, "draft": args.draft_minutes or args.minutes}
    for name in args.only or ("target", "draft"):
        torch.manual_seed(args.seed)
        model = make(tokenizer, getattr(args, name))
        print(f"{name}: {model.num_parameters() / 1e6:.2f} million weights", file=sys.stderr)
        loss, steps, taken = train(model, batches(random.Random(args.seed)), args, minutes[name])
        model.to("cpu").save_pretrained(args.out / name)
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN)
        fast.save_pretrained(args.out / name)
        size = f"{model.num_parameters() / 1e6:.2f} million weights"
        print(f"{args.out / name}: {size}, loss {loss:.3f} after {steps} steps, {taken:.1f} minutes")


def batched(examples: list[list[int]], size: int, rng: random.Random) -> Iterator[list[list[int]]]:
    """Batches without end, each of examples about equally long."""
    while True:
        order = list(examples)
        rng.shuffle(order)
        # Sorted within a stretch of the shuffled text, so that a batch has little padding.
        for start in range(0, len(order), 16 * size):
            stretch = sorted(order[start : start + 16 * size], key=len)
            batches = [stretch[place : place + size] for place in range(0, len(stretch), size)]
            rng.shuffle(batches)
            yield from batches


def padded(rows: list[list[int]], fill: int) -> Tensor:
    """[row, longest row]."""
    longest = max(map(len, rows))
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])


def split_off(examples: list, most: int = MOST_PROMPTS) -> tuple[list, list]:
    """A twentieth of the examples, at most so many, to be kept back; and the rest."""
    count = max(1, min(most, len(examples) // 20))
    return examples[:count], examples[count:]


def write_prompts(path: Path, prompts: Iterable[tuple[str, str]]) -> None:
    """(category, text) of each, for ``headstart paper --prompts``."""
    lines = [
        json.dumps({"id": number, "category": category, "turns": [text]}, ensure_ascii=False)
        for number, (category, text) in enumerate(prompts)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {len(lines)} prompts that neither has seen")


def shape(text: str) -> Shape:
    """``width,layers``."""
    width, layers = map(int, text.split(","))
    if width % 32 or width < 32 or layers < 1:
        raise argparse.ArgumentTypeError(f"{text} is no shape: give a width that 32 divides, and layers")
    return width, layers


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What every recipe takes."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for target/, draft/ and prompts.jsonl")
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokens at most")
    parser.add_argument("--steps", type=int, default=20_000, help="of each model")
    parser.add_argument("--minutes", type=float, help="of each model at most")
    parser.add_argument("--draft-minutes", type=float, help="of the draft, if that is another number")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--bf16", action="store_true", help="multiply in bfloat16, where the machine has units for it")
    parser.add_argument("--only", choices=("target", "draft"), action="append", help="train one of them alone")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser
