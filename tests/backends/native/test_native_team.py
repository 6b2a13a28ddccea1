"""As many threads as the machine has, and no more than the container may use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headstart.backends.native import team


@pytest.fixture
def quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the file of control groups, version 2; those of version 1 lie beside it."""
    monkeypatch.setattr(team, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(team, "_OLD_QUOTA", tmp_path / "quota")
    monkeypatch.setattr(team, "_OLD_PERIOD", tmp_path / "period")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path / "cpu.max"


@pytest.mark.parametrize(
    ("text", "threads"),
    [
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("max 100000\n", 16),
        ("6400000 100000", 16),
    ],
)
def test_a_quota_bounds_the_team(quota: Path, text: str, threads: int) -> None:
    quota.write_text(text)
    assert team.team_size() == threads


@pytest.mark.parametrize(("amount", "threads"), [("300000", 3), ("-1", 16)])
def test_so_does_an_older_one(quota: Path, amount: str, threads: int) -> None:
    (quota.parent / "quota").write_text(f"{amount}\n")
    (quota.parent / "period").write_text("100000\n")
    assert team.team_size() == threads


def test_without_a_quota_or_with_omp_num_threads_it_is_pytorchs(quota: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert team.team_size() == 16
    quota.write_text("200000 100000")
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    assert team.team_size() == 16
