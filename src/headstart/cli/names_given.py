"""Models, drafters and files that a command line names, looked for before anything heavy is imported: a wrong name is
refused at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headstart.errors import ConfigError

_NO_NAMES = ("", "all", "none")
_READ = ("prompts", "text", "recordings")
"""Parameters that are files to be read."""


def check(given: Mapping[str, Any]) -> None:
    """Refuse names of what is not there. Those that a server knows (``url``) are left to it.

    Args:
        given: the command's parameters by name.

    Raises:
        CheckpointError, ConfigError: naming it.
    """
    from headstart.models.aliases import ALIASES
    from headstart.models.locating import is_hub_id, locate, require_model

    # The lab page runs no model unless it is to record one.
    if given.get("url") is not None or ("record" in given and not given["record"]):
        return
    for field in _READ:
        _require_files(given.get(field))
    _require_head(given.get("head"))
    for field, model in _draft_models(given):
        # Which files of it are wanted, if it has to be fetched, whoever runs it knows.
        if model not in ALIASES and not is_hub_id(model):
            locate(model, field=field)
    if given.get("model") is not None:
        require_model(locate(given["model"], given.get("revision")))


def _require_files(value: Any) -> None:
    """Texts are not looked at: they may be no names of files, or "-"."""
    for path in value if isinstance(value, list | tuple) else [value]:
        if isinstance(path, Path) and not path.exists():
            raise ConfigError(f"{path} cannot be read: there is no such file; check its path.")


def _require_head(head: Any) -> None:
    """A directory, or a text, which may be a hub id as well; what ``train`` calls so is neither."""
    from headstart.models.files import exists, local_path
    from headstart.models.locating import is_hub_id

    if isinstance(head, Path) and not head.is_dir():
        raise ConfigError(f"{head} is no directory; name the directory of a draft head.")
    if type(head) is str and not exists(local_path(head)) and not is_hub_id(head):
        raise ConfigError(f"there is no {head!r}; name the directory of a head, or a hub id (org/name).")


def _draft_models(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every model that is named for a drafter: what the option is called, and the model.

    Raises:
        ConfigError: there is no such drafter.
    """
    if given.get("draft_model") is not None:
        yield "draft_model", given["draft_model"]
    listed, alone = given.get("drafters") or "", given.get("drafter") or ""
    others = [name for name in given.get("more_drafters") or () if isinstance(name, str)]
    if listed or alone or others:
        from headstart.drafting.options import parse_drafter, pieces
        from headstart.drafting.registry import drafter_info

        # Options of one that is named alone may hold commas.
        for text in map(str.strip, [*pieces(listed, ","), pieces(alone, ",")[0], *others]):
            if text in _NO_NAMES:
                continue
            name, options = parse_drafter(text)
            drafter_info(name)
            if isinstance(model := options.get("model"), str):
                yield f"model of drafter {name!r}", model
