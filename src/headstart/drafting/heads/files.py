"""The files a head is kept in: tensors by name, and a description."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headstart.drafting.heads.formats import UNBUILT
from headstart.errors import CheckpointError
from headstart.models.files import exists, read_json, require_file
from headstart.models.locating import SINGLE_FILE, has_safetensors
from headstart.models.safetensors_files import SafetensorsFiles

RECORD_KEY = "headstart"
"""Entry of ``config.json`` that says how a head came to be; other readers pass over it."""
PICKLED_FILE = "pytorch_model.bin"
CONFIG_FILE, ADAPTER_FILE = "config.json", "adapter_config.json"


def read_description(directory: Path) -> dict[str, Any]:
    """``config.json`` of a head's directory.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    if not exists(directory / CONFIG_FILE) and exists(directory / ADAPTER_FILE):
        raise CheckpointError(
            f"{directory!s:.200} holds a LoRA. If it is to guess, it is a head of {UNBUILT['uno']}, which is not "
            "built; name the directory of a draft head."
        )
    if not exists(directory / CONFIG_FILE):
        raise CheckpointError(f"{directory!s:.200} has no {CONFIG_FILE}; name a directory that holds a draft head.")
    return read_json(directory / CONFIG_FILE)


def read_tensors(directory: Path, own_names: Callable[[], Sequence[str]] = tuple) -> dict[str, Tensor]:
    """All tensors of a head, from safetensors where there are such, else from the older ``.bin`` or ``.pt``.
    ``own_names`` gives what methods call such files, where nothing has a usual name.

    Pickled files are read with ``weights_only``, which builds tensors and containers and runs nothing else.

    Raises:
        CheckpointError: no file, a damaged one, or one that holds more than named tensors.
    """
    if has_safetensors(directory):
        return _read_safetensors(directory)
    names = (*own_names(), PICKLED_FILE)
    for name in names:
        path = directory / name
        if path.exists():
            return _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    raise CheckpointError(
        f"{directory} has none of {', '.join((SINGLE_FILE, *names))}; fetch it again, or name another draft head."
    )


def load_strictly(module: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Fill a module's parameters and buffers, in float32.

    Raises:
        CheckpointError: naming every tensor that is missing, surplus or of another shape, or holds what is no number.
    """
    wanted = module.state_dict()
    faults = [f"{name} is missing" for name in wanted if name not in tensors]
    faults += [f"{name} is not part of such a head" for name in tensors if name not in wanted]
    for name in wanted.keys() & tensors.keys():
        if wanted[name].shape != tensors[name].shape:
            faults.append(f"{name} is {list(tensors[name].shape)}, not {list(wanted[name].shape)}")
        elif wanted[name].is_floating_point() != tensors[name].is_floating_point():
            faults.append(f"{name} holds {tensors[name].dtype}, not {wanted[name].dtype}")
    if faults:
        raise CheckpointError(f"{source} does not fit its description: {'; '.join(sorted(faults))}.")
    module.load_state_dict(dict(tensors))
    require_numbers(module.state_dict(), source)


def require_numbers(tensors: Mapping[str, Tensor], source: str) -> None:
    """Refuse weights that are infinite or no numbers: whatever is computed with them guesses nothing.

    Raises:
        CheckpointError: naming the tensors.
    """
    faults = [name for name, tensor in tensors.items() if not holds_numbers(tensor)]
    if faults:
        raise CheckpointError(f"{source} holds infinities or NaN in {', '.join(sorted(faults))}; fetch it again.")


def holds_numbers(tensor: Tensor) -> bool:
    """Whether none of a tensor's weights is infinite or no number."""
    if not tensor.is_floating_point() or not tensor.numel() or tensor.itemsize == 1:
        return True  # of bytes, PyTorch compares none
    # The least and the largest are no numbers where any is none; nothing as large as a tensor is made.
    return all(bool(end.isfinite()) for end in torch.aminmax(tensor.detach()))


def require_draft_ids(ids: Tensor, vocab_size: int, said: Tensor | None, source: str) -> None:
    """Refuse a draft vocabulary that is none.

    Args:
        ids: int64 [draft vocab] target ids.
        said: bool [vocab], which of the target's tokens it holds, where the file says so (t2d).

    Raises:
        CheckpointError: ids are not distinct ones of the target, or the file's tables disagree.
    """
    if not (bool((ids >= 0).all()) and bool((ids < vocab_size).all()) and len(set(ids.tolist())) == len(ids)):
        raise CheckpointError(f"{source}: d2t does not lead to distinct ids below {vocab_size}; fetch it again.")
    if said is not None and not torch.equal(said.bool().nonzero().flatten(), ids.sort().values):
        raise CheckpointError(f"{source}: t2d and d2t name different tokens; fetch it again.")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    files = SafetensorsFiles(path)
    return {name: files.read(name) for name in files.shapes()}


def _read_pickle(path: Path) -> dict[str, Tensor]:
    import pickle

    require_file(path)
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise CheckpointError(f"{path} is damaged or holds more than tensors ({reason}); fetch it again.") from error
    if not isinstance(value, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items()
    ):
        raise CheckpointError(f"{path} holds more than named tensors; fetch it again.")
    return value
