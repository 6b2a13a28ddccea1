"""Prompts of chosen lengths."""

from __future__ import annotations

import pytest

from headstart.engine.outputs import SequenceStats
from headstart.errors import ConfigError
from headstart.loading.model import load_model
from headstart_lab.bench.lengths import by_length, of_lengths, parse_lengths
from headstart_lab.bench.prompts import BenchPrompt, encode_turns
from headstart_lab.bench.run import Run

PROMPTS = [BenchPrompt("1", "qa", ("one two three four",)), BenchPrompt("2", "qa", ("five six", "seven"))]


def test_prompts_are_as_long_as_asked_a_word_at_most_shorter(tiny_model_dir):
    model = load_model(tiny_model_dir, "fp32")
    made = of_lengths(model, PROMPTS, [180, 400], 2, 50)
    assert [(prompt.id, prompt.group) for prompt in made] == [
        *(("180-0", "180 tokens"), ("180-1", "180 tokens"), ("400-0", "400 tokens"), ("400-1", "400 tokens"))
    ]
    counts = [len(encode_turns(model, prompt.turns, [])) for prompt in made]
    assert all(length - 10 < count <= length for count, length in zip(counts, [180, 180, 400, 400], strict=True))
    assert made[2].turns != made[3].turns
    assert made == of_lengths(model, PROMPTS, [180, 400], 2, 50)


def test_lengths_that_do_not_fit_are_refused(tiny_model_dir):
    model = load_model(tiny_model_dir, "fp32")
    with pytest.raises(ConfigError, match="leaves 462 for a prompt beside --max-tokens 50"):
        of_lengths(model, PROMPTS, [500], 1, 50)
    with pytest.raises(ConfigError, match="the least that asks something takes"):
        of_lengths(model, PROMPTS, [20], 1, 50)


def test_lengths_are_numbers():
    assert parse_lengths("1024, 8192,1024") == [1024, 8192]
    assert parse_lengths("") == []
    for wrong in ("8k", "0", "-5", "1.5"):
        with pytest.raises(ConfigError, match="--input-tokens holds"):
            parse_lengths(wrong)


def run(contender: str, group: str, rounds: int, seconds: float) -> Run:
    stats = SequenceStats(
        prompt_tokens=1000, tokens=20, rounds=rounds, prefill_seconds=2.0, seconds=2.0 + seconds, target_seconds=seconds
    )
    return Run(contender, group, group, 0, 0, (), (), stats, True)


def test_the_table_has_a_row_for_each_length_and_drafter():
    rows = by_length([run("none", "8", 20, 4.0), run("ngram", "8", 10, 2.0), run("none", "9", 20, 5.0)]).rows
    assert rows == (
        ("8", "none", 1000, 500, 5.0, 1.0, 1.0),
        ("8", "ngram", 1000, 500, 10.0, 2.0, 2.0),
        ("9", "none", 1000, 500, 4.0, 1.0, 1.0),
    )
