"""How one model's answers are read, and how a call that is forced has to be written."""

from __future__ import annotations

from functools import cached_property

from headstart.text.answers.choosing import USUAL, AnswerForm, call_forms, thought_forms
from headstart.text.answers.forms import CallForm, ThoughtForm, ThoughtMarks
from headstart.text.answers.own_template import TemplateReader, loaded
from headstart.text.answers.reader import AnswerReader
from headstart.text.answers.tools import Tools
from headstart.text.tokenizer import Tokenizer

_THOUGHTS = "deepseek_r1"
"""What is passed over in the search for calls where no thoughts are told apart."""
Reader = AnswerReader | TemplateReader
"""Reads one answer: ``feed`` pieces and ``finish``, or ``whole``; ``called`` counts its calls."""


class ModelAnswers:
    """The forms of one model's answers.

    Args:
        form: as chosen.
        tokenizer: the model's.

    Raises:
        ConfigError: the model's own template cannot be followed.
    """

    def __init__(self, form: AnswerForm, tokenizer: Tokenizer) -> None:
        self.form = form
        self._template = None if form.template is None else loaded(form.template)
        special = {tokenizer.token_text(token): token for token in tokenizer.special_ids}
        self.special = special
        self._tokenizer = tokenizer
        marks = form.marks
        self.shown = frozenset(token for text, token in special.items() if any(text in mark for mark in marks))
        """Special tokens that are seen in the text of an answer that is read here."""

    def sentence(self) -> str:
        """What a user is told at the start."""
        if self._template is not None:
            return "Tool calls and thinking are read by the model's own response_template."
        calls, thoughts = self.form.calls, self.form.thought
        read_calls = "none" if calls is None else f"{calls.names[0]} ({calls.models})"
        read_thoughts = "none" if thoughts is None else f"{thoughts.names[0]} ({thoughts.opening})"
        return f"Tool parser: {read_calls}; reasoning parser: {read_thoughts}."

    @property
    def thought(self) -> ThoughtForm | None:
        """How thoughts are written that are told apart."""
        return self.form.thought

    def thinks(self, prompt: str, continued: str = "") -> bool | None:
        """Whether an answer begins inside a thought; None: it may begin one. False where none are told apart."""
        if self.thought is None:
            return False
        if self.thought.begins_in_thought(prompt, continued):
            return True
        return False if continued or self.thought.is_over(prompt) else None

    @cached_property
    def thought_marks(self) -> ThoughtMarks | None:
        """How thoughts are marked in tokens; None: none are told apart."""
        if self.thought is None:
            return None
        opening, closing = (
            self._tokenizer.encode(mark, add_special_tokens=False)
            for mark in (self.thought.opening, self.thought.closing)
        )
        return ThoughtMarks(
            self.thought.opening.encode(),
            self.thought.closing.encode(),
            tuple(closing),
            opening[0] if len(opening) == 1 else None,
            self._tokenizer.token_bytes,
        )

    @cached_property
    def calls(self) -> CallForm:
        """How calls are written where one is forced."""
        return self.form.calls or next(form for form in call_forms() if USUAL in form.names)

    def reader(
        self, tools: Tools | None, prompt: str, continued: str = "", *, parallel: bool = True, forced: bool = False
    ) -> Reader | None:
        """What reads one answer; None: all of it is text.

        Args:
            tools: what it may call; None: nothing.
            prompt: its text.
            continued: that of the message that the answer continues.
            parallel: False: only the first call counts.
            forced: a call is forced.
        """
        form = self.form
        if self._template is not None and not forced:
            return TemplateReader(self._template, prompt, tools or Tools({}), parallel)
        whole = form.calls is not None and form.calls.answer is not None
        if tools is None and form.thought is None and not whole:
            return None
        thought = form.thought or next(each for each in thought_forms() if _THOUGHTS in each.names)
        return AnswerReader(
            tools or Tools({}),
            self.calls if forced else form.calls,
            thought,
            apart=form.thought is not None,
            thinking=(form.thought is not None or not forced) and thought.begins_in_thought(prompt, continued),
            parallel=parallel,
        )
