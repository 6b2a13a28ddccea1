"""Devices by the names that PyTorch has for them."""

from __future__ import annotations

import torch

from headstart.errors import ConfigError

_MEND = "use device 'cpu'"


def parse_device(name: str) -> torch.device:
    """A device that is there: "cpu", "cuda", "cuda:1", "mps".

    Raises:
        ConfigError: there is no such device, or not on this machine.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device is {name!r}; give cpu, cuda, cuda:1 or mps.") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            built = "" if torch.version.cuda or torch.version.hip else "; this PyTorch is built for processors alone"
            raise ConfigError(f"device is {name!r}, but there is no such accelerator here{built}; {_MEND}.")
        if device.index is not None and device.index >= count:
            raise ConfigError(f"device is {name!r}, but there are cuda:0 to cuda:{count - 1}; name one of them.")
        return device
    if device.type == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError(f"device is {name!r}, but there is no such accelerator here; {_MEND}.")
        return device
    raise ConfigError(f"device is {name!r}; give cpu, cuda, cuda:1 or mps.")


def finish(device: torch.device) -> None:
    """Wait until a device has done what was asked of it: whoever times a pass would else time the asking."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()


def avoid_attention_plans(device: torch.device) -> None:
    """Leave attention to kernels that need no plan, in this process.

    On Hopper and Blackwell PyTorch prefers cuDNN's attention (``check_prefer_cudnn_attention`` in ATen's
    transformers/cuda/sdp_utils.cpp), which plans anew for every number of keys (``MHAParams`` in its cudnn/MHA.cpp),
    for tens of milliseconds: here that would be for every token.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
