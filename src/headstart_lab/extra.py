"""Packages that the laboratory uses and a server does not: the extra ``lab``."""

from __future__ import annotations

from headstart.errors import ConfigError


def missing(error: ImportError) -> ConfigError:
    """The refusal of whoever needs one of them."""
    return ConfigError(f"an audit needs {error.name}; install headstart with its extra: headstart[lab].")
