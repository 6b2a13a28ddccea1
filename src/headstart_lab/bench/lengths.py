"""Prompts of chosen lengths, and what a table of them shows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from headstart.errors import ConfigError
from headstart.loading.model import Model
from headstart_charts.page import Cell, Table
from headstart_lab.bench.prompts import BenchPrompt, encode_turns
from headstart_lab.bench.run import Run
from headstart_lab.workbench import PLAIN

_TASK = "Here are texts of several kinds.\n\n{texts}\n\nSay in your own words what these texts are about."


def parse_lengths(text: str) -> list[int]:
    """Numbers of tokens, separated by commas.

    Raises:
        ConfigError: one is no whole number above 0.
    """
    lengths = []
    for part in filter(None, map(str.strip, text.split(","))):
        if not part.isdecimal() or not int(part):
            raise ConfigError(f"--input-tokens holds {part!r}; give whole numbers above 0, by commas.")
        lengths.append(int(part))
    return list(dict.fromkeys(lengths))


def of_lengths(
    model: Model, prompts: Sequence[BenchPrompt], lengths: Sequence[int], each: int, max_tokens: int, seed: int = 0
) -> list[BenchPrompt]:
    """``each`` prompts of every length, as near below it as their texts can be cut, a group for each length.

    They hold the first turns of ``prompts`` in a random order, again and again in others if need be.

    Raises:
        ConfigError: the model has no room for such a prompt and an answer of ``max_tokens``, or a length is too small.
    """
    made = []
    room = model.config.max_positions - max_tokens
    for length in lengths:
        if length > room:
            raise ConfigError(
                f"--input-tokens is {length}; this model's context leaves {room} for a prompt beside --max-tokens "
                f"{max_tokens}."
            )
        for place in range(each):
            order = np.random.default_rng([seed, length, place])
            made.append(BenchPrompt(f"{length}-{place}", f"{length} tokens", (_filled(model, prompts, length, order),)))
    return made


def _filled(model: Model, prompts: Sequence[BenchPrompt], length: int, order: np.random.Generator) -> str:
    def tokens(text: str) -> int:
        return len(encode_turns(model, [_TASK.format(texts=text)], []))

    if tokens("") > length:
        raise ConfigError(f"--input-tokens is {length}; the least that asks something takes {tokens('')}.")
    texts: list[str] = []
    while tokens("\n\n".join(texts)) < length:
        # Twice as much with every step, so that few of them are counted.
        for _ in range(max(len(texts) // len(prompts), 1)):
            texts += [prompts[i].turns[0] for i in order.permutation(len(prompts)).tolist()]
    words = "\n\n".join(texts).split(" ")
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if tokens(" ".join(words[:middle])) <= length else (low, middle - 1)
    return _TASK.format(texts=" ".join(words[:low]))


def by_length(runs: Sequence[Run]) -> Table:
    """Speed of reading and of decoding, and tokens a round, by the length of the prompt; medians over the repeats."""
    groups = list(dict.fromkeys(run.group for run in runs))
    rows: list[tuple[Cell, ...]] = []
    for group in groups:
        plain = _figures([run for run in runs if run.group == group and run.contender == PLAIN])
        for name in dict.fromkeys(run.contender for run in runs):
            own = [run for run in runs if run.group == group and run.contender == name]
            if own:
                read, reading, decoding, round_tokens = _figures(own)
                rows.append((group, name, read, reading, decoding, decoding / plain[2], round_tokens))
    return Table(
        "By length of the prompt",
        ("prompt", "drafter", "tokens read", "read, tokens/s", "decoded, tokens/s", "speed-up", "tokens a round"),
        tuple(rows),
        "Prompts are made of the bench's texts, in random order; what they repeat flatters drafters that copy. Reading "
        "is from admission to the first round, the drafter's own part included.",
        decimals=(0, 0, 0, 0, 1, 2, 2),
    )


def _figures(runs: Sequence[Run]) -> tuple[float, float, float, float]:
    """Tokens of a prompt, tokens read and decoded per second, tokens a round."""
    repeats = [[run for run in runs if run.repeat == repeat] for repeat in {run.repeat for run in runs}]
    read = sum(run.stats.prompt_tokens for run in runs) / len(runs)
    reading = median(
        sum(run.stats.prompt_tokens for run in own) / sum(run.stats.prefill_seconds for run in own) for own in repeats
    )
    decoding = median(sum(run.stats.tokens for run in own) / sum(run.decode_seconds for run in own) for own in repeats)
    return read, reading, decoding, sum(run.stats.tokens for run in runs) / sum(run.stats.rounds for run in runs)
