"""Names that users of a training choose from, each set once. Importing them imports nothing heavy."""

from __future__ import annotations

from typing import Literal

LossName = Literal["ce", "tv", "lk", "dpace"]
"""What is learnt (``objectives.losses``)."""
OptimiserName = Literal["muon", "adamw"]
"""How (``optimiser``)."""
