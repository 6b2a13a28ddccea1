"""Calling a transformers model over one row of tokens."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headstart.errors import ConfigError
from headstart.passes.batch import FINAL_TAP, NO_STATES, IntArray, TapStates

_CACHES = ("cache", "past_key_values", "cache_params", "state")
"""What models call what they remember, as an argument and in what they return; the first from transformers 5.24 on."""


@dataclass(frozen=True)
class Called:
    """What a call gives."""

    logits: Tensor
    """float32 [kept row, vocab]."""
    hidden: TapStates
    """Of all rows."""
    cache: Any = None
    """What the model remembers, as its code has it; None: nothing."""


class Caller:
    """One model, and what its ``forward`` takes.

    Args:
        model: in evaluation mode, on its device.
        num_layers: of its decoder.
        vocab_size: as it is described; a call over it tells how many logits there are (``find_way``).
    """

    def __init__(self, model: PreTrainedModel, num_layers: int, vocab_size: int) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.device: torch.device = model.device
        self._num_layers = num_layers
        table = getattr(model.get_input_embeddings(), "weight", None)
        self._readable = None if table is None else len(table)
        """Tokens that the model has an embedding of: others cannot be said, for they could not be read again."""
        taken = inspect.signature(model.forward).parameters
        self._takes = frozenset(taken)
        self._takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
        self.cache_name = next((name for name in _CACHES if name in self._takes), None)
        """Of the argument that takes what a model remembers."""

    @property
    def takes_positions(self) -> bool:
        """Whether a row's position can be given."""
        return "position_ids" in self._takes

    @torch.inference_mode()
    def __call__(
        self,
        tokens: IntArray,
        keep: IntArray,
        taps: Sequence[int] = (),
        positions: IntArray | None = None,
        cache: Any = None,
        **settings: Any,
    ) -> Called:
        """One call.

        Args:
            tokens: [row].
            keep: rows whose logits are wanted, ascending.
            taps: as in ``PassBatch``.
            positions: [row]; None, or where the model takes none: those after the cache's tokens.
            cache: what the model remembers.
        """
        if positions is not None and self.takes_positions:
            settings["position_ids"] = self._ids(positions)
        if cache is not None and self.cache_name is not None:
            settings[self.cache_name] = cache
        # A head over no row at all is more than some models can do.
        rows = torch.from_numpy(np.ascontiguousarray(keep if len(keep) else [len(tokens) - 1]).astype(np.int64))
        kept = rows.to(self.device)
        narrow = "logits_to_keep" in self._takes
        if narrow:
            settings["logits_to_keep"] = kept
        if taps:
            settings["output_hidden_states"] = True
        known = {name: value for name, value in settings.items() if self._takes_any or name in self._takes}
        output = self.model(input_ids=self._ids(tokens), return_dict=True, **known)
        logits = output.logits[0] if narrow else output.logits[0].index_select(0, kept)
        found = getattr(output, self.cache_name, None) if self.cache_name is not None else None
        return Called(logits[: len(keep), : self._readable].float(), self._taps(output, taps), found)

    def _ids(self, values: IntArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values).astype(np.int64))[None].to(self.device)

    def _taps(self, output: Any, taps: Sequence[int]) -> TapStates:
        """Of transformers' states: the input of each layer, then the last layer's output after the final norm."""
        states: Sequence[Tensor] | None = getattr(output, "hidden_states", None) if taps else None
        if not taps:
            return NO_STATES
        if states is None or len(states) != self._num_layers + 1:
            raise ConfigError(
                "this model does not show the states of its layers, which the drafter needs; use another."
            )
        found: dict[int, Tensor] = {}
        for tap in taps:
            if tap == self._num_layers:
                raise ConfigError(
                    "transformers does not show a last layer's output before its norm; use another drafter."
                )
            found[tap] = states[-1 if tap == FINAL_TAP else tap][0]
        return TapStates.of(found)
