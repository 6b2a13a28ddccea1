"""What an audit of a server has found, check by check, and the one line that sums it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headstart_lab.audit.goodness import WEAK, Goodness

FAMILY_ERROR = 1e-3
"""Chance that any of the law tests of an audit fails though nothing is wrong (Bonferroni)."""
POWER = 0.9


class Result(StrEnum):
    """How a check ended."""

    PASS = "pass"
    ROUNDING = "pass but for rounding"
    """Something differs, and each time the model's best tokens were as good as equal."""
    UNCLEAR = "not judged"
    """There was nothing to judge by, or nothing that tells rounding from a fault."""
    NOT_OFFERED = "not offered"
    """The server refuses the field, or does not know it."""
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One check."""

    check: str
    trials: int
    """Answers, texts or draws that were judged."""
    unit: str
    """What ``trials`` counts, in the plural."""
    wanted: Result
    """How it ended; for a law test before all p-values are known: PASS."""
    said: str = ""
    """What was found, in a few words; empty: nothing worth saying."""
    law: Goodness | None = None
    details: tuple[dict[str, Any], ...] = ()
    """Where things differ, one by one."""

    @property
    def share_found(self) -> float | None:
        """A fault that shows in this share of the trials would have been seen nine times in ten; None: no trial, or a
        law test, which says it in other terms."""
        if self.law is not None or not self.trials:
            return None
        return float(1 - (1 - POWER) ** (1 / self.trials))


def passed(check: str, trials: int, unit: str, said: str = "") -> Finding:
    """Nothing wrong in ``trials``; none of them: nothing judged."""
    return Finding(check, trials, unit, Result.PASS if trials else Result.UNCLEAR, said or ("" if trials else "none"))


def failed(check: str, trials: int, unit: str, said: str, details: Sequence[dict[str, Any]] = ()) -> Finding:
    return Finding(check, trials, unit, Result.FAIL, said, details=tuple(details))


def not_offered(check: str, why: str) -> Finding:
    return Finding(check, 0, "", Result.NOT_OFFERED, why)


def unclear(check: str, trials: int, unit: str, why: str, details: Sequence[dict[str, Any]] = ()) -> Finding:
    return Finding(check, trials, unit, Result.UNCLEAR, why, details=tuple(details))


@dataclass
class EndpointAudit:
    """Everything that was found about a server."""

    url: str
    model: str
    against: str | None = None
    findings: list[Finding] = field(default_factory=list)
    requests: int = 0
    cut_short: bool = False
    """Not everything was checked that was to be."""
    ended: str = ""
    """Why the server could be asked no more; empty: it answered to the end."""

    @property
    def laws(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.law is not None]

    @property
    def least_p_value(self) -> float:
        """What no law test may fall below."""
        return FAMILY_ERROR / max(len(self.laws), 1)

    def result(self, finding: Finding) -> Result:
        """How a check ended, now that all are known."""
        if finding.law is not None and finding.law.p_value < self.least_p_value:
            return Result.FAIL
        if finding.law is not None and finding.wanted is Result.PASS and self.detectable(finding) is None:
            return Result.UNCLEAR
        return finding.wanted

    def detectable(self, finding: Finding) -> float | None:
        """How far off a law had to be for its test to find it nine times in ten (total variation); None: too few
        draws to find it, however far."""
        return None if finding.law is None else finding.law.detectable(self.least_p_value, POWER)

    def of(self, *results: Result) -> list[Finding]:
        """The checks that ended so."""
        return [finding for finding in self.findings if self.result(finding) in results]

    @property
    def faults(self) -> list[str]:
        """What must not be, a sentence each; empty: the audit is passed."""
        return [f"{finding.check}: {self.words(finding)}" for finding in self.of(Result.FAIL)]

    @property
    def passed(self) -> bool:
        """Everything was checked, and nothing is wrong."""
        return not self.faults and not self.cut_short

    def words(self, finding: Finding) -> str:
        """What was found, with the p-value of a law."""
        if finding.law is None:
            return finding.said
        if finding.law.p_value < self.least_p_value:
            return f"the draws do not follow the law (p = {finding.law.p_value:.1e}){_behind(finding.said)}"
        return finding.said

    @property
    def verdict(self) -> str:
        """One line."""
        if self.faults:
            more = len(self.faults) - 1
            return f"FAIL: {self.faults[0].rstrip('.')}" + (f"; and {more} more." if more else ".")
        good = self.of(Result.PASS, Result.ROUNDING)
        texts = [finding for finding in good if finding.law is None]
        parts = [f"{len(texts)} checks of {sum(finding.trials for finding in texts)} answers hold"]
        if rounding := self.of(Result.ROUNDING):
            parts[0] += f", but for rounding in {', '.join(finding.check for finding in rounding)}"
        if laws := [finding for finding in good if finding.law is not None]:
            least = min(finding.law.p_value for finding in laws if finding.law is not None)
            furthest = max(distance for law in laws if (distance := self.detectable(law)) is not None)
            parts.append(
                f"draws follow the law in {len(laws)} tests (least p = {least:.2g}; a law {furthest:.2f} off would be "
                "found)"
            )
        for result in (Result.UNCLEAR, Result.NOT_OFFERED):
            if named := self.of(result):
                parts.append(f"{result.value}: {', '.join(finding.check for finding in named)}")
        if self.weakness:
            parts.append(self.weakness)
        word = "UNFINISHED, nothing wrong so far" if self.cut_short else "WEAK PASS" if self.weakness else "PASS"
        return f"{word}: {'; '.join(parts)}."

    @property
    def weakness(self) -> str:
        """Why a verdict in which nothing is wrong says little, in a few words; empty: it does not."""
        found = [distance for law in self.laws if (distance := self.detectable(law)) is not None]
        if not found:
            return "weak, since no draws were held against a law"
        if max(found) > WEAK:
            return f"weak, since a law less than {max(found):.2f} off would not be seen: give more --samples"
        return ""


def _behind(said: str) -> str:
    return f"; {said}" if said else ""
