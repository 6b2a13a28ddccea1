"""Where figures come from: the machine, the versions and the command that made them."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from headstart.common.machine_load import LoadWatch
from headstart.loading.model import Model

_PACKAGES = ("headstart", "torch", "numpy", "tokenizers", "transformers")
_USER = re.compile(r"(?<=://)[^/?#\s]*@")
"""Name and password in an address."""


def provenance() -> dict[str, Any]:
    """What a figure needs beside it to be judged, as plain values: taken when called, so call it before measuring.

    ``load_average`` is that of the last minute: on a machine that others use, trust ratios, not times.
    """
    import torch

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *map(without_user, sys.argv[1:])]),
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": _commit(),
        "system": platform.platform(terse=True),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": _memory_gib(),
        "load_average": _load_average(),
    }


def without_user(text: str) -> str:
    """The same without the names and passwords that addresses in it hold: others read reports."""
    return _USER.sub("", text)


def finished(record: Mapping[str, Any]) -> dict[str, Any]:
    """The same record with the load average after the measurement."""
    return {**record, "load_average_after": _load_average()}


class Origin:
    """Where the figures of a measurement come from, that begins when this is made.

    Args:
        computes_here: False: another process computes, whose work must not be taken for a disturbance.
    """

    def __init__(self, computes_here: bool = True) -> None:
        self._begun = provenance()
        self._watch = LoadWatch(self._begun["threads"]) if computes_here else None

    def finished(self) -> dict[str, Any]:
        """The record, with what else the machine did until now (``MachineLoad``)."""
        if self._watch is None:
            return finished(self._begun)
        load = self._watch.so_far()
        return {**finished(self._begun), "machine": {**load.record(), "sentence": load.sentence}}


def origin_line(record: Mapping[str, Any]) -> str:
    """One line for whoever reads a table: model, machine, version, load."""
    where, model = record.get("provenance", {}), record.get("model") or record.get("server", {})
    model = {"name": model["model"], **model} if "model" in model else model
    versions = where.get("versions", {})
    commit = "" if where.get("commit") is None else f" ({where['commit']})"
    loads = [average[0] for name in ("load_average", "load_average_after") if (average := where.get(name))]
    parts = [
        " in ".join(str(model[name]) for name in ("name", "backend") if name in model) if "name" in model else "",
        f"{where['cores']} cores of {where['cpu']}" if "cpu" in where else "",
        f"headstart {versions['headstart']}{commit}" if "headstart" in versions else "",
        f"load average {' to '.join(f'{load:.1f}' for load in loads)}" if loads else "",
        where.get("date", ""),
    ]
    return ", ".join(part for part in parts if part)


def model_record(model: Model) -> dict[str, Any]:
    """Which model was measured, and how it was computed. ``digest`` is that of its weights (``Checkpoint.digest``)."""
    return {
        "name": Path(model.name).name,
        "family": model.config.family,
        "digest": model.checkpoint.digest(),
        "backend": model.backend.name,
        "weight_bytes": model.backend.nbytes,
        "layers": model.config.num_layers,
        "hidden_size": model.config.hidden_size,
        "vocab_size": model.config.vocab_size,
    }


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _commit() -> str | None:
    """The commit of the source tree this package runs from, "+" after it where files differ; None: no source tree."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _load_average() -> list[float] | None:
    try:
        return [round(load, 2) for load in os.getloadavg()]
    except (OSError, AttributeError):
        return None
