"""``BackendKit`` by the native library, for targets whose passes run on the processor."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.backends.native.block_pass import NativeBlockPass, supports_block
from headstart.backends.native.heads import NativeEaglePass, supports_head
from headstart.backends.native.library import Library
from headstart.backends.native.linear import FASTEST_PRECISION, native_kit
from headstart.backends.native.masked_pass import NativeMaskedPass
from headstart.backends.native.module_chain import NativeModuleChain
from headstart.backends.native.module_pass import NativeModulePass
from headstart.backends.native.precision import Precision
from headstart.backends.native.sampling import NativeRows
from headstart.backends.native.suffix_text import NativeSuffixText
from headstart.backends.native.supported import supports
from headstart.backends.torch.block_pass import BlockPass
from headstart.backends.torch.eagle_pass import EaglePass
from headstart.backends.torch.kit import TorchKit
from headstart.backends.torch.masked_pass import MaskedPass
from headstart.backends.torch.parallel_pass import Kit, ParallelPass
from headstart.drafting.heads.head_pass import ModulesPass
from headstart.drafting.heads.parallel import ParallelHeads
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.models.multi_token import MultiTokenModules


class NativeKit:
    """Heads, rows of logits and indexed texts in compiled code; a head that it cannot run is left to PyTorch.

    Args:
        precision: the target's, in which its own layers guess.
    """

    def __init__(self, library: Library, precision: Precision = "nearest") -> None:
        self._library, self._precision = library, precision
        self.rows = NativeRows(library)

    @property
    def has_cheap_rows(self) -> bool:
        """See ``BackendKit``."""
        return self._library.has_matrix_unit

    def head_pass(self, head: EagleHead, tables: TargetTables, precision: str) -> NativeEaglePass | EaglePass:
        """See ``BackendKit``."""
        if supports_head(head.config) is not None:
            return TorchKit().head_pass(head, tables, precision)
        return NativeEaglePass(head, tables, _named(precision), isa=self._library.isa)

    def masked_pass(self, head: EagleHead, tables: TargetTables, precision: str) -> NativeMaskedPass | MaskedPass:
        """See ``BackendKit``."""
        if supports_head(head.config) is not None:
            return TorchKit().masked_pass(head, tables, precision)
        return NativeMaskedPass(head, tables, _named(precision), isa=self._library.isa)

    def block_pass(self, head: BlockHead, tables: TargetTables, precision: str) -> NativeBlockPass | BlockPass:
        """See ``BackendKit``; of a head that is left to PyTorch the products are compiled all the same."""
        if supports_block(head.config) is not None:
            return BlockPass(head, tables, self._products(precision))
        return NativeBlockPass(head, tables, _named(precision), isa=self._library.isa)

    def parallel_pass(self, heads: ParallelHeads, tables: TargetTables, precision: str) -> ParallelPass:
        """See ``BackendKit``."""
        return ParallelPass(heads, tables, self._products(precision))

    def multi_token_pass(
        self, modules: MultiTokenModules, tables: TargetTables, precision: str, vocabulary: int = 0
    ) -> ModulesPass:
        """See ``BackendKit``."""
        if supports(modules.config) is not None:
            return TorchKit().multi_token_pass(modules, tables, precision)
        own: Precision = self._precision if precision == "auto" else precision  # type: ignore[assignment]
        running = NativeModulePass if len(modules.modules) == 1 else NativeModuleChain
        return running(modules, tables, own, vocabulary, isa=self._library.isa)

    def text_index(
        self,
        max_depth: int,
        *,
        matches: Sequence[float],
        ratios: Sequence[float],
        factor: float,
        offset: float,
        min_probability: float,
        nodes: int,
    ) -> NativeSuffixText:
        """See ``BackendKit``."""
        return NativeSuffixText(
            self._library,
            max_depth,
            matches=matches,
            ratios=ratios,
            factor=factor,
            offset=offset,
            min_probability=min_probability,
            nodes=nodes,
        )

    def _products(self, precision: str) -> Kit:
        kit = native_kit(_named(precision), isa=self._library.isa)
        assert kit is not None  # the library is there
        return kit


def _named(precision: str) -> Precision:
    return FASTEST_PRECISION if precision == "auto" else precision  # type: ignore[return-value]
