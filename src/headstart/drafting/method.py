"""What a method of drafting says of itself: the rows that its folder in ``methods/`` adds to the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

OWN_LAYERS = "some of the target's own layers"

Kind = Literal["plain", "text", "target", "model", "head", "several"]
"""What a drafter runs: nothing; text it has seen; the target's own passes; a draft model; a trained head; others."""
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Method:
    """One drafter. A folder of ``methods/`` lists its own in ``METHODS``."""

    name: str
    summary: str
    """One line: how it guesses."""
    source: str
    """The paper, or the project it follows."""
    drafter: str
    """Where the class is: ``module:Class``."""
    kind: Kind = "text"
    usual: bool = False
    """Pays often enough, as it comes, to be measured where nobody names drafters."""
    runs_others: bool = False
    """Its guesses are those of other drafters."""
    free: bool = False
    """Needs no second model and costs nothing until a request names it."""
    untaught: str = ""
    """What it guesses with where no model is named, if nobody has taught that to guess."""
    from_tokens: bool = False
    """It needs nothing but a sequence's tokens, so that another engine can run it (``headstart.integrations``)."""
    default_for: Literal["", "model", "module", "engine"] = ""
    """Where nobody is named it guesses with a draft model, with a multi-token module alone, in another engine."""
    other_names: tuple[str, ...] = ()
    """Names of its kin, whose heads it runs, too."""
