"""``BackendKit`` by the native library, for targets whose passes run on the processor."""

from __future__ import annotations

from headstart.backends.native.library import Library
from headstart.backends.native.linear import head_precision, native_kit
from headstart.backends.native.precision import Precision
from headstart.backends.native.sampling import NativeRows
from headstart.backends.native.suffix_text import NativeSuffixText
from headstart.backends.torch.head_kit import Kit
from headstart.backends.torch.kit import TorchKit
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.method import NATIVE, HeadPasses, RunsHead
from headstart.passes.backend import TextBounds


class NativeKit:
    """Heads, rows of logits and indexed texts in compiled code; a head that it cannot run is left to PyTorch.

    Args:
        precision: the target's, in which its own layers guess.
    """

    def __init__(self, library: Library, precision: Precision = "nearest") -> None:
        self._library, self.precision = library, precision
        self.isa = library.isa
        self.rows = NativeRows(library)

    @property
    def has_cheap_rows(self) -> bool:
        """See ``BackendKit``."""
        return self._library.has_matrix_unit

    def run(
        self, passes: HeadPasses[RunsHead], head: object, tables: TargetTables, precision: str, **wishes: int
    ) -> RunsHead:
        """See ``BackendKit``."""
        if passes.left_to_torch(head) is None:
            own = self.precision if passes.as_the_target and precision == "auto" else head_precision(precision)
            return passes.by_library()(head, tables, own, isa=self.isa, **wishes)
        if passes.by_products:
            return passes.by_torch()(head, tables, self.products(precision), **wishes)
        return TorchKit().run(passes, head, tables, precision, **wishes)

    def where(self, passes: HeadPasses[RunsHead], head: object) -> str:
        """See ``BackendKit``."""
        reason = passes.left_to_torch(head)
        return NATIVE if reason is None else f"PyTorch, since {reason}"

    def products(self, precision: str) -> Kit:
        """Compiled products, for a head that is left to PyTorch else."""
        kit = native_kit(head_precision(precision), isa=self.isa)
        assert kit is not None  # the library is there
        return kit

    def text_index(self, bounds: TextBounds) -> NativeSuffixText:
        """See ``BackendKit``."""
        return NativeSuffixText(self._library, bounds)
