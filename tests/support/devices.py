"""The devices that tests run on: those of this machine, and one that is simulated on the processor.

The simulated one stands for an accelerator: tensors on it compute the same numbers, but NumPy cannot read them, and no
operation takes them together with the processor's. What forgets to move a tensor fails here as it would there, except
that a device's own arithmetic, streams and speed are not simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from headstart_lab.devices import available_devices

DEVICES = available_devices()
"""Those that are there, "cpu" first."""
PLACES = [*DEVICES, "simulated"]
"""The same and the simulated one, for ``on``."""
SIMULATED = torch.device("meta")
"""What the simulated device is called: a name under which PyTorch itself keeps no numbers."""

_aten = torch.ops.aten
_MOVES = (_aten._to_copy.default, _aten.copy_.default)
"""What may have tensors of both devices."""
_PICKS = (_aten.index.Tensor, _aten.index_put_.default)
"""What may name places in a device's tensor by indices of the processor's; not the other way round."""


class SimulatedTensor(Tensor):
    """A tensor on the simulated device; ``inner`` holds its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> SimulatedTensor:
        made: SimulatedTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=SIMULATED,
            requires_grad=False,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.inner.numpy(force=True)
        raise TypeError("can't convert simulated device type tensor to numpy. Use Tensor.cpu() first.")

    def tolist(self) -> Any:
        return self.inner.tolist()

    def data_ptr(self) -> int:
        raise RuntimeError("the memory of a device cannot be read by the processor")


class _Simulation(TorchDispatchMode):
    """Makes tensors on the simulated device, and refuses to mix them with others."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if is_composite(func):
            # In inference mode operations come before they are taken apart.
            with self:
                return func.decompose(*args, **kwargs or {})
        return _run(func, args, kwargs or {})


class _OfValues(TorchFunctionMode):
    """Lets tensors of Python's numbers be made on the processor first: on ``SIMULATED`` they would hold nothing."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and given.get("device") is not None:
            device = given.pop("device")
            return func(*args, **given).to(device)
        return func(*args, **given)


@contextmanager
def on(place: str) -> Iterator[str]:
    """Inside, ``place`` can be had; the name to ask for it by."""
    if place in DEVICES:
        yield place
        return
    # Nobody but a test may ask for it.
    with simulated_device() as device, patch("headstart.loading.model.parse_device", torch.device):
        yield str(device)


@contextmanager
def simulated_device() -> Iterator[torch.device]:
    """Inside, ``SIMULATED`` is a device like another."""
    with _OfValues(), _Simulation():
        yield SIMULATED


@cache
def is_composite(func: Any) -> bool:
    """Whether an operation is made of others."""
    return bool(func.has_kernel_for_dispatch_key(torch.DispatchKey.CompositeImplicitAutograd))


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = _tensors(args) + _tensors(list(kwargs.values())) if kwargs else _tensors(args)
    there = [each for each in tensors if isinstance(each, SimulatedTensor)]
    target = kwargs.get("device")
    if not there and (target is None or torch.device(target) != SIMULATED):
        return func(*args, **kwargs)
    # A single number of the processor may go anywhere.
    here = [each for each in tensors if not isinstance(each, SimulatedTensor) and each.dim()]
    picks = func in _PICKS and isinstance(args[0], SimulatedTensor)
    # What is put there is another matter.
    picks = picks and not (len(args) > 2 and args[2].dim() and not isinstance(args[2], SimulatedTensor))
    if there and here and func not in _MOVES and not picks:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got two: simulated and cpu")
    inner_kwargs = {name: _inner(value) for name, value in kwargs.items()} if kwargs else {}
    if target is not None:
        inner_kwargs["device"] = torch.device("cpu")
    # Views of what was made before inference began cannot be tensors of inference.
    with torch.inference_mode(False), torch.no_grad():
        done = func(*_inner(args), **inner_kwargs)
        if isinstance(done, Tensor) and func._schema.is_mutable:
            return args[0]
        return _wrapped(done) if target is None or torch.device(target) == SIMULATED else done


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    found = []
    for each in values:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            found += _tensors(each)
    return found


def _inner(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_inner, value))
    return value.inner if isinstance(value, SimulatedTensor) else value


def _wrapped(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_wrapped, value))
    return SimulatedTensor(value) if isinstance(value, Tensor) else value
