"""How a request wants to be drafted and verified. Importing this imports nothing heavy."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from headstart.common.enumerations import VerifyRule
from headstart.common.options import Option, OptionError, declared
from headstart.errors import RequestError

if TYPE_CHECKING:
    from headstart.sampling.params import SamplingParams

GROUP = "Speculation"

DraftTokens = Annotated[
    int | None,
    Option("Most tokens guessed ahead (the depth of a draft); 0: no speculation.", GROUP, metavar="K", least=0),
]
TreeNodes = Annotated[
    int | None,
    Option("Most guesses in a draft tree, all branches together; 0: no speculation.", GROUP, metavar="N", least=0),
]
VERIFY = Option(
    "How guesses that were drawn at random are checked. Every rule keeps the distribution; coupled also keeps the very "
    "tokens of plain decoding with the same seed.",
    GROUP,
)
Lenience = Annotated[
    float | None,
    Option(
        "LOSSY: also accept guesses that the target finds less likely than the draft does, by up to this factor, where "
        "1 is lossless. The output no longer follows the target's law.",
        GROUP,
        metavar="L",
        above=0,
        most=1,
    ),
]
Typical = Annotated[
    float | None,
    Option(
        "LOSSY: Medusa's typical acceptance, which keeps every guess that the target finds plausible; its epsilon, "
        "0.09 in the paper. The output no longer follows the target's law, unless temperature is 0.",
        GROUP,
        metavar="EPSILON",
        above=0,
        below=1,
    ),
]


@dataclass(frozen=True)
class SpeculationParams:
    """How one request wants to be drafted and verified. None: the engine's or the drafter's own choice."""

    enabled: bool = True
    """False: plain decoding."""
    drafter: str | None = None
    """Which of the engine's drafters guesses, where it has several."""
    draft_tokens: DraftTokens = None
    """Depth of the draft at most."""
    tree_nodes: TreeNodes = None
    """Nodes of the draft at most."""
    verify: Annotated[VerifyRule, VERIFY] = VerifyRule.AUTO
    """COUPLED asks drafters that sample to share the target's noise (Gumbel coupling): their trees are point masses. A
    rule's value ("coupled") stands for it."""
    lenience: Lenience = None
    """LOSSY opt-in (paper A.5): a guess x is also accepted where p(x) is smaller than q(x) by up to this factor."""
    typical: Typical = None
    """LOSSY opt-in (Medusa's typical acceptance): every guess stays that the target finds plausible; the epsilon of
    ``verification.typical``, the paper's is 0.09. Greedy requests lose nothing."""
    prediction: str | tuple[int, ...] = ()
    """What the output is expected to resemble, such as a text that is to be edited; changes nothing but the guesses of
    drafters that look up what followed before (``suffix``, and ``auto`` with it). To drafters it is token ids."""

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise RequestError(f"enabled is {self.enabled!r}; it must be True or False.")
        try:
            for each in declared(SpeculationParams):
                object.__setattr__(self, each.name, each.checked(getattr(self, each.name)))
        except OptionError as error:
            raise RequestError(str(error)) from None
        if not isinstance(self.prediction, str):
            try:
                object.__setattr__(self, "prediction", tuple(map(operator.index, self.prediction)))
            except TypeError:
                raise RequestError(f"prediction is {self.prediction!r:.40}; give a text or token ids.") from None
        if self.lenience is not None and self.typical is not None:
            raise RequestError(f"lenience is {self.lenience} and typical {self.typical}; choose one of the two.")

    @property
    def lossy(self) -> str | None:
        """The name of the rule asked for that does not keep the target's law, None for exact ones."""
        if self.typical is not None:
            return "typical"
        return "lenience" if self.lenience is not None and self.lenience < 1 else None

    def lossy_for(self, params: SamplingParams) -> str | None:
        """The same for one request: greedy ones lose nothing by typical acceptance."""
        return None if self.lossy == "typical" and params.greedy else self.lossy
