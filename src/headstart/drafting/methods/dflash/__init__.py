"""The method dflash."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headstart.drafting.method import HeadFiles, HeadPasses, Method, Trained

if TYPE_CHECKING:
    from headstart.drafting.heads.head_pass import BlockHeadPass

METHODS = (
    Method(
        "dflash",
        "the likeliest paths of a block that a trained head guesses in one pass (also called dflash2, dspark, jetspec)",
        "Chen et al. 2026, DFlash (arXiv:2602.06036); DDTree (arXiv:2604.12989), DSpark (arXiv:2607.05147)",
        f"{__name__}.drafter:DFlashDrafter",
        "head",
        other_names=("dflash2", "dspark", "jetspec"),
    ),
)

_DFLASH = Trained(
    "dflash",
    "headstart_train.first_steps.block:make",
    settings=("slots", "layers", "init", "causal", "markov_rank", "confidence", "root_speaks", "spacing"),
    slots=9,
    in_blocks=True,
    optimiser="muon",
)
# Its kin: arXiv:2607.05147, 2606.18394.
_DSPARK = {"slots": 7, "markov_rank": 64, "confidence": True, "root_speaks": True}
_JETSPEC = {"slots": 16, "causal": True}
TRAINED = (
    _DFLASH,
    replace(_DFLASH, name="dspark", trunk="dflash", defaults=_DSPARK),
    replace(_DFLASH, name="jetspec", trunk="dflash", defaults=_JETSPEC),
)

HEAD_FILES = HeadFiles(f"{__name__}.files", exports={"dflash": ("speculators", "specforge", "deepspec")})

PASSES: HeadPasses[BlockHeadPass] = HeadPasses(
    "headstart.backends.torch.block_pass:BlockPass",
    "headstart.backends.native.block_pass:NativeBlockPass",
    "headstart.backends.native.block_pass:supports_block",
    by_products=True,
)
