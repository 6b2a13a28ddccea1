"""What the laboratory says where its packages are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("package", "module"),
    [("scipy", "headstart_lab.audit.goodness"), ("httpx2", "headstart_lab.audit.endpoint.client")],
)
def test_an_audit_names_the_extra_that_it_lacks(package: str, module: str) -> None:
    program = f"""
import importlib, sys
from headstart.errors import ConfigError
sys.modules["{package}"] = None
try:
    importlib.import_module("{module}")
except ConfigError as error:
    print(error)
"""
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == f"an audit needs {package}; install headstart with its extra: headstart[lab]."
