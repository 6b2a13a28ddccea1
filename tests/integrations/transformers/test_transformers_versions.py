"""The extra ``transformers`` with the oldest version that it allows, and with the newest."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from engine_environments import ROOT, TRANSFORMERS, Environment, needs


def test_the_oldest_is_what_the_extra_asks_for() -> None:
    asked = re.search(r'"transformers>=(5[\d.]*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert asked is not None
    assert TRANSFORMERS[0].requirements[0].startswith(f"transformers=={asked[1]}.")


@pytest.mark.engines
@pytest.mark.parametrize("version", [pytest.param(each, id=each.name, marks=needs(each)) for each in TRANSFORMERS])
def test_models_run_with_this_version(version: Environment) -> None:
    """Newer versions warn of what later ones will not have, which ends no test."""
    arguments = ("-q", "-p", "no:cacheprovider", "-W", "default", str(Path(__file__).parent))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [str(version.python), "-m", "pytest", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
