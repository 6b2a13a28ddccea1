"""Results in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

from starlette.responses import JSONResponse

from headstart.engine.outputs import Completion, SequenceStats, TokenLogprobs
from headstart.entrypoints.request import Sample


class Reply(JSONResponse):
    """JSON in ASCII, so that a lone surrogate in a message does no harm."""

    def render(self, content: Any) -> bytes:
        return to_json(content).encode()


to_json = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def event(content: Any) -> str:
    """One server-sent event."""
    return f"data: {to_json(content)}\n\n"


def usage(samples: Sequence[Sample], drafter: str | None) -> dict[str, Any]:
    """Token counts of a request, with each prompt counted once, and what speculation contributed."""
    each = [sample.sequence.stats for sample in samples]
    # What a prompt's other samples take over from its first was not in the cache before this request.
    prompts = {sample.prompt_index: sample.sequence.stats for sample in samples if sample.index == 0}
    prompt_tokens = sum(stats.prompt_tokens for stats in prompts.values())
    tokens = sum(stats.tokens for stats in each)
    accepted, drafted = sum(stats.accepted for stats in each), sum(stats.drafted for stats in each)
    cached = sum(min(stats.cached_tokens, stats.prompt_tokens) for stats in prompts.values())
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
        "speculation": speculation(each, drafter),
    }


def speculation(each: Sequence[SequenceStats], drafter: str | None) -> dict[str, Any]:
    """Counts of guesses, added up over samples."""
    rounds, tokens = sum(stats.rounds for stats in each), sum(stats.tokens for stats in each)
    return {
        "drafter": drafter,
        "rounds": rounds,
        "drafted": sum(stats.drafted for stats in each),
        "accepted": sum(stats.accepted for stats in each),
        "mean_accepted_length": tokens / rounds if rounds else 0.0,
        "beam_steps": sum(stats.beam_steps for stats in each),
        "drafted_per_position": _added([stats.drafted_per_position for stats in each]),
        "accepted_per_position": _added([stats.accepted_per_position for stats in each]),
    }


def spec_decode_metrics(stats: SequenceStats) -> dict[str, Any] | None:
    """``metrics.speculative_decoding`` in vLLM's form (its ``--per-request-spec-decode-metrics summary``), for one
    sample; None: nothing was guessed.

    A step is a round in which something was guessed. ``acceptance_histogram`` [j] counts those of which j guesses
    became output; of a tree a path counts, its other guesses are among ``num_draft_tokens``. ``num_spec_tokens`` is the
    depth of the deepest guess.
    """
    if not stats.drafted_per_position or not stats.drafted_per_position[0]:
        return None
    reached = [stats.drafted_per_position[0], *stats.accepted_per_position, 0]
    depth = len(stats.drafted_per_position)
    histogram = [here - deeper for here, deeper in pairwise(reached)]
    histogram += [0] * (depth + 1 - len(histogram))
    accepted = sum(stats.accepted_per_position)
    return {
        # vLLM counts a token of the target's own for each step; one behind the end of the output is not said.
        "mean_acceptance_length": 1 + (accepted - stats.unsaid) / reached[0],
        "draft_acceptance_rate": accepted / stats.drafted,
        "acceptance_histogram": histogram,
        "num_spec_steps": reached[0],
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": stats.drafted,
        "num_spec_tokens": depth,
    }


Spell = Callable[[int], str]
"""How a reply spells a token."""


def prompt_logprobs(spell: Spell, entries: Sequence[TokenLogprobs | None], count: int) -> list[dict[str, Any] | None]:
    """``prompt_logprobs`` in vLLM's form: each prompt token and the ``count`` best in its place, by id."""

    def shown(token: int, logprob: float, rank: int) -> dict[str, Any]:
        return {str(token): {"logprob": finite(logprob), "rank": rank, "decoded_token": spell(token)}}

    told: list[dict[str, Any] | None] = []
    for entry in entries:
        if entry is None:
            told.append(None)
            continue
        best = shown(entry.token_id, entry.logprob, entry.rank)
        for rank, (token, logprob) in enumerate(islice(entry.top.items(), count), start=1):
            best |= shown(token, logprob, rank) if token != entry.token_id else {}
        told.append(best)
    return told


def fewer(entries: Sequence[TokenLogprobs | None], count: int) -> list[TokenLogprobs | None]:
    """The same entries with at most ``count`` of the best tokens."""
    return [None if entry is None else replace(entry, top=dict(islice(entry.top.items(), count))) for entry in entries]


def scores(completion: Completion, length_penalty: float) -> dict[str, float]:
    """Of a beam: its score (transformers' ``sequences_scores``), and its log-probability after the request's transforms
    (vLLM's ``cumulative_logprob``)."""
    if completion.score is None:
        return {}
    total = completion.score * float(len(completion.token_ids)) ** length_penalty
    return {"score": finite(completion.score), "cumulative_logprob": finite(total)}


def best_tokens(spell: Spell, entry: TokenLogprobs) -> dict[str, float]:
    """``top_logprobs`` of a completion's token, best first; of tokens with the same spelling, the best one. The token
    itself is always included."""
    top: dict[str, float] = {}
    for token, logprob in [*entry.top.items(), (entry.token_id, entry.logprob)]:
        top.setdefault(spell(token), finite(logprob))
    return top


def finite(logprob: float) -> float:
    """JSON has no infinity; -9999 stands for it, as in other servers."""
    return max(logprob, -9999.0)


def _added(lists: Sequence[Sequence[int]]) -> list[int]:
    longest = max(map(len, lists), default=0)
    return [sum(counts[i] for counts in lists if i < len(counts)) for i in range(longest)]
