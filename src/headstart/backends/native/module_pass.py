"""Multi-token modules on the native library: decoders of one layer that read states beside their tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headstart.backends.native.caching_pass import CachingModel
from headstart.backends.native.loader import load_library
from headstart.backends.native.packed_model import PackedModel
from headstart.backends.native.packing import BORROWED, RowTable, as_float32, as_one
from headstart.backends.native.precision import Precision
from headstart.backends.native.stepping_pass import NativeSteppingPass
from headstart.backends.native.stored_rows import StoredRows
from headstart.backends.native.supported import supports
from headstart.backends.native.team import team_size
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.errors import ConfigError
from headstart.models.multi_token_modules import MultiTokenModules
from headstart.models.stored import first_rows
from headstart.passes.batch import IntArray, stream_taps

_BEHIND_LAST_NORM = -1


class NativeModulePass(NativeSteppingPass):
    """One module, in the target's own precision and blocks.

    The embedding is read where it lies. Of the output head a copy is packed; one that is cut gets blocks of 4 bits, as
    trained heads do (docs/decisions/0025), where the precision has any.

    Args:
        modules: ``supports`` of their configuration must be None.
        tables: the target's.
        precision: as of ``NativeBackend``.
        vocabulary: how many of the target's first tokens it says; 0: all.
        module: which of them.
        threads: team size, None for ``backends.native.team``'s.
        isa: instruction set to use instead of the fastest (see ``load_library``).

    Raises:
        ConfigError: the native pass cannot run such layers, there is none on this machine, or memory is short.
    """

    @torch.inference_mode()
    def __init__(
        self,
        modules: MultiTokenModules,
        tables: TargetTables,
        precision: Precision = "bf16",
        vocabulary: int = 0,
        module: int = 0,
        threads: int | None = None,
        isa: str | None = None,
    ) -> None:
        self.config = config = modules.config_of(module)
        reason, library = supports(config), load_library(isa)
        if reason is not None or library is None:
            raise ConfigError(f"no native pass for these modules ({reason or 'none on this machine'}); use PyTorch")
        tables = tables.with_others(modules.embedding, modules.head_of(module))
        vocabulary = 0 if modules.streams else vocabulary  # what says a token is not what is fed back
        embedding, self._whole_head = as_one(tables.stored_embedding), tables.stored_head
        head = first_rows(self._whole_head, vocabulary) if vocabulary else self._whole_head
        weights = modules.decoder(module, embedding, head)
        small_head = 0 < vocabulary < self._whole_head.shape[0]
        packed = PackedModel(self, library, config, weights, precision, threads or team_size(), small_head)
        table = RowTable(library, embedding)
        library.set_embedding(packed.handle, table.rows, BORROWED, None, 0)
        self.name = f"native-{library.isa}-{packed.name}"
        model = CachingModel(library, packed.handle, packed.shape, packed, table)
        self._factors: Tensor | None = None
        self.text_eps = config.norms.eps if modules.feeds_unnormed else None
        if modules.feeds_unnormed:
            self._factors = as_float32(modules.modules[module].final_norm.weight) + config.norms.offset
        tap = config.num_layers if modules.feeds_unnormed else _BEHIND_LAST_NORM
        tap = tap if modules.streams is None else stream_taps(modules.streams + 1)[-1]  # all of them side by side
        super().__init__(model, config.ropes, torch.arange(packed.shape.vocab), tap)
        self._hidden = modules.state_size

    def rows(
        self, tokens: IntArray, before: Tensor, groups: Sequence[DraftRows], said: IntArray
    ) -> tuple[Tensor, Tensor]:
        """States [row, hidden] of rows that are true, or of drafts, and logits of the rows ``said``."""
        return self._run(tokens, before, groups, said, true=groups[0].paths is None, lean=False)

    def text_rows(self, vocab_size: int) -> StoredRows | None:
        """See ``ModulesPass``."""
        said = len(self.target_ids)
        if said >= vocab_size:
            return None
        return StoredRows(self._library, self._whole_head, said, vocab_size, self._factors)

    def said_states(self, states: Tensor, level: int) -> Tensor:
        """See ``ModulesPass``."""
        return states
