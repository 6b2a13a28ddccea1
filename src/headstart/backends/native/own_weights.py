"""Other weights of a model as a guesser of its stretches (``src/rounds/own_chains.h``)."""

from __future__ import annotations

from headstart.backends.native.library import Library, OwnWeights
from headstart.backends.native.packing import RopeTables


class NativeOwnWeights:
    """Says chains over the cache of the model whose other weights these are.

    Args:
        model: a packed model, that lives at least as long.
        ropes: its tables.
        depth: guesses at most.
    """

    def __init__(self, library: Library, model: int, ropes: RopeTables, depth: int) -> None:
        self.isa = library.isa
        self.compiled = OwnWeights(model=model, depth=depth)
        self._ropes = ropes

    def reach(self, positions: int) -> None:
        """Be ready for so many positions."""
        self._ropes.reach(positions)
