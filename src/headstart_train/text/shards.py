"""A text in shards: what is asked in each, and in which order they become a corpus.

A shard depends on the target, the seed and its number alone. So it does not matter who writes which, here or on other
machines, at once or after an interruption: the text is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headstart.entrypoints.llm import LLM
from headstart.entrypoints.prompts import EncodedPrompt
from headstart_train.text.corpus import Corpus, Document
from headstart_train.text.synthesis import Conversation, answer, ask, begin_texts, encode_asked, follow_up, task

Progress = Callable[[int, int], None]
"""Called with the documents and tokens that were just written."""

PART = 64
SHARD = 4 * PART
"""Documents: enough to keep a large batch full, and few enough to be lost."""


@dataclass(frozen=True)
class Writing:
    """How a text is written."""

    temperatures: tuple[float, ...] = (0.0, 0.8)
    """Of the answers, in turn."""
    answer_tokens: int = 192
    """Most tokens of an answer."""
    seed: int = 0


@dataclass(frozen=True)
class Shard:
    """So many documents of a text (``SHARD``), in four parts.

    Its prompts stand in the first and the third; what lacks there, and the second, are questions that the target makes
    up. The last part builds on the answers of the others: tasks on passages (summaries, translations, questions on
    documents) and second turns, so that long prompts and conversations are learnt as well. A target without a chat
    template continues its prompts and, everywhere else, texts that it begins itself.
    """

    number: int
    prompts: tuple[Conversation, ...] = ()
    """At most two parts of them."""

    @classmethod
    def of(cls, number: int, prompts: Sequence[Conversation]) -> Shard:
        """A shard of the text over all these prompts, each of which is asked once."""
        each = 2 * PART
        return cls(number, tuple(prompts[number * each : (number + 1) * each]))

    @property
    def begin(self) -> int:
        """Documents of the text before it."""
        return self.number * SHARD

    def prompt(self, place: int) -> Conversation | None:
        """What is asked at a place of the first three parts; None: the target makes it up."""
        part, index = divmod(place, PART)
        index += part // 2 * PART
        return self.prompts[index] if part != 1 and index < len(self.prompts) else None


def write_shard(
    llm: LLM, shard: Shard, writing: Writing, written: Sequence[Document] = (), stop: int | None = None
) -> list[Document]:
    """Let the target write a shard, or what follows those ``written`` of its documents, up to ``stop``.

    What comes out depends on the target, the shard and ``writing`` alone: not on what is written at once, nor on who
    writes the other shards.

    Raises:
        ConfigError: the chat template does not show what a user says.
        RequestError: a conversation cannot be rendered.
    """
    documents, stop = list(written), SHARD if stop is None else stop
    seed = writing.seed + shard.begin
    while (place := len(documents)) < stop:
        upto = min(stop, 3 * PART) if place < 3 * PART else stop
        questions = _questions(llm, shard, seed, documents, upto)
        documents += answer(llm, questions, writing.temperatures, writing.answer_tokens, seed, after=place)
    return documents[len(written) :]


def _questions(llm: LLM, shard: Shard, seed: int, documents: Sequence[Document], stop: int) -> list[EncodedPrompt]:
    """What is asked from the place after ``documents`` on, all in the first three parts or all in the last one."""
    place, chats = len(documents), llm.model.chat_template.available
    if place >= 3 * PART and chats:
        earlier = documents[: 3 * PART]
        last = follow_up(llm, earlier, PART // 2, seed)
        last += [llm.encode_chat(each) for each in task(llm, earlier, PART - len(last), seed)]
        return last[place - 3 * PART : stop - 3 * PART]
    given = [shard.prompt(each) if each < 3 * PART else None for each in range(stop)]
    lacking, before = given[place:].count(None), given[:place].count(None)
    if chats:
        own = iter([llm.encode_chat(each) for each in ask(llm, lacking, seed, after=before)])
    else:
        own = iter(begin_texts(llm, lacking, seed, after=before))
    return [next(own) if conversation is None else encode_asked(llm, conversation) for conversation in given[place:]]


def write_answers(
    llm: LLM,
    corpus: Corpus,
    num_tokens: int,
    writing: Writing,
    *,
    prompts: Sequence[Conversation] = (),
    batch_size: int = 64,
    progress: Progress | None = None,
    documents: int | None = None,
) -> None:
    """Let the target write until the corpus holds ``num_tokens`` of its answers, or ``documents`` more documents.

    A corpus that was interrupted, or must grow, is continued with the same text as if it had been written in one go.

    Raises:
        ConfigError, RequestError: as ``write_shard``.
    """
    most = math.inf if documents is None else len(corpus) + documents
    while (missing := num_tokens - corpus.num_answer_tokens) > 0 and len(corpus) < most:
        number, place = divmod(len(corpus), SHARD)
        shard = Shard.of(number, prompts)
        fewest = math.ceil(missing / writing.answer_tokens)
        # Most answers are shorter; a last batch that is not quite full costs as much as one that is.
        likely = max(fewest, min(2 * fewest, batch_size))
        stop = int(min(SHARD, place + likely, most - shard.begin))
        written = [corpus[index] for index in range(shard.begin, len(corpus))]
        append(corpus, write_shard(llm, shard, writing, written, stop), num_tokens, progress)


def append(corpus: Corpus, documents: Sequence[Document], num_tokens: int, progress: Progress | None = None) -> None:
    """Documents are added up to the one with which the corpus has ``num_tokens`` of answers: so a text ends at the same
    place, however it was written."""
    counts = [int(document.answers.sum()) for document in documents]
    totals = np.cumsum(counts, dtype=np.int64)
    added = int(np.searchsorted(totals, num_tokens - corpus.num_answer_tokens)) + 1
    corpus.extend(documents[:added])
    if progress is not None:
        progress(len(documents[:added]), sum(counts[:added]))
