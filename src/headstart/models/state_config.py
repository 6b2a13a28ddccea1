"""What layers that keep a state in place of keys and values look like."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

StateNorm = Literal["after_gate", "before_gate", "none"]
"""Where the norm of what a state gives stands."""


MambaNorms = Literal["none", "unlearnt", "learnt"]
"""unlearnt: without weights (Falcon-Mamba); learnt: with (Jamba)."""


@dataclass(frozen=True)
class ConvolutionConfig:
    """A short convolution over gated rows (LFM2: Amini et al. 2025, section 2.1). Its state is the rows that it will
    look back at."""

    length: int
    """Rows that it sees, their own included."""
    bias: bool = False


@dataclass(frozen=True)
class MambaConfig:
    """A selective state space of channels, each with decays of its own (Mamba: Gu and Dao 2023, section 3). Its state
    is a vector [state_size] for each channel, and the rows that its convolution will look back at."""

    inner: int
    """Channels."""
    state_size: int
    step_rank: int
    """A row's steps are made from so many numbers."""
    length: int
    """Rows that the convolution sees, their own included."""
    kernel_bias: bool = True
    bias: bool = False
    """Of the projections."""
    norms: MambaNorms = "none"
    """RMS norms of what steps, writing and reading are made from."""
    norm_eps: float = 1e-6
    """Of these norms."""


@dataclass(frozen=True)
class Mamba2Config:
    """A selective state space of heads with one decay each (Mamba-2: Dao and Gu 2024, section 7). Its state is a matrix
    [head_dim, state_size] for each head, and the rows that its convolution will look back at."""

    heads: int
    head_dim: int
    state_size: int
    groups: int
    """Of heads that share what is written to their states and read from them; norms of the output, too."""
    length: int
    """Rows that the convolution sees, their own included."""
    kernel_bias: bool = True
    bias: bool = False
    """Of the projections."""
    least_step: float = 0.0
    most_step: float = math.inf
    norm_eps: float = 1e-5
    """Of the norm of what it gives."""
    norm: StateNorm = "after_gate"

    @property
    def inner(self) -> int:
        """Size of all heads."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution: what is written, and where to and from where."""
        return self.inner + 2 * self.groups * self.state_size


@dataclass(frozen=True)
class DeltaConfig:
    """The gated delta rule (Yang et al. 2025, equation 10). Its state is a matrix [key_dim, value_dim] for each head of
    values, and the rows that its convolution will look back at."""

    key_heads: int
    value_heads: int
    """Of which equally many share a head of keys and queries."""
    key_dim: int
    value_dim: int
    length: int
    """Rows that the convolution sees, their own included."""
    norm_eps: float = 1e-6
    """Of the norm of what a head gives, before the gate."""
    tiled: bool = False
    """Heads of values that share a head of keys stand as far apart as there are of those (GGUF); else side by side."""
    by_key: bool = False
    """Every number of a key decays by itself, and the gate is a sigmoid (Kimi Team 2025, section 3: KDA). Heads of keys
    and values are as many."""
    rank: int | None = None
    """Such decays and the gate are each made from so many numbers of a row; None: from the row itself."""
    least: float = 0.0
    """Such a decay's logarithm lies between it and 0; 0: it has no bound."""

    @property
    def keys(self) -> int:
        """Size of all heads of keys."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.keys + self.values
