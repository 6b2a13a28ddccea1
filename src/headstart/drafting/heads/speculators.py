"""What all heads have in common in the files of vLLM's speculators."""

from __future__ import annotations

from typing import Any

SPECULATORS_VERSION = "0.3.0"
"""The format's version that is written."""


def speculators_config(algorithm: str, tokens: int, verifier: str) -> dict[str, Any]:
    """The entry that says how a head is used: guesses of a round, and the target's name."""
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "algorithm": algorithm,
        "default_proposal_method": "greedy",
        "proposal_methods": [proposal],
        "verifier": {"name_or_path": verifier, "architectures": ["LlamaForCausalLM"]},
    }
