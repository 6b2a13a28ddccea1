"""What layers whose rows go through some of many MLPs look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ExpertScore = Literal["softmax", "sigmoid", "sparsemixer", "sqrtsoftplus"]
GroupScore = Literal["best", "two_best"]


@dataclass(frozen=True)
class ExpertsConfig:
    """A mixture of experts: MLPs, of which every row goes through a few."""

    count: int
    used: int
    """How many a row goes through."""
    size: int
    """Inner size of one."""
    idle: int = 0
    """Further ones that may be chosen, which give what they read (LongCat-Flash)."""
    gated: bool = True
    shared_size: int = 0
    """Of the MLP that all rows go through besides; 0: there is none."""
    shared_gate: bool = False
    """What that gives is times sigmoid(gate(row)) (Qwen2-MoE); a gate that no file names is 0, and a half counts
    (Cohere's average)."""
    score: ExpertScore = "softmax"
    """What makes scores of the router's logits; sparsemixer: Phi-3.5-MoE, section 2.1; sqrtsoftplus:
    the root of its softplus (DeepSeek-V4)."""
    correction: bool = False
    """A number for each expert is added to its score for the choice alone (DeepSeek-V3, section 2.1.2)."""
    groups: int = 1
    groups_used: int = 1
    """Only experts of the best groups are chosen."""
    group_score: GroupScore = "best"
    """A group is as good as its best expert (DeepSeek-V2), or as its two best together (V3)."""
    normalised: bool = False
    """The scores of the chosen ones are divided by their sum."""
    scale: float = 1.0
    """Of the scores, after that."""
    scales_input: bool = False
    """A score is a factor of what its expert reads, not of what it gives (Llama 4)."""
    router_bias: bool = False
    bias: bool = False
    router_norm: bool = False
    """The router reads the row after a norm of its own (Gemma 4)."""
    own_scales: bool = False
    """A learnt factor of each expert's score, after all that."""
    clamp: float | None = None
    """gpt-oss: gate and up are cut off at it, up counts from -1, and silu's slope is 1.702."""
