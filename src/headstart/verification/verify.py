"""The one door to the rules: which of them serves a tree."""

from __future__ import annotations

from headstart.common.enumerations import VerifyRule
from headstart.errors import ConfigError
from headstart.passes.draft_tree import DraftTree, TreeLaw
from headstart.sampling.noise import SequenceNoise
from headstart.verification.base import NodeLaws, Verdict
from headstart.verification.block import judge_block
from headstart.verification.chain import judge_chain
from headstart.verification.coupled import walk
from headstart.verification.lenient import verify_lenient
from headstart.verification.tree import verify_draws
from headstart.verification.typical import verify_typical


def verify(
    tree: DraftTree,
    laws: NodeLaws,
    noise: SequenceNoise,
    root_position: int,
    rule: VerifyRule = VerifyRule.AUTO,
    lenience: float | None = None,
    typical: float | None = None,
) -> Verdict:
    """What the target says to ``tree``: the accepted path, then one more token.

    ``root_position`` is the position of the root token and keys the noise of sampled rules. The output follows the
    target's law under every ``rule`` (see ``VerifyRule``), unless ``lenience`` or ``typical`` asks for a
    lossy opt-in. Probe nodes are never verified. The empty tree is plain decoding.

    Raises:
        ConfigError: ``lenience`` outside (0, 1], ``typical`` outside (0, 1), or both.
        RequestError: from ``laws``, where a row's logits give no law.
    """
    if lenience is not None and typical is not None:
        raise ConfigError(f"lenience is {lenience} and typical {typical}; choose one of the two.")
    if typical is not None:
        return verify_typical(tree, laws, typical)
    if lenience is not None:
        return verify_lenient(tree, laws, noise, root_position, lenience)
    if laws.greedy or tree.law is TreeLaw.POINT_MASS or rule is VerifyRule.COUPLED:
        return walk(tree, laws)
    judge = judge_chain if rule is VerifyRule.REJECTION else judge_block
    return verify_draws(tree, laws, noise, root_position, judge)
