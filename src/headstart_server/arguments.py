"""What a server is told: the engine's options, and whom it lets in. One declaration for ``headstart serve``, its
configuration file, and whatever else starts the application. Importing this imports nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from headstart.common.option_values import separated
from headstart.common.options import Option, OptionError, declares
from headstart.entrypoints.engine_options import REASONING_PARSER, TOOL_PARSER, AsyncEngineOptions
from headstart.errors import ConfigError
from headstart_server.durations import seconds
from headstart_server.settings import ServerSettings

if TYPE_CHECKING:
    from headstart.entrypoints.llm import LLM
    from headstart_server.many_models import Keeping

KEY_VARIABLE = "HEADSTART_API_KEYS"
SERVER = "Server"


class SpecDecodeMetrics(StrEnum):
    """How much each reply says of its guesses: vLLM's names, but for ``detailed``."""

    NONE = "none"
    SUMMARY = "summary"


def _metrics(name: str, value: Any) -> Any:
    """A switch as what it stands for."""
    return ("none", "summary")[value] if isinstance(value, bool) else value


def _time(name: str, value: Any) -> Any:
    """A time as it is written, once it can be read."""
    try:
        found = seconds(value)
    except ValueError:
        found = None
    if found is None:
        raise OptionError(name, f"is {value!r:.40}; give a number of seconds, or a time such as 5m.")
    return str(value)


@declares
class ServeArguments(AsyncEngineOptions):
    """What is served, and to whom.

    Raises:
        ConfigError: as ``EngineOptions``.
    """

    _directories: ClassVar = (*AsyncEngineOptions._directories, "slot_save_path")
    _defaults: ClassVar = {
        "more_drafters": None,
        "prefix_caching": True,
        "tolerant": True,
        "max_waiting": 64,
        "max_seconds": 600.0,
    }

    models: Annotated[
        Path | None,
        Option(
            "Several models in place of one: a directory of .gguf files and models' folders, or a file (YAML or JSON) "
            "of names, each with a model or with options like those of --config. Each is loaded when a request names "
            "it.",
            SERVER,
            elsewhere=("models_dir",),
            metavar="DIR|FILE",
        ),
    ] = None
    max_loaded: Annotated[
        int | None,
        Option(
            "Of --models: how many may be loaded at once. Left out: as many as memory holds. The one that was asked "
            "longest ago is unloaded for another.",
            SERVER,
            elsewhere=("models_max",),
            metavar="N",
            least=1,
        ),
    ] = None
    keep_alive: Annotated[
        str,
        Option(
            "Of --models: how long one stays loaded behind its last request, in seconds or like 5m; below 0: for good. "
            "A request of Ollama's API may say otherwise.",
            SERVER,
            metavar="TIME",
            read=_time,
        ),
    ] = "5m"
    load_seconds: Annotated[
        float,
        Option("Of --models: longest time that a request waits for its model.", SERVER, metavar="S", above=0),
    ] = 300.0
    served_name: Annotated[
        Sequence[str] | None,
        Option(
            "What clients call the model: all names are answered to, the first one is told. Left out: its own.",
            SERVER,
            elsewhere=("served_model_name",),
            metavar="NAME",
            read=separated,
            repeated=True,
        ),
    ] = None
    tool_parser: Annotated[str | None, replace(TOOL_PARSER, group=SERVER)] = None
    reasoning_parser: Annotated[str | None, replace(REASONING_PARSER, group=SERVER)] = None
    allow_host: Annotated[
        Sequence[str] | None,
        Option(
            "Host names that requests may be addressed to, * for any. Left out: where the server listens on a loopback "
            "address only its own names, else any.",
            SERVER,
            metavar="HOST",
            read=separated,
            repeated=True,
        ),
    ] = None
    allow_origin: Annotated[
        Sequence[str] | None,
        Option(
            "Origins whose web pages may send requests, * for any.",
            SERVER,
            metavar="ORIGIN",
            read=separated,
            repeated=True,
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        Option(
            f"A file of API keys, one per line. Left out: those in {KEY_VARIABLE}, separated by commas.",
            SERVER,
            metavar="FILE",
        ),
    ] = None
    slot_save_path: Annotated[
        Path | None,
        Option(
            "Directory where POST /slots/N?action=save, as llama.cpp has it, writes what the cache holds of a "
            "conversation, up to prefix_cache_bytes for each API key. Left out: nothing is saved.",
            SERVER,
            metavar="DIR",
        ),
    ] = None
    spec_decode_metrics: Annotated[
        SpecDecodeMetrics | str,
        Option(
            "summary: each reply with one sample has metrics.speculative_decoding, in vLLM's form (a request can ask "
            'for it by itself: "speculation": {"metrics": true}).',
            SERVER,
            names=("per_request_spec_decode_metrics",),
            flags=("--per-request-spec-decode-metrics",),
            read=_metrics,
        ),
    ] = SpecDecodeMetrics.NONE
    drain_seconds: Annotated[
        float,
        Option("Longest time from the order to end to the end of requests in progress.", SERVER, metavar="S", least=0),
    ] = 30.0

    @property
    def names(self) -> tuple[str, ...]:
        """What the model is called, the name that is told first."""
        return tuple(dict.fromkeys(self.served_name or (str(self.model),)))

    def check(self) -> tuple[str | type[Any], dict[str, object]]:
        """As ``EngineOptions``."""
        if self.slot_save_path is not None and not self.prefix_caching:
            raise ConfigError("slot_save_path keeps what prefix_caching keeps, which is off; leave one of them out.")
        return super().check()

    def load(self) -> LLM:
        """The model with its drafters; slow steps are named as ``phases``.

        Raises:
            HeadstartError: it cannot be loaded.
        """
        from headstart.entrypoints.llm import LLM

        return LLM.from_options(self)

    def keys(self) -> tuple[str, ...]:
        """API keys; nobody needs one if there are none.

        Raises:
            ConfigError: their file cannot be read, or holds none.
        """
        return api_keys(self.api_key_file)

    def keeping(self) -> Keeping:
        """When models are loaded and unloaded, where there are several."""
        from headstart_server.many_models import Keeping

        return Keeping(self.max_loaded, seconds(self.keep_alive) or 0.0, self.load_seconds, self.max_waiting)

    def settings(self, keys: tuple[str, ...]) -> ServerSettings:
        """Whom the server lets in; ``keys``: API keys, nobody needs one if there are none."""
        hosts = self.allow_host
        return ServerSettings(
            self.names[0],
            other_names=self.names[1:],
            api_keys=keys,
            allowed_hosts=None if hosts is None or "*" in hosts else tuple(hosts),
            cors_origins=tuple(self.allow_origin or ()),
            spec_decode_metrics=self.spec_decode_metrics == SpecDecodeMetrics.SUMMARY,
            slot_save_path=self.slot_save_path,
            slot_save_bytes=self.prefix_cache_bytes,
        )


def api_keys(path: Path | None) -> tuple[str, ...]:
    """The keys of a file, one per line; without a file those in the environment, separated by commas.

    Raises:
        ConfigError: the file cannot be read, or holds none.
    """
    from headstart_server.access import read_keys

    if path is None:
        return read_keys(os.environ.get(KEY_VARIABLE, "").replace(",", "\n"))
    try:
        keys = read_keys(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise ConfigError(f"the API keys cannot be read from {path}: {reason}.") from error
    if not keys:
        raise ConfigError(f"{path} holds no API key; write one per line.")
    return keys
