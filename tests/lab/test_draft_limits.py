"""Limits of drafts as a user tells them."""

from __future__ import annotations

import shlex

import pytest
from toys import ToyBackend, repeating_logits

from headstart.drafting.options import parse_drafter
from headstart.errors import ConfigError
from headstart.sampling.params import SamplingParams
from headstart_lab.plan.draft_limits import MOST_NODES, MOST_TOKENS, freely, limits_of
from headstart_lab.workbench import Contender, Workbench


@pytest.mark.parametrize(
    ("drafter", "command"),
    [
        # Has both options, neither, the first, the second.
        ("eagle3:tree_nodes=63:model=here", "--drafter eagle3:model=here:draft_tokens=4:tree_nodes=9"),
        ("auto", "--drafter auto --draft-tokens 4 --tree-nodes 9"),
        ("ngram:draft_tokens=8", "--drafter ngram:draft_tokens=4 --tree-nodes 9"),
        ("suffix", "--drafter suffix:tree_nodes=9 --draft-tokens 4"),
    ],
)
def test_a_drafter_is_told_by_its_own_options_where_it_has_them(drafter: str, command: str) -> None:
    limits = limits_of(drafter, 4, 9, cuts_levels=True, cuts_nodes=True)
    assert limits.command == command
    assert parse_drafter(limits.drafter)[0] == parse_drafter(drafter)[0]


def test_what_cuts_nothing_is_left_unsaid() -> None:
    assert limits_of("auto", 4, 9, cuts_levels=False, cuts_nodes=False).command == "--drafter auto"
    assert limits_of("none", 0, 0, cuts_levels=False, cuts_nodes=False).command == "--drafter none"


def test_a_command_survives_the_shell() -> None:
    drafter = 'auto:drafters=ngram:drafter_options={"ngram": {"draft_tokens": 2}}'
    limits = limits_of(drafter, 4, 9, cuts_levels=True, cuts_nodes=False)
    assert shlex.split(limits.command) == ["--drafter", drafter, "--draft-tokens", "4"]


def test_a_drafter_is_free_where_the_user_set_no_limit() -> None:
    bench = Workbench(ToyBackend(11, repeating_logits(11, [1, 2, 3])), max_context=200)
    levels = {}
    for text in ("ngram", "ngram:draft_tokens=2", "suffix", "none"):
        free = freely(Contender.parse(text))
        sequence = bench.sequence([1, 2, 3] * 30, SamplingParams(temperature=0, max_tokens=60))
        bench.decode(bench.open(free), sequence)
        levels[free.name] = len(sequence.stats.drafted_per_position)
    assert levels == {"ngram": MOST_TOKENS, "ngram:draft_tokens=2": 2, "suffix": MOST_NODES, "none": 0}


def test_an_unknown_drafter_is_refused() -> None:
    with pytest.raises(ConfigError, match="no drafter 'nonesuch'"):
        freely(Contender.parse("nonesuch"))
