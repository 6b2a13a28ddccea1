"""The form of ``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from headstart.engine.outputs import Completion, FinishReason, TokenLogprobs
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.errors import RequestError
from headstart.sampling.params import SamplingParams
from headstart.text.detokenizer import IncrementalDetokenizer
from headstart_server.forms import ChoicesForm
from headstart_server.infill_prompts import Infill
from headstart_server.protocol import CompletionBody
from headstart_server.replies import best_tokens, fewer, finite

_DEFAULT_TOKENS = 16
"""OpenAI's default for ``max_tokens``, for models without one of their own."""


class CompletionForm(ChoicesForm[CompletionBody]):
    """Texts or token ids that are continued, with or without their echo."""

    kind = chunk_kind = "text_completion"
    id_prefix = "cmpl-"

    def read(self) -> SamplingParams:
        """As for every form."""
        body = self.body
        self._infill = Infill(self.llm.model) if body.suffix else None
        if self._infill is not None and (body.echo or body.decoder_prompt is not None):
            raise RequestError("suffix is given beside echo or decoder_prompt; keep one of them.", "suffix")
        searches = body.use_beam_search or body.beam_width is not None
        if searches and body.best_of is not None and body.beam_width is None:
            body.beam_width = body.best_of
        elif body.best_of not in (None, body.n or 1):
            raise RequestError("best_of is given; ask for n samples and choose among them.", "best_of")
        self._echo = bool(body.echo)
        self._prompt_alone = self._echo and body.max_tokens == 0
        """Only the echo is wanted: the one token that the engine has to decode is left out."""
        max_tokens = 1 if self._prompt_alone else body.max_tokens
        defaults = self.llm.sampling_defaults
        params = body.sampling(self.settings, defaults, max_tokens, body.logprobs, _DEFAULT_TOKENS)
        if self._echo and body.logprobs is not None:
            params = replace(params, prompt_logprobs=max(body.logprobs, params.prompt_logprobs or 0))
        self._prompts = _prompts(body.prompt)
        if not 0 < len(self._prompts) <= self.settings.max_prompts:
            raise RequestError(
                f"{len(self._prompts)} prompts are given; give 1 to {self.settings.max_prompts}.", "prompt"
            )
        return params if self._infill is None else ending_with_middle(params, self._infill)

    def make_samples(self, salt: str) -> list[Sample]:
        """As for every form."""
        body, wishes = self.body, self.body.wishes(self.llm.speculation)
        named = {"decoder_prompt": body.decoder_prompt, "src_lang": body.src_lang, "tgt_lang": body.tgt_lang}
        beside = {name: value for name, value in named.items() if value is not None}
        samples = []
        for index, prompt in enumerate(self._prompts):
            if self._infill is not None:
                encoded = self._infill.encode(prompt, body.suffix or "")
            else:
                given = {"encoder_prompt": prompt, **beside} if beside else prompt
                encoded = self.llm.encode(given, body.add_special_tokens is not False)
            samples += self.llm.samples(encoded, self.params, wishes, prompt_index=index, cache_salt=salt)
        return samples

    def choice(self, place: int, sample: Sample, done: Completion) -> dict[str, Any]:
        """Its text, after its prompt if that is echoed."""
        text, token_ids, entries = done.text, done.token_ids, done.logprobs
        if self._prompt_alone:
            text, token_ids, entries = "", [], None if entries is None else []
        logprobs = None
        if entries is not None and self._echo:
            logprobs = self._echo_logprobs(sample, entries, token_ids, sample.text_offsets)
        elif entries is not None:
            logprobs = self._logprobs(entries, token_ids, sample.text_offsets)
        prompt = self._prompt_text(sample) if self._echo else ""
        return {"text": prompt + text, "logprobs": logprobs, **self.ids(token_ids), **self.about_prompt(sample)}

    def first(self, place: int) -> Iterator[str]:
        """The echo, and what is said about the prompt."""
        if not self._echo and not self.body.return_token_ids:
            return
        sample = self.samples[place]
        part: dict[str, Any] = {"text": self._prompt_text(sample) if self._echo else "", **self.about_prompt(sample)}
        if self._echo and self.body.logprobs is not None:
            part["logprobs"] = self._echo_logprobs(sample, [], [], [])
        yield self.chunk(place, part)

    def piece(self, place: int, piece: StreamPiece, drafter: str | None) -> Iterator[str]:
        """One chunk, if there is anything to tell."""
        part: dict[str, Any] = {"text": ""}
        if not self._prompt_alone:
            part = {"text": piece.text, **self.ids(piece.token_ids)}
        if self.body.logprobs is not None and not self._prompt_alone:
            before = len(self._prompt_text(self.samples[place])) if self._echo else 0
            offsets = [before + offset for offset in piece.text_offsets]
            part["logprobs"] = self._logprobs(piece.logprobs, piece.token_ids, offsets)
        if piece.completion is not None:
            yield self.last_chunk(place, part, piece.completion, drafter)
        elif part["text"] or part.keys() - {"text"}:
            yield self.chunk(place, part)

    def ending(self, place: int, done: Completion) -> dict[str, Any]:
        """As for every form; an echo alone is cut short."""
        alone = {"finish_reason": str(FinishReason.LENGTH), "stop_reason": None}
        return super().ending(place, done) | (alone if self._prompt_alone else {})

    def usage(self, drafter: str | None) -> dict[str, Any]:
        """As for every form; an echo alone has no tokens of its own."""
        counts = super().usage(drafter)
        if self._prompt_alone:
            counts |= {"completion_tokens": 0, "total_tokens": counts["prompt_tokens"]}
        return counts

    def _prompt_text(self, sample: Sample) -> str:
        return self.tokenizer.decode(sample.prompt.token_ids, skip_special_tokens=False)

    def _echo_logprobs(
        self, sample: Sample, entries: list[TokenLogprobs], token_ids: list[int], offsets: list[int]
    ) -> dict[str, Any]:
        """Log-probabilities of a prompt and then of its output."""
        prompt_ids = sample.prompt.token_ids
        echoed = IncrementalDetokenizer(self.tokenizer, skip_special_tokens=False)
        echoed.extend(prompt_ids)
        before = len(self._prompt_text(sample))
        places = [*echoed.offsets, *(before + offset for offset in offsets)]
        tokens = [*prompt_ids, *token_ids]
        first = fewer(sample.prompt_logprobs or [], self.body.logprobs or 0)
        return self._logprobs([*first, *entries], tokens, places[: len(tokens)])

    def _logprobs(
        self, entries: Sequence[TokenLogprobs | None], token_ids: Sequence[int], text_offsets: Sequence[int]
    ) -> dict[str, Any]:
        """``logprobs`` of a choice; the entry of a first token, which nothing precedes, is None."""
        spell = self.spell()
        return {
            "tokens": [spell(token) for token in token_ids],
            "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in entries],
            "top_logprobs": [None if entry is None else best_tokens(spell, entry) for entry in entries],
            "text_offset": list(text_offsets),
        }


def ending_with_middle(params: SamplingParams, infill: Infill) -> SamplingParams:
    """The same, ended by the marks behind which nothing is filled in."""
    if params.ignore_eos:
        return params
    return replace(params, stop_token_ids=(*params.stop_token_ids, *infill.tokens.ends))


def _prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """One text, one list of token ids, or several of either, as a list."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(isinstance(token, int) for token in prompt):
        return [list(prompt)]
    return prompt
