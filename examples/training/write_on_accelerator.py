"""Let the target answer prompts on an accelerator, thousands at a time: text for ``headstart train --corpus``.

    python examples/training/write_on_accelerator.py smollm2 prompts.jsonl --out corpus --device cuda
    headstart train eagle3 --out head --corpus corpus --prompts prompts.jsonl --temperature 0 --temperature 0 \
        --temperature 0.8 --tokens 1 --device cuda

Lines of the file are as ``headstart train --prompts`` reads them. Of ``turns`` all are asked, one after the other, and
each such conversation is one document. Temperatures take turns from line to line. A second run goes on where the first
one ended.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import torch

from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from headstart.text.chat import ChatTemplate
from headstart.text.prompt_lines import PromptLine, read_lines
from headstart.text.tokenizer import Tokenizer
from headstart_train.decoder.static_decoder import StaticDecoder
from headstart_train.text.corpus import Corpus, Document

MARK = "<the answer>"


@dataclass
class Conversation:
    """What is asked, as tokens, and what has been said."""

    questions: list[list[int]]
    """Not asked yet: the first prompt, then what stands between an answer and the next one."""
    temperature: float
    tokens: list[int] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)

    def ask(self, ends: Sequence[int]) -> None:
        """The next question."""
        if self.tokens and self.tokens[-1] in ends:
            # The question brings the end of the answer before it along.
            self.tokens.pop()
            self.answers.pop()
        self.add(self.questions.pop(0), False)

    @property
    def document(self) -> Document:
        return Document(np.asarray(self.tokens, np.int32), np.asarray(self.answers))

    def add(self, tokens: list[int], answer: bool) -> None:
        self.tokens += tokens
        self.answers += [answer] * len(tokens)


class Encoder:
    """Makes conversations of lines, in several processes."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, temperatures: Sequence[float]) -> None:
        self._template, self._tokenizer, self._temperatures = template, tokenizer, temperatures

    def __call__(self, indexed: tuple[int, PromptLine]) -> Conversation:
        index, line = indexed
        turns = [] if "messages" in line.forms else line.texts()
        messages = line.messages() if not turns else [{"role": "user", "content": turns[0]}]
        texts = [self._template.render(messages)]
        for turn in turns[1:]:
            said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARK}]
            texts.append(self._template.render([*said, {"role": "user", "content": turn}]).rpartition(MARK)[2])
        questions = [self._tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return Conversation(questions, self._temperatures[index % len(self._temperatures)])

    def all(self, lines: Sequence[PromptLine]) -> list[Conversation]:
        pool = Pool(initializer=_be, initargs=(self,))
        try:
            return pool.map(_encode, enumerate(lines), chunksize=256)
        finally:  # they end by themselves: a signal may mean something else to them
            pool.close()
            pool.join()


_encoder: Encoder | None = None


def _be(encoder: Encoder) -> None:
    global _encoder
    _encoder = encoder


def _encode(indexed: tuple[int, PromptLine]) -> Conversation:
    assert _encoder is not None
    return _encoder(indexed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="alias, folder, hub id or .gguf file")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="directory of the corpus")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--temperature", type=float, action="append")
    parser.add_argument("--answer-tokens", type=int, default=192)
    parser.add_argument("--batch", type=int, default=2048, help="answers written together")
    parser.add_argument("--longest", type=int, default=768, help="tokens of a prompt; longer ones are left out")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after so many no batch is begun")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    temperatures = given.temperature or [0.0, 0.8]
    checkpoint = open_checkpoint(given.model)
    template, tokenizer = ChatTemplate.from_checkpoint(checkpoint), Tokenizer.from_checkpoint(checkpoint)
    every = Encoder(template, tokenizer, temperatures).all(read_lines(given.prompts))
    asked = [each for each in every if len(each.questions[0]) <= given.longest]
    print(f"{len(asked)} conversations", flush=True)
    torch.manual_seed(given.seed)
    config, weights = load_decoder(checkpoint, torch.float32)
    decoder = StaticDecoder(config, weights, torch.device(given.device))
    ends = list(dict.fromkeys((*config.eos_token_ids, *tokenizer.eos_token_ids)))
    about = {
        "target_digest": checkpoint.digest(),
        "temperatures": temperatures,
        "prompts": [given.prompts.name],
        "seed": given.seed,
    }
    corpus = Corpus(given.out, about)
    began, written = time.perf_counter(), 0
    order = np.random.default_rng(given.seed).permutation(len(asked))[len(corpus) :]
    # A stretch of the file at a time, prompts of like length together; a conversation that goes on does so in the next.
    stretch, coming, waiting = 4 * given.batch, iter(order), list[Conversation]()
    while members := [asked[index] for index in islice(coming, stretch)] or waiting:
        members = [*waiting, *(each for each in members if not each.tokens)]
        for each in members:
            each.ask(ends)
        members.sort(key=lambda each: len(each.tokens))
        for start in range(0, len(members), given.batch):
            part = members[start : start + given.batch]
            said = decoder.decode(
                [each.tokens for each in part], [each.temperature for each in part], given.answer_tokens, ends
            )
            for each, answer in zip(part, said, strict=True):
                each.add(answer.tolist(), True)
                written += len(answer)
        waiting = [each for each in members if each.questions]
        corpus.extend([each.document for each in members if not each.questions])
        spent = time.perf_counter() - began
        print(f"{len(corpus)} of {len(asked)}: {written} tokens, {written / spent:.0f} a second", flush=True)
        if spent > given.seconds:
            break


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
