"""A cluster of this machine alone, that nobody else can use: Ray's processes listen on all of its addresses."""

from __future__ import annotations

import os
import secrets


def guard_cluster() -> None:
    """Let Ray's processes take orders only from those who know a token that is drawn here, and report nothing.

    The environment hands it on to them. It must be called before Ray is imported; what the environment says already
    stays. Ray's option for the node's address is no help: it turns loopback into the machine's own (2.60).
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # On a machine that is busy Serve's processes need longer than its 5 seconds, and would be ended while they start.
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
