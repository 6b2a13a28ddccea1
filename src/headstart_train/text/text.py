"""What a head learns from: the text that the target wrote for it, and that of earlier trainings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.common.enumerations import Precision
from headstart.entrypoints.llm import LLM
from headstart.loading.model import Model, load_model
from headstart.models.aliases import ALIASES
from headstart.models.files import exists, local_path
from headstart_train.progressing import Progressing
from headstart_train.text.corpus import Corpus, Document
from headstart_train.text.gathering import Gathering, Order, Writers
from headstart_train.text.packs import Pack, make_packs, split_held_out
from headstart_train.text.shards import Writing, write_answers
from headstart_train.text.synthesis import read_conversations

_MOST_HELD_OUT = 32
"""Packs: some ten thousand guesses tell acceptance to a hundredth."""
_FIRST_DOCUMENTS = 16
_LONGEST_CONTEXT = 2048
"""Tokens of a conversation."""


@dataclass(frozen=True)
class TextSettings:
    """What the target writes to be learnt from."""

    tokens: int = 2_000_000
    """Of its answers, at most: a budget of minutes may allow fewer."""
    prompts: tuple[Path, ...] = ()
    """JSONL files of questions that it answers besides those that it asks itself."""
    temperatures: tuple[float, ...] = (0.0, 0.8)
    """Of its answers, in turn: greedy text is what greedy decoding drafts for, the rest keeps it from repeating."""
    answer_tokens: int = 192
    batch_size: int = 64
    """Answers that are written together."""
    precision: Precision | str | None = None
    """What it is written in, None: as the target is served; int8-fast says nearly the same in half the time."""
    directory: Path | None = None
    """Where the text is kept; None: ``corpus`` in the head's directory. Several heads may share it."""
    earlier: tuple[Path, ...] = ()
    """Directories of text of earlier trainings, learnt from as well: what is not read again is forgotten."""
    learn_prompts: bool = False
    """Learn what the target would have said in the prompts' place, too: more to learn from the same text."""


class Text:
    """One corpus or several; one document in twenty of each is held out.

    Args:
        corpora: of one target, the training's own first.
        learn_prompts: as ``TextSettings``. What is held out is judged by its answers alone.
    """

    def __init__(self, corpora: Sequence[Corpus], learn_prompts: bool = False) -> None:
        self._learn_prompts = learn_prompts
        self._parts = [(corpus, *split_held_out(len(corpus))) for corpus in corpora]

    @property
    def directories(self) -> list[Path]:
        return [corpus.directory for corpus, _, _ in self._parts]

    def about(self) -> list[dict[str, Any]]:
        """What each consists of, as JSON values."""
        return [
            {"documents": len(corpus), "answer_tokens": corpus.num_answer_tokens, **corpus.about}
            for corpus, _, _ in self._parts
        ]

    def counts(self, vocab_size: int) -> NDArray[np.int64]:
        """[vocab] how often the target said each token in what is learnt."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for corpus, learnt, _ in self._parts:
            counts += corpus.counts(vocab_size, learnt)
        return counts

    def packs(self, length: int) -> tuple[list[Pack], list[Pack]]:
        """To learn from, and held out: packs of ``length`` tokens. A corpus makes the same ones among others as alone,
        so that the target's states, which are kept by pack, are found."""
        learnt = [make_packs(_documents(corpus, chosen), length) for corpus, chosen, _ in self._parts]
        if self._learn_prompts:
            learnt = [[pack.learnt_whole() for pack in packs] for packs in learnt]
        held_out = [make_packs(_documents(corpus, chosen), length) for corpus, _, chosen in self._parts]
        in_turns = [pack for each in zip_longest(*held_out) for pack in each if pack is not None]
        return [pack for each in learnt for pack in each], in_turns[:_MOST_HELD_OUT]


def _documents(corpus: Corpus, indices: Sequence[int]) -> list[Document]:
    return [corpus[index] for index in indices]


class TextSource:
    """Where the text of a training comes from and goes to.

    Args:
        model: name of the target, loaded again where it writes in another precision.
        target: the same, loaded.
        out: the head's directory.
        writes: whether this process is the one that writes, or has it written.
        precision: of the target.
        writers: engines elsewhere that write; None: this process does.

    Raises:
        ConfigError, RequestError: a file or directory holds something else.
    """

    def __init__(
        self,
        model: str | Path,
        target: Model,
        settings: TextSettings,
        out: Path,
        seed: int,
        writes: bool,
        told: Progressing,
        *,
        precision: Precision | str = Precision.AUTO,
        writers: Writers | None = None,
    ) -> None:
        digest = target.checkpoint.digest()
        self._model, self._target, self.settings, self._told = model, target, settings, told
        self._earlier = [Corpus.existing(directory, digest) for directory in settings.earlier]
        # Files take turns, so that the short ones are read whole and the long ones do not hide them.
        files = zip_longest(*(read_conversations(path, target.chat_template.available) for path in settings.prompts))
        self._conversations = [conversation for each in files for conversation in each if conversation is not None]
        self._about = {
            "target_digest": digest,
            "temperatures": list(settings.temperatures),
            "prompts": [path.name for path in settings.prompts],
            "seed": seed,
        }
        self._directory = settings.directory or out / "corpus"
        self._corpus = Corpus(self._directory, self._about) if writes else None
        self._llm: LLM | None = None
        self._writing = Writing(settings.temperatures, settings.answer_tokens, seed)
        self._context = min(target.config.max_positions, _LONGEST_CONTEXT)
        self._gathering: Gathering | None = None
        if writers is not None and writes:
            order = Order(
                _anywhere(model),
                settings.precision or precision,
                digest,
                self._writing,
                settings.batch_size,
                self._context,
            )
            self._gathering = Gathering(writers, order, self.corpus, self._conversations, told.says)

    @property
    def corpus(self) -> Corpus:
        """The training's own text so far; of the process that writes."""
        assert self._corpus is not None
        return self._corpus

    @property
    def missing(self) -> int:
        """Tokens of answers that the settings still ask for."""
        return max(self.settings.tokens - self.corpus.num_answer_tokens, 0)

    @property
    def first_documents(self) -> int:
        """Documents that show how fast writing goes."""
        if self._gathering is not None:
            return self._gathering.first_documents
        return min(_FIRST_DOCUMENTS, self.settings.batch_size)

    def write(self, tokens: int, documents: int | None = None) -> None:
        """Write on, until there are so many tokens of answers, or so many documents more.

        Raises:
            ConfigError, RequestError: as ``write_answers``, or ``Gathering.write``.
        """
        if self._gathering is not None:
            self._gathering.write(tokens, documents, self._told.wrote)
            return
        settings = self.settings
        if self._llm is None:
            other = settings.precision
            writer = self._target if other is None else load_model(self._model, other)
            self._llm = LLM(writer, "none", max_batch_size=settings.batch_size, max_context=self._context)
        write_answers(
            self._llm,
            self.corpus,
            tokens,
            self._writing,
            prompts=self._conversations,
            batch_size=settings.batch_size,
            progress=self._told.wrote,
            documents=documents,
        )

    def end(self) -> None:
        """Nothing more will be written."""
        self._llm = None
        if self._gathering is not None:
            self._gathering.close()

    def text(self) -> Text:
        """All that is learnt from, as it is on disk now."""
        own = self._corpus or Corpus(self._directory, self._about)
        return Text([own, *self._earlier], self.settings.learn_prompts)


def _anywhere(model: str | Path) -> str:
    """A model's name for processes with other working directories."""
    path = local_path(model)
    return str(path.absolute()) if str(model) not in ALIASES and exists(path) else str(model)
