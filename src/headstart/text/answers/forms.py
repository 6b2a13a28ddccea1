"""What a family's file says of how its models write: calls, and thoughts. Files lie in ``families/``."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.text.answers.readers import Reader

if TYPE_CHECKING:
    from headstart.text.answers.forced import ForcedCalls
    from headstart.text.answers.reader import AnswerReader


@dataclass(frozen=True)
class Opening:
    """How calls begin, and what reads them from there on."""

    marks: tuple[str, ...]
    read: Reader
    leads: bool = False
    """They are calls only where nothing but thoughts stands before them."""
    held: bool = False
    """They are told when all is read: what comes last may show that they are none."""


@dataclass(frozen=True)
class CallForm:
    """How models of some families write calls. A family's file lists its own in ``CALLS``."""

    names: tuple[str, ...]
    """vLLM's names of the parser, the usual one first."""
    models: str
    """Who writes so."""
    openings: tuple[Opening, ...]
    signs: tuple[str, ...]
    """A chat template that holds one of these is of this family..."""
    without: tuple[str, ...] = ()
    """...unless it holds one of these."""
    marks: tuple[str, ...] = ()
    """Special tokens that the form needs besides its openings."""
    hidden: tuple[str, ...] = ()
    """Marks around text and calls that are no text."""
    forced: ForcedCalls | None = None
    """How a call is written where one is forced; None: as JSON."""
    id_size: int = 0
    """Letters and digits of a call's id; 0: as OpenAI's."""
    answer: Callable[[AnswerReader], Generator[None, None, None]] | None = None
    """Reads whole answers, of a family whose answers are made of messages."""


@dataclass(frozen=True)
class ThoughtForm:
    """How models of some families mark what they think. A family's file lists its own in ``THOUGHTS``."""

    names: tuple[str, ...]
    """vLLM's names of the parser, the usual one first."""
    models: str
    opening: str
    closing: str
    signs: tuple[str, ...] = ()
    """A chat template that holds all of these is of this family; none: one that holds one of its marks."""
    marks: tuple[str, ...] = ()
    """Special tokens that the form needs besides its marks."""
    hidden: tuple[str, ...] = ()
    """Marks around the text behind it that are no text."""
    prompts: tuple[str, ...] = ()
    """A prompt that ends with one of these begins a thought; none: its opening mark."""
    variants: tuple[tuple[str, str], ...] = ()
    """Other spellings of the marks, which are read as well; any closing one ends a thought."""

    @property
    def openings(self) -> tuple[str, ...]:
        """The opening mark, however it is spelled."""
        return (self.opening, *[opening for opening, _ in self.variants])

    @property
    def closings(self) -> tuple[str, ...]:
        """The same of the closing one."""
        return (self.closing, *[closing for _, closing in self.variants])

    def begins_in_thought(self, prompt: str, continued: str = "") -> bool:
        """Whether an answer begins inside a thought: its prompt ends with the mark of one, or it continues a message
        that has not ended one."""
        opened = max(map(continued.rfind, self.openings))
        closed = max(map(continued.rfind, self.closings))
        ends = tuple(mark.rstrip() for mark in (self.prompts or (self.opening,)))
        return opened > closed or prompt.rstrip().endswith(ends)

    def is_over(self, prompt: str) -> bool:
        """Whether the prompt ends with a thought that is over, as templates write where none is wanted."""
        return prompt.rstrip().endswith(self.closing.rstrip())


@dataclass(frozen=True)
class ThoughtMarks:
    """How a model spells the marks around its thoughts."""

    opening: bytes
    closing: bytes
    closing_ids: tuple[int, ...]
    """The tokens of ``closing``."""
    opening_id: int | None
    """The token of ``opening``, where it is a single one."""
    spell: Callable[[int], bytes]
    """A token's bytes."""
