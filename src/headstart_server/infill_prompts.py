"""A prompt from which a loaded model fills in what is missing between two texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.entrypoints.prompts import EncodedPrompt
from headstart.errors import RequestError
from headstart.loading.model import Model
from headstart_server.infill_tokens import InfillTokens, inner_tokens

_REPOSITORY = "repository\n"
_PREFIX_SHARE = 3
"""Of four parts of a room that is too small, those for what stands before."""


@dataclass(frozen=True)
class OtherFile:
    """A file of the same repository, or a piece of one."""

    name: str
    text: str


@dataclass(frozen=True)
class Infill:
    """What is to be filled in.

    Args:
        model: that fills in.
        field: how a refusal calls what asks for it.

    Raises:
        RequestError: the model has no tokens for it.
    """

    model: Model
    field: str = "suffix"

    def __post_init__(self) -> None:
        _ = self.tokens

    @property
    def tokens(self) -> InfillTokens:
        """The model's marks."""
        checkpoint = self.model.checkpoint
        metadata = checkpoint.metadata if checkpoint.kind == "gguf" else {}
        found = InfillTokens.of(self.model.tokenizer, metadata)
        if found is None or self.model.config.encoder is not None:
            raise RequestError(
                f"{self.field} asks for a text to be filled in, but the tokenizer of {self.model.name} has no tokens "
                "for that (FIM); leave it out, or serve a model of code that has them, such as Qwen2.5-Coder.",
                self.field,
            )
        return found

    def encode(
        self,
        prefix: str | Sequence[int],
        suffix: str,
        *,
        others: Sequence[OtherFile] = (),
        name: str = "",
        begun: str = "",
        room: int | None = None,
    ) -> EncodedPrompt:
        """The prompt.

        Args:
            prefix, suffix: what the middle stands between.
            others: what is shown before.
            name: of the file that is filled in, where others are shown.
            begun: the beginning of the middle.
            room: most tokens of the prompt: the end of the prefix and the beginning of the suffix are kept, then of the
                others the last ones; None: all is kept.

        Raises:
            RequestError: a text has no UTF-8 form.
        """
        marks, tokenizer = self.tokens, self.model.tokenizer
        if isinstance(prefix, str):
            before = tokenizer.encode(prefix, add_special_tokens=False, parse_special=False, field="prompt")
        else:
            before = list(prefix)
        after = inner_tokens(tokenizer, suffix, self.field)
        middle = inner_tokens(tokenizer, begun, "prompt")
        shown = self._shown(marks, others, name)
        start = tokenizer.start
        if room is not None:
            left = max(room - len(start) - len(middle) - len(marks.prompt((), ())), 0)
            share = left * _PREFIX_SHARE // 4
            kept = min(len(after), max(left - len(before), left - share))
            before, after = before[max(len(before) - (left - kept), 0) :], after[:kept]
            left -= len(before) + len(after)
            shown = shown[max(len(shown) - left, 0) :]
        ids = [*start, *shown, *marks.prompt(before, after), *middle]
        return EncodedPrompt(tokenizer.decode(ids, skip_special_tokens=False), ids)

    def _shown(self, marks: InfillTokens, others: Sequence[OtherFile], name: str) -> list[int]:
        """Other files, as the model's family writes a repository."""
        if not others:
            return []
        tokenizer, ids = self.model.tokenizer, list[int]()

        def add(mark: int | None, heading: str, text: str) -> None:
            if mark is not None:
                ids.append(mark)
            ids.extend(inner_tokens(tokenizer, heading + text, "input_extra"))

        if marks.repository is not None:
            add(marks.repository, "", _REPOSITORY)
        for other in others:
            add(marks.file, f"{other.name}\n" if marks.file is not None else f"\n\n{other.name}\n", f"{other.text}\n")
        if marks.file is not None:
            add(marks.file, "", f"{name or 'filename'}\n")
        return ids
