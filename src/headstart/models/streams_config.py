"""What models with several residual streams look like."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StreamsConfig:
    """Several residual streams, of which the layer computes the first; the others follow by what each layer predicts
    and corrects (alternating updates: Baykal et al. 2023, section 3)."""

    count: int
    scaled: bool = True
    """The first one is scaled before inputs of layers are added to the others."""


@dataclass(frozen=True)
class HyperConfig:
    """Several residual streams, of which each part of a layer reads a mixture; what it gives is added to all of them,
    and they are mixed (manifold-constrained hyper-connections: Xie et al. 2026)."""

    count: int
    rounds: int
    """Of making what mixes them doubly stochastic (Sinkhorn and Knopp); 0: they are not mixed (HY-V4)."""
    eps: float
    most: float = 2.0
    """The largest share of what a part gives."""
    merges: bool = False
    """What the layers give is a mixture that all streams tell; else it is their mean."""

    @property
    def told(self) -> tuple[int, ...]:
        """How many numbers all streams tell a part: shares read, shares given, and what mixes them."""
        return (self.count, self.count, self.count**2) if self.rounds else (self.count, self.count)
