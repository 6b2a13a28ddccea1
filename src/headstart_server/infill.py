"""The forms of ``POST /infill`` and ``POST /v1/fim/completions``: a text between two others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headstart.engine.outputs import Completion, FinishReason
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.errors import RequestError
from headstart.sampling.params import SamplingParams
from headstart_server.completions import ending_with_middle
from headstart_server.forms import ChoicesForm, Form
from headstart_server.infill_prompts import Infill, OtherFile
from headstart_server.infill_protocol import FimBody, InfillBody
from headstart_server.replies import event, speculation


class InfillForm(Form[InfillBody]):
    """llama.cpp's: one text, or pieces of it in objects of the same kind."""

    def read(self) -> SamplingParams:
        """As for every form."""
        body = self.body
        if body.n not in (None, 1):
            raise RequestError(f"n is {body.n}; one text is filled in, so leave it out.", "n")
        self._infill = Infill(self.llm.model, "input_suffix")
        self._prompt_alone = body.max_tokens == 0
        """The prompt is read for the sake of the cache: the one token that the engine has to decode is left out."""
        most = 1 if self._prompt_alone else body.max_tokens
        return ending_with_middle(body.sampling(self.settings, self.llm.sampling_defaults, most, None), self._infill)

    def make_samples(self, salt: str) -> list[Sample]:
        """As for every form. Of texts that are too long, what stands nearest is kept, as in llama.cpp."""
        body = self.body
        context = self.llm.engine.limits.max_context
        others = [OtherFile(each.filename, each.text) for each in body.input_extra or ()]
        room = context - min(self.params.max_tokens or context, context // 4)
        prompt = self._infill.encode(
            body.input_prefix, body.input_suffix, others=others, begun=body.prompt or "", room=room
        )
        return self.llm.samples(prompt, self.params, body.wishes(self.llm.speculation), cache_salt=salt)

    def whole(self, drafter: str | None) -> dict[str, Any]:
        """The text, and why it ended."""
        done = self.samples[0].completion()
        return self._part("" if self._prompt_alone else done.text, done.token_ids, done, drafter)

    def piece(self, place: int, piece: StreamPiece, drafter: str | None) -> Iterator[str]:
        """The pieces have the form of the whole."""
        if piece.text or piece.completion is not None:
            text = "" if self._prompt_alone else piece.text
            yield event(self._part(text, piece.token_ids, piece.completion, drafter))

    def _part(self, text: str, tokens: list[int], done: Completion | None, drafter: str | None) -> dict[str, Any]:
        sample = self.samples[0]
        part: dict[str, Any] = {
            "index": 0,
            "content": text,
            "tokens": tokens if self.body.return_token_ids else [],
            "id_slot": self.slot,
            "stop": done is not None,
            "model": self.settings.served_name,
            "tokens_predicted": 0 if self._prompt_alone else sample.sequence.num_output,
            "tokens_evaluated": len(sample.prompt.token_ids),
        }
        if done is None:
            return part
        stats, word = done.stats, done.stop_reason if isinstance(done.stop_reason, str) else ""
        return part | {
            "stop_type": "limit" if done.finish_reason is not FinishReason.STOP else "word" if word else "eos",
            "stopping_word": word,
            "tokens_cached": min(stats.cached_tokens, stats.prompt_tokens),
            "truncated": False,
            "timings": {
                "prompt_n": stats.prompt_tokens,
                "prompt_ms": 1000 * stats.prefill_seconds,
                "predicted_n": stats.tokens,
                "predicted_ms": 1000 * max(stats.seconds - stats.prefill_seconds, 0.0),
                "draft_n": stats.drafted,
                "draft_n_accepted": stats.accepted,
            },
            "speculation": speculation([stats], drafter),
        }


class FimForm(ChoicesForm[FimBody]):
    """Mistral's: answers in the form of a chat's."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    id_prefix = "fim-"

    def read(self) -> SamplingParams:
        """As for every form."""
        self._infill = Infill(self.llm.model)
        params = self.body.sampling(self.settings, self.llm.sampling_defaults, self.body.max_tokens, None)
        return ending_with_middle(params, self._infill)

    def make_samples(self, salt: str) -> list[Sample]:
        """As for every form."""
        prompt = self._infill.encode(self.body.prompt, self.body.suffix or "")
        return self.llm.samples(prompt, self.params, self.body.wishes(self.llm.speculation), cache_salt=salt)

    def choice(self, place: int, sample: Sample, done: Completion) -> dict[str, Any]:
        """Its text, as a message."""
        return {"message": {"role": "assistant", "content": done.text, "tool_calls": None}, **self.ids(done.token_ids)}

    def head(self) -> Iterator[str]:
        """The role of each sample."""
        for place in range(len(self.samples)):
            yield self.chunk(place, {"delta": {"role": "assistant", "content": ""}})

    def piece(self, place: int, piece: StreamPiece, drafter: str | None) -> Iterator[str]:
        """One chunk, if there is anything to tell; the last one of a single text has the counts, as Mistral's."""
        part = {"delta": {"content": piece.text}, **self.ids(piece.token_ids)}
        if piece.completion is not None:
            beside = {"speculation": speculation([piece.completion.stats], drafter)}
            if len(self.samples) == 1:
                beside["usage"] = self.usage(drafter)
            yield self.chunk(place, part | self.ending(place, piece.completion), beside)
        elif piece.text or (piece.token_ids and self.body.return_token_ids):
            yield self.chunk(place, part)
