"""Which way of running a model keeps its logits: tried on a few tokens, for the model's own code is not ours to know.

Two sequences are read in pieces, with a tree of guesses in one of them, one path of it kept. Every row's logits must be
those of a plain call over the row's whole path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from headstart.common.memory import free_bytes, is_lack_of_memory
from headstart.errors import CheckpointError
from headstart.passes.batch import IntArray, PassBatch
from headstart_integrations.transformers.calls import Called, Caller
from headstart_integrations.transformers.carried import CachePlan
from headstart_integrations.transformers.packed import NAME, Packed, Recorder, attending, register
from headstart_integrations.transformers.paths import ByPath, Carrying
from headstart_integrations.transformers.storage import PageShape, TransformersStorage

_BLOCK = 4
_BLOCKS = 4
"""Of each of the two sequences."""
_TOKENS = 12
_ALLOWED, _ALLOWED_ROUNDED = 3e-3, 0.2
"""Difference of logits in float32 and in less, as a share of the largest one: what is forgotten shows in more."""

logger = logging.getLogger(__name__)


class Way(Protocol):
    """How passes of a model are run."""

    layers: list[PageShape]
    """What is kept of a token in pages."""

    def forward(self, batch: PassBatch, storage: TransformersStorage) -> Called:
        """Run one pass."""
        ...


def find_way(call: Caller, name: str) -> tuple[Way, str]:
    """The quickest way that keeps the model's logits, and what is to be said of it. ``call.vocab_size`` becomes the
    number of its logits, which may be another than its configuration's.

    Raises:
        CheckpointError: there is none.
    """
    tokens = np.arange(5, 5 + 7 * _TOKENS, 7, dtype=np.int32) % (call.vocab_size - 1) + 1
    call.vocab_size = _logits_of_a_pass(call, tokens, name)
    with _full_precision(call.model) as changed:
        place, way, remark = _first_that_fits(call, tokens, name)
    if changed:
        # Made again, for pages of the model's own type.
        again = _candidates(call, tokens)[place][0]()
        assert again is not None
        way = again
    return way, remark


def _first_that_fits(call: Caller, tokens: IntArray, name: str) -> tuple[int, Way, str]:
    faults: list[str] = []
    usual = call.model.config._attn_implementation
    for place, (candidate, remark) in enumerate(_candidates(call, tokens)):
        way, fault = None, None
        try:
            way = candidate()
            fault = None if way is None else _difference(way, call, tokens)
        # Whatever this model's code raises when it is called so, it cannot be called so.
        except Exception as error:
            if is_lack_of_memory(error):
                raise
            fault = f"{type(error).__name__}: {error!s:.200}"
        if way is not None and fault is None:
            return place, way, remark
        if fault is not None:
            logger.debug("%s: %s: %s", name, remark, fault)
            faults.append(fault)
        if call.model.config._attn_implementation != usual:
            call.model.set_attn_implementation(usual)
    raise CheckpointError(
        f"model {name!r} cannot be decoded: transformers gives its tokens other logits one by one than together "
        f"({faults[-1]}); use another model or version of transformers."
    )


@contextmanager
def _full_precision(model: PreTrainedModel) -> Iterator[bool]:
    """Weights in float32 for a while, where there is room, since rounding hides what a trial looks for. Nothing is lost
    on the way there and back. Gives whether any were changed."""
    tensors = [each for each in (*model.parameters(), *model.buffers()) if each.is_floating_point()]
    rounded = [(each, each.dtype) for each in tensors if each.itemsize < torch.float32.itemsize]
    free = free_bytes()
    needed = sum(each.numel() * torch.float32.itemsize for each, _ in rounded)
    if not rounded or (free is not None and needed > free // 2) or model.device.type != "cpu":
        yield False
        return
    try:
        for each, _ in rounded:
            each.data = each.data.float()
        yield True
    finally:
        for each, dtype in rounded:
            each.data = each.data.to(dtype)


def _logits_of_a_pass(call: Caller, tokens: IntArray, name: str) -> int:
    """How many there are of a row. A model that cannot be called at all is refused. Products of experts that PyTorch
    cannot group are computed singly.

    Raises:
        CheckpointError: what its code says.
    """
    none = np.zeros(0, dtype=np.int32)
    try:
        return call(tokens, none, use_cache=False).logits.shape[1]
    except Exception as error:
        if is_lack_of_memory(error):
            raise
        try:
            call.model.set_experts_implementation("eager")
            return call(tokens, none, use_cache=False).logits.shape[1]
        except Exception:
            reason = f"{type(error).__name__}: {error!s:.200}".split("\n")[0]
            raise CheckpointError(
                f"model {name!r} cannot be run: transformers' code fails on it ({reason}); use another model or "
                "version of transformers."
            ) from error


def _candidates(call: Caller, tokens: IntArray) -> list[tuple[Callable[[], Way | None], str]]:
    plans: list[CachePlan] = []

    def packed() -> Way | None:
        shapes = _attention_layers(call, tokens)
        return Packed(call, shapes) if shapes else None

    def plan() -> CachePlan:
        if not plans:
            plans.append(_cache_plan(call, tokens))
        return plans[0]

    def several() -> Way | None:
        return ByPath(call, plan(), Carrying.SEVERAL) if call.cache_name is not None else None

    def single() -> Way | None:
        usable = call.cache_name is not None and plan().has_states
        return ByPath(call, plan(), Carrying.SINGLE) if usable else None

    return [
        (packed, "all sequences in one call"),
        (several, "one call for each sequence and branch"),
        (single, "one call for each token, since its states take no several at once"),
        (lambda: ByPath(call, CachePlan(None, None, 0), Carrying.NOTHING), "each text anew in every pass"),
    ]


def _attention_layers(call: Caller, tokens: IntArray) -> list[PageShape]:
    """What the attention layers keep, where all rows can go through the attention interface; else nothing."""
    model: PreTrainedModel = call.model
    if not call.takes_positions:
        return []
    register()
    model.set_attn_implementation(NAME)
    recorder = Recorder()
    try:
        with attending(recorder):
            call(tokens, np.zeros(0, dtype=np.int32), use_cache=False)
    except Exception:
        recorder.shapes.clear()
    return recorder.shapes


def _cache_plan(call: Caller, tokens: IntArray) -> CachePlan:
    seen = call(tokens, np.zeros(0, dtype=np.int32), use_cache=True).cache
    try:
        blank = DynamicCache(config=call.model.config)
    except Exception:
        blank = None
    return CachePlan(seen, blank, len(tokens))


def _difference(way: Way, call: Caller, tokens: IntArray) -> str | None:
    """What is wrong with the logits of a few passes; None: nothing."""
    storage = TransformersStorage(way.layers, 2 * _BLOCKS, _BLOCK, call.device)
    found: list[tuple[Tensor, list[int]]] = []
    t = tokens.tolist()

    def run(first: _Part, second: _Part | None = None) -> Tensor:
        return way.forward(_batch([first] if second is None else [first, second]), storage).logits

    run((0, 0, t[:3], [-1, 0, 1]))
    run((0, 3, t[3:4], [-1]), (1, 0, t[8:9], [-1]))
    logits = run((0, 4, t[4:8], [-1, 0, 0, 1]), (1, 1, t[9:11], [-1, 0]))
    for place, after in enumerate(([4], [4, 5], [4, 6], [4, 5, 7])):
        found.append((logits[place], [*t[:4], *[t[each] for each in after]]))
    found += [(logits[4], t[8:10]), (logits[5], t[8:11])]
    storage.move([6], [5])
    found.append((run((0, 6, t[11:12], [-1]))[0], [*t[:5], t[6], t[11]]))
    for row, path in found:
        last = np.array([len(path) - 1], dtype=np.int32)
        wanted = call(np.array(path, dtype=np.int32), last, use_cache=False).logits[0]
        if not bool(torch.isfinite(row).all()):
            return "logits that are not finite"
        away = float((row - wanted).abs().max() / wanted.abs().max().clamp_min(1e-9))
        if away > (_ALLOWED if call.model.dtype is torch.float32 else _ALLOWED_ROUNDED):
            return f"{100 * away:.1f} % of the largest logit away"
    return None


_Part = tuple[int, int, Sequence[int], Sequence[int]]
"""Sequence, tokens in the cache, tokens, parents within it."""


def _batch(parts: Sequence[_Part]) -> PassBatch:
    starts = np.cumsum([0, *[len(tokens) for _, _, tokens, _ in parts]]).astype(np.int32)
    parents = [
        -1 if parent < 0 else parent + int(start)
        for (_, _, _, own), start in zip(parts, starts, strict=False)
        for parent in own
    ]
    return PassBatch(
        tokens=np.array([token for _, _, tokens, _ in parts for token in tokens], dtype=np.int32),
        parents=np.array(parents, dtype=np.int32),
        row_starts=starts,
        cached_lengths=np.array([cached for _, cached, _, _ in parts], dtype=np.int32),
        block_tables=np.array([[sequence * _BLOCKS + i for i in range(_BLOCKS)] for sequence, *_ in parts], np.int32),
        logit_rows=np.arange(int(starts[-1]), dtype=np.int32),
    )
