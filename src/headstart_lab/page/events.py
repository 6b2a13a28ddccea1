"""What the lab page is told of an answer: its start, its rounds with their trees and times, and its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headstart.common.machine_load import LoadWatch, MachineLoad
from headstart.engine.outputs import FinishReason
from headstart.engine.trace import RoundTrace, TracedNode
from headstart.entrypoints.llm import LLM
from headstart.entrypoints.prompts import EncodedPrompt, Message
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.text.detokenizer import IncrementalDetokenizer
from headstart.text.tokenizer import Tokenizer

Event = dict[str, Any]


def lab_prompt(llm: LLM, messages: Sequence[Message]) -> EncodedPrompt:
    """What a conversation's answer goes on from. A model without a chat template reads the last message as it stands;
    where it has an encoder, that does.

    Raises:
        RequestError: the model cannot read it.
    """
    if llm.model.chat_template.available or not messages:
        return llm.encode_chat(messages)
    return llm.encode(messages[-1].get("content", ""))


class LabEvents:
    """The events of one traced sample, as plain values.

    Args:
        sample: the sample.
        drafter: who guesses for it; None: nobody.
        tokenizer: the target's.
    """

    def __init__(self, sample: Sample, drafter: str | None, tokenizer: Tokenizer) -> None:
        self._drafter = drafter
        self._tokenizer = tokenizer
        sequence = sample.sequence
        self._prompt_tokens = sequence.stats.prompt_tokens
        self._text = IncrementalDetokenizer(tokenizer, sequence.tokens[: sequence.prompt_length])
        self._load = LoadWatch(threads=1)

    def start(self) -> Event:
        """The first event."""
        return {"event": "start", "drafter": self._drafter, "prompt_tokens": self._prompt_tokens}

    def of(self, piece: StreamPiece) -> Iterator[Event]:
        """An event for each round of a piece, and in the last piece the end or an error."""
        start = 0
        for seen in piece.rounds:
            # The sequence may have ended within the last round.
            end = min(start + len(seen.path) + 1, len(piece.token_ids))
            tokens = [self._token(piece, place) for place in range(start, end)]
            if piece.finish_reason is not None and end == len(piece.token_ids) and tokens:
                tokens[-1]["text"] += self._text.finish()
                tokens[-1]["part"] = False
            yield {"event": "round", "tokens": tokens, **self._round(seen)}
            start = end
        done = piece.completion
        if done is None:
            return
        if done.finish_reason is FinishReason.ERROR:
            yield {"event": "error", "message": str(done.error)}
            return
        yield {
            "event": "end",
            "finish_reason": str(done.finish_reason),
            "text": done.text,
            "stats": done.stats.as_dict(),
            # Of all cores' time since the start; what is slow because of others is not the drafter's fault.
            "others": share_of_others(self._load.so_far()),
        }

    def _token(self, piece: StreamPiece, place: int) -> Event:
        token, rejected = piece.token_ids[place], piece.rejected[place]
        return {
            "text": self._text.append(token),
            # Whether it ends inside of a character, whose text then comes with a later token.
            "part": self._text.unfinished,
            "label": self._label(token),
            "origin": str(piece.origins[place]),
            "rejected": None if rejected is None else self._label(rejected),
        }

    def _round(self, seen: RoundTrace) -> Event:
        return {
            "root": self._label(seen.root),
            "nodes": [self._node(node) for node in seen.nodes],
            "path": seen.path,
            "answer": self._node(seen.answer),
            "seconds": seen.seconds,
            "draft_seconds": seen.draft_seconds,
            "pass_seconds": seen.pass_seconds,
        }

    def _node(self, node: TracedNode) -> Event:
        return {
            "label": self._label(node.token),
            "parent": node.parent,
            "target": node.target_prob,
            "law": node.law_prob,
            "draft": node.draft_prob,
        }

    def _label(self, token: int) -> str:
        """A token by itself; bytes that are but part of a character as ``\\xe4``."""
        return self._tokenizer.token_bytes(token).decode(errors="backslashreplace")


def share_of_others(load: MachineLoad) -> float | None:
    """How much of the processors' time went to others, in [0, 1]; None: the system does not tell."""
    return None if load.others is None else min(1.0, (load.others + (load.stolen or 0.0)) / load.cores)
