"""How one answer looks: text as it comes, text with its drafts, or a row of JSON."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.style import Style
from rich.text import Text

from headstart.engine.outputs import Completion, FinishReason, TokenLogprobs, TokenOrigin
from headstart.text.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from headstart.cli.answering import Answer
    from headstart.entrypoints.request import StreamPiece
    from headstart.sampling.params import SamplingParams
    from headstart.text.tokenizer import Tokenizer

STYLES = {
    TokenOrigin.ACCEPTED: Style(color="green"),
    TokenOrigin.CORRECTED: Style(color="blue"),
    TokenOrigin.BONUS: Style(color="blue"),
    TokenOrigin.PLAIN: Style(),
}
REJECTED = Style(color="red", strike=True)
MARKS = {
    TokenOrigin.ACCEPTED: ("{=", "=}"),
    TokenOrigin.CORRECTED: ("{+", "+}"),
    TokenOrigin.BONUS: ("{+", "+}"),
    TokenOrigin.PLAIN: ("", ""),
}
REJECTED_MARKS = ("[-", "-]")


class Live(Protocol):
    """Shows one sample while it is decoded."""

    def show(self, piece: StreamPiece) -> None: ...


class PlainText:
    """Text as it becomes final."""

    def show(self, piece: StreamPiece) -> None:
        sys.stdout.write(piece.text)
        sys.stdout.flush()


class DraftText:
    """Text with its drafts: accepted guesses, rejected ones, and what the target said instead (paper, figure 1).

    In colour where the terminal has it and NO_COLOR does not forbid it, else between marks.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: list[int], params: SamplingParams, with_rejected: bool = True
    ) -> None:
        self._with_rejected = with_rejected
        self._tokenizer = tokenizer
        self._text = IncrementalDetokenizer.of_request(tokenizer, prompt_token_ids, params)
        self._console = Console(highlight=False, markup=False, emoji=False)
        self.has_colours = self._console.color_system is not None and not self._console.no_color

    @property
    def legend(self) -> str:
        if self.has_colours:
            return "green: guessed and accepted, red: guessed and rejected, blue: the model's own token after a guess"
        return "{=guessed and accepted=} [-guessed and rejected-] {+the model's own token after a guess+}"

    def show(self, piece: StreamPiece) -> None:
        for place, (token, origin, rejected) in enumerate(
            zip(piece.token_ids, piece.origins, piece.rejected, strict=True), start=1
        ):
            if rejected is not None and self._with_rejected:
                guess = self._tokenizer.token_text(rejected).replace("\n", "↵")
                self._write(guess, REJECTED, REJECTED_MARKS)
            ends = place == len(piece.token_ids) and _ended_by_token(piece)
            self._write(self._text.append(token, ends), STYLES[origin], MARKS[origin])
        if piece.finish_reason is not None:
            self._write(self._text.finish(), Style(), ("", ""))

    def _write(self, text: str, style: Style, marks: tuple[str, str]) -> None:
        if text and not self.has_colours:
            sys.stdout.write(text.join(marks))
            sys.stdout.flush()
        elif text:
            self._console.print(Text(text, style), end="", soft_wrap=True)


def _ended_by_token(piece: StreamPiece) -> bool:
    done = piece.completion
    return done is not None and done.finish_reason is FinishReason.STOP and not isinstance(done.stop_reason, str)


def json_row(answer: Answer, tokenizer: Tokenizer) -> dict[str, Any]:
    """One answer under the names of the command's JSON."""
    row = labels(answer)
    if answer.output is None:
        return row | {"error": answer.error}
    row |= _sample_row(answer.output.outputs[0], tokenizer)
    if answer.output.prompt_logprobs is not None:
        row["prompt_logprobs"] = [_logprob_row(entry, tokenizer) for entry in answer.output.prompt_logprobs]
    if len(answer.output.outputs) > 1:
        row["outputs"] = [_sample_row(sample, tokenizer) for sample in answer.output.outputs]
    if answer.plain is not None:
        row["plain"] = _sample_row(answer.plain.outputs[0], tokenizer)
    return row


def labels(answer: Answer) -> dict[str, Any]:
    """What tells an answer from others of a prompts file."""
    conversation = answer.conversation
    if conversation.line is None:
        return {}
    turn = {} if conversation.turns is None else {"turn": answer.turn}
    return {"line": conversation.line, **conversation.labels, **turn}


def _sample_row(sample: Completion, tokenizer: Tokenizer) -> dict[str, Any]:
    row: dict[str, Any] = {
        "text": sample.text,
        "token_ids": sample.token_ids,
        "finish_reason": sample.finish_reason and sample.finish_reason.value,
        "stats": sample.stats.as_dict(),
    }
    if sample.score is not None:
        row["score"] = sample.score
    if sample.logprobs is not None:
        row["logprobs"] = [_logprob_row(entry, tokenizer) for entry in sample.logprobs]
    return row


def _logprob_row(entry: TokenLogprobs | None, tokenizer: Tokenizer) -> dict[str, Any] | None:
    if entry is None:
        return None
    top = [_logprob(token, value, tokenizer) for token, value in entry.top.items()]
    return _logprob(entry.token_id, entry.logprob, tokenizer) | {"top": top}


def _logprob(token: int, value: float, tokenizer: Tokenizer) -> dict[str, Any]:
    # JSON has no word for minus infinity.
    return {"token_id": token, "token": tokenizer.token_text(token), "logprob": value if math.isfinite(value) else None}
