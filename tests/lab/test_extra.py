"""What the laboratory says where its packages are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, sys
from headstart.errors import ConfigError
for package, module in (("scipy", "goodness"), ("httpx2", "endpoint.client")):
    sys.modules[package] = None
    try:
        importlib.import_module(f"headstart_lab.audit.{module}")
    except ConfigError as error:
        print(error)
"""


@pytest.mark.thorough
def test_an_audit_names_the_extra_that_it_lacks() -> None:
    printed = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == [
        f"an audit needs {package}; install headstart with its extra: headstart[lab]."
        for package in ("scipy", "httpx2")
    ]
