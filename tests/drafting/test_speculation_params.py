from __future__ import annotations

from typing import Any

import pytest

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SpeculationParams
from headstart.errors import RequestError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enabled", "no"),
        ("enabled", None),
        ("draft_tokens", -1),
        ("draft_tokens", "4"),
        ("draft_tokens", 2.5),
        ("tree_nodes", -1),
        ("tree_nodes", True),
        ("verify", "sometimes"),
        ("verify", None),
        ("lenience", 0),
        ("lenience", 1.5),
        ("lenience", "0.5"),
        ("typical", 1),
        ("typical", "0.09"),
        ("prediction", 5),
        ("prediction", ["a"]),
    ],
)
def test_a_bad_wish_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{field} is "):
        SpeculationParams(**{field: value})


@pytest.mark.parametrize("rule", VerifyRule)
def test_a_rule_may_be_named_by_its_value(rule: VerifyRule) -> None:
    assert SpeculationParams(verify=rule.value).verify is rule  # type: ignore[arg-type]
