"""What a drafter would bring that nobody has trained or downloaded yet: its cost is measured, its acceptance told.

A drafter with random weights of the right shape decodes prompts with the target. What its rounds cost is what a trained
one's would; how often its guesses hold comes from the user, or from what others have published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headstart.errors import ConfigError
from headstart.sampling.params import SamplingParams
from headstart_lab.methods.synthetic.drafter import SyntheticOptions
from headstart_lab.plan.profiles import Profile
from headstart_lab.plan.published_rates import LONGEST, PUBLISHED
from headstart_lab.plan.watching import BATCH_ROUNDS, profiles
from headstart_lab.stand_ins import require_known, stand_in
from headstart_lab.workbench import PLAIN, Contender, Workbench
from headstart_lab.workload import Workload

_PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@dataclass(frozen=True)
class Chain:
    """Rounds with drafts of one length."""

    guesses: int
    """0: plain decoding."""
    tokens: float
    """That a round yields."""
    draft: float
    """Seconds of the draft."""
    target: float
    """Seconds of the target's pass."""
    other: float
    """Seconds of the rest."""

    @property
    def seconds(self) -> float:
        return self.draft + self.target + self.other

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class WhatIf:
    """The answer for one batch."""

    drafter: str
    batch: int
    rates: tuple[float, ...]
    source: str
    """Of the rates."""
    chains: tuple[Chain, ...]
    """By guesses, from plain decoding on."""

    @property
    def has_weights(self) -> bool:
        """See ``has_weights``."""
        return has_weights(self.drafter)

    @property
    def best(self) -> Chain:
        """The fastest; of equals the shortest."""
        return max(self.chains, key=lambda each: (each.tokens_per_second, -each.guesses))

    @property
    def speedup(self) -> float:
        return self.best.tokens_per_second / self.chains[0].tokens_per_second

    @property
    def reason(self) -> str:
        """Why no further guess pays, a sentence."""
        best = self.best
        if best.guesses == len(self.rates):
            return f"Every guess pays for itself, up to the last that there is a rate for ({best.guesses})."
        following = self.chains[best.guesses + 1]
        gained = following.tokens - best.tokens
        worth = gained / best.tokens_per_second
        parts = ("target", "draft", "other")  # none of which takes less for more guesses, whatever noise says
        row, draft, other = (max(getattr(following, part) - getattr(best, part), 0.0) for part in parts)
        costs = "rows cost" if row >= draft else "drafting costs"
        return (
            f"{costs[0].upper()}{costs[1:]} too much from the {_place(following.guesses)} guess on: it would bring "
            f"{gained:.2f} tokens, worth {1e3 * worth:.2f} ms at {best.tokens_per_second:.0f} tokens/s, and take "
            f"{1e3 * (row + draft + other):.2f} ms ({1e3 * row:.2f} in the target's pass, {1e3 * draft:.2f} drafting)."
        )


def rates_of(named: str, told: str | None) -> tuple[tuple[float, ...], str]:
    """Chance that the first, the first two, ... guesses are right, and where that comes from; nothing where the guesses
    themselves are to be counted, since the weights are there.

    Raises:
        ConfigError: ``told`` are no rates, or there are none of this drafter.
    """
    if told is not None:
        chances = SyntheticOptions(rates=told).chances
        if not chances:
            raise ConfigError(f"--rates is {told!r:.60}; give numbers from 1 down to 0, as 0.8,0.65,0.5.")
        return tuple(np.cumprod(chances).tolist()), "as given"
    name = named.partition("=")[0]
    if name in PUBLISHED:
        return PUBLISHED[name].rates, PUBLISHED[name].source
    return (), "counted on the prompts"


def has_weights(named: str) -> bool:
    """Whether the drafter is there, so that its own guesses could be counted."""
    return named not in PUBLISHED and "=" not in named


def contender(named: str, length: int) -> Contender:
    """The stand-in of a drafter, to be measured.

    Raises:
        ConfigError: see ``stand_ins.require_known``.
    """
    require_known(named)
    return Contender(f"stand-in for {named}", lambda context: stand_in(context, named, length))


def measured(
    bench: Workbench,
    drafter: Contender,
    longest: int,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    batches: Sequence[int],
    turns: int,
    on_step: Callable[[int, int], None] = lambda units, tokens: None,
) -> list[Profile]:
    """Plain decoding and a drafter, whose chains have each length in turn up to the ``longest``.

    Every length is timed among rounds of its own kind, and all lie close together in time: a pass of few rows that
    follows upon drafts takes longer than one that follows upon passes, and a machine is not the same a minute later.
    """
    work = Workload(on_step)
    bench.on_tokens = work.done
    try:
        with work.part(planned_work(longest, len(prompts), params, batches, turns)):
            listed = {Contender.parse(PLAIN): (0,), drafter: range(longest, 0, -1)}
            return profiles(bench, listed, prompts, params, batches, turns)
    finally:
        bench.on_tokens = lambda tokens: None


def planned_work(longest: int, prompts: int, params: SamplingParams, batches: Sequence[int], turns: int) -> int:
    """Units of work of ``measured``, of about the time of a token each."""
    alone = max(prompts * (params.max_tokens or 1), turns * longest * BATCH_ROUNDS)
    return 2 * (alone + BATCH_ROUNDS * sum(batch for batch in batches if batch > 1))


def what_if(named: str, rates: Sequence[float], source: str, stand_in: Profile, plain: Profile, batch: int) -> WhatIf:
    """What a drafter would bring to batches of so many sequences.

    Args:
        rates: as ``rates_of`` has them; none: those of the stand-in's guesses.
        stand_in, plain: as ``measured``.
    """
    rates = tuple(rates) or counted_rates(stand_in)
    if not rates:
        raise ConfigError(f"{named} guessed nothing on these prompts; give --rates.")
    chains = [Chain(0, float(batch), *plain.costs(batch).of_chains(0))]
    for guesses in range(1, len(rates) + 1):
        tokens = batch * (1 + sum(rates[:guesses]))
        chains.append(Chain(guesses, tokens, *stand_in.costs(batch).of_chains(guesses)))
    return WhatIf(named, batch, rates, source, tuple(chains))


def counted_rates(profile: Profile) -> tuple[float, ...]:
    """How often the first, the first two, ... guesses of a chain held, where it was long enough."""
    rates = []
    for length in range(1, min(profile.longest, LONGEST) + 1):
        rounds = zip(profile.parents, profile.accepted, strict=True)
        judged = [len(path) >= length for tree, path in rounds if len(tree) >= length]
        rates.append(sum(judged) / len(judged))
    return tuple(np.minimum.accumulate(rates).tolist())


def _place(number: int) -> str:
    return _PLACES[number - 1] if number <= len(_PLACES) else f"{number}th"
