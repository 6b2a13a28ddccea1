"""The verification rules, enumerated: what a round says is what the target would have said, to the last digit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from headstart.common.enumerations import VerifyRule
from headstart.verification.verify import verify as production_verify
from headstart_lab.audit.cases import Case, cases
from headstart_lab.audit.oracle import NoiseReusedError, Verify, largest_error, output_law, product_law

TOLERANCE = 1e-12
"""Of a probability: rounding in float64."""
_CONTROL_LENIENCE = 0.5


@dataclass(frozen=True)
class RuleFindings:
    """What enumerating every case under every rule that serves it has shown."""

    enumerated: int
    largest_error: float
    """Of the probability of any output."""
    broken: tuple[str, ...]
    """Cases whose law is wrong, or in which one random number decided two things."""
    control_error: float
    """The error of a rule that is known to be lossy: large, or the enumeration itself is blind."""

    @property
    def passed(self) -> bool:
        return not self.broken and self.control_error > 1e-3


def check_rules(verify: Verify = production_verify, toys: Sequence[Case] | None = None) -> RuleFindings:
    """Enumerate the law of toy cases, all of ``verification.cases`` if none are given."""
    toys = list(cases()) if toys is None else toys
    errors = {f"{toy.name}, {rule.value}": _error(toy, rule, verify) for toy in toys for rule in toy.rules}
    control = _error(toys[0], VerifyRule.AUTO, production_verify, _CONTROL_LENIENCE)
    broken = tuple(name for name, error in errors.items() if not error <= TOLERANCE)
    return RuleFindings(len(errors), max(errors.values()), broken, control)


def _error(case: Case, rule: VerifyRule, verify: Verify, lenience: float | None = None) -> float:
    try:
        law = output_law(case.target, case.propose, case.length, rule=rule, verify=verify, lenience=lenience)
    except NoiseReusedError:
        return inf
    return largest_error(law.probs, product_law(case.target, case.length))
