"""A small decoder and a smaller one under it, trained from scratch on the same text: a pair for ``headstart paper``.

    python examples/training/train_gpt_pair.py book.txt another.txt --out gpt-pair --minutes 30
    headstart paper --model gpt-pair/target --drafts draft-model:model=gpt-pair/draft --prompts gpt-pair/prompts.jsonl

The founding paper's own pair has 97 and 6 million weights and read one billion words (Leviathan et al. 2023, 4).
This one reads any text, at a size that fits the text and the time at hand. Both models have Llama's layers, so that the
native pass runs them, and say the tokens of one tokenizer, which is trained on the same files. A twentieth of the
paragraphs, at most 64, is kept back; their first words are the prompts.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

from pair_training import (
    END,
    PAD,
    Shape,
    arguments,
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
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT_WORDS = 10


def make_model(tokenizer: Tokenizer, sizes: Shape) -> LlamaForCausalLM:
    """Llama's layers; the head is the embedding."""
    width, layers = sizes
    end = tokenizer.token_to_id(END)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=width,
        intermediate_size=(width * 5 // 2 + 31) // 32 * 32,
        num_hidden_layers=layers,
        num_attention_heads=heads_of(width),
        num_key_value_heads=heads_of(width),
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    return LlamaForCausalLM(config)


def windows(tokens: list[int], length: int, size: int, rng: random.Random) -> Iterator[dict[str, Tensor]]:
    """Batches without end of stretches of the text, cut anew in every epoch."""
    while True:
        begin = rng.randrange(min(length, max(1, len(tokens) - length)))
        starts = list(range(begin, max(begin + 1, len(tokens) - length + 1), length))
        rng.shuffle(starts)
        for place in range(0, len(starts), size):
            rows = padded([tokens[start : start + length] for start in starts[place : place + size]], 0)
            yield {"input_ids": rows, "labels": rows}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="file", help="texts, a blank line between paragraphs")
    parser.add_argument("--target", type=shape, default=(320, 8), help="width,layers (320,8: some 11 million weights)")
    parser.add_argument("--draft", type=shape, default=(96, 2), help="likewise (96,2: some 0.6 million)")
    parser.add_argument("--length", type=int, default=128, help="tokens of a stretch of text")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    try:
        paragraphs = [paragraph for path in args.files for paragraph in paragraphs_of(path)]
    except OSError as error:
        sys.exit(f"Error: {error}.")
    long_enough = [place for place, text in enumerate(paragraphs) if len(text.split()) > 2 * PROMPT_WORDS]
    if len(long_enough) < 2:
        sys.exit(f"Error: the texts have {len(long_enough)} paragraphs of {2 * PROMPT_WORDS} words; give more of them.")
    rng.shuffle(long_enough)
    kept, _ = split_off(long_enough)
    # The others stay in their order, as they were written.
    left_out = set(kept)
    read = [text for place, text in enumerate(paragraphs) if place not in left_out]
    tokenizer = train_tokenizer(read, args.vocabulary, f"{END} $A")
    tokens = [token for text in read for token in tokenizer.encode(text).ids]
    print(f"{len(tokens)} tokens of {tokenizer.get_vocab_size()} in the vocabulary")
    train_pair(make_model, lambda order: windows(tokens, args.length, args.batch, order), tokenizer, args)
    first_words = (" ".join(paragraphs[place].split()[:PROMPT_WORDS]) for place in kept)
    write_prompts(args.out / "prompts.jsonl", [("text", words) for words in first_words])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
