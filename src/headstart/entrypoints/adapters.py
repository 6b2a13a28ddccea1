"""LoRA adapters that requests name, loaded and unloaded while others decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headstart.errors import HeadstartError, RequestError
from headstart.loading.model import Model
from headstart.models.adapters import load_adapter
from headstart.passes.adapters import Adapter


@dataclass(frozen=True)
class LoRARequest:
    """Which adapter a call is to have, in vLLM's words; names tell adapters apart, not numbers."""

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""
    """A folder as peft saves it, or a .gguf file; may be left out of one that is loaded."""


AdapterWish = LoRARequest | Adapter | str | None
"""What a call may say of its adapter: how to get it, itself, or its name; None: it wants none."""


class Adapters(dict[str, Adapter]):
    """Those of one model that are loaded, by name. Any thread may ask; sequences keep theirs until they end.

    Args:
        model: gives it, as long as it is there.
    """

    def __init__(self, model: Callable[[], Model]) -> None:
        self._model = model

    def load(self, name: str, path: str | Path) -> Adapter:
        """Read an adapter, unless it is there already.

        Raises:
            RequestError: the name is another one's; it is missing, damaged or not of this model; or passes take none.
        """
        if (known := self.get(name)) is not None and known.path == str(path):
            return known
        if known is not None or not name.strip() or not name.isprintable():
            other = (
                f"is the adapter from {known.path}; unload it first, or take"
                if known
                else "is empty or unprintable; give"
            )
            raise RequestError(f"lora_name {name!r:.80} {other} another name.", "lora_name")
        if not str(path):
            raise RequestError(f"lora_path of {name!r:.80} is empty; give a folder or a .gguf file.", "lora_path")
        model = self._model()
        compiled = getattr(model.backend, "compiled_adapter", None)
        if compiled is None or model.config.encoder is not None:
            mend = "merge one into the model (--lora DIR, without a name)"
            raise RequestError(f"passes of {model.backend.name} take no adapters of requests; {mend}.", "lora_path")
        try:
            weights = load_adapter(path, model.checkpoint)
            self[name] = Adapter(name, str(path), weights.digest, compiled(weights))
        except HeadstartError as error:
            raise RequestError(f"lora_path: {error}", "lora_path") from error
        return self[name]

    def of(self, wish: AdapterWish) -> Adapter | None:
        """The adapter that a call asks for, loaded if need be.

        Raises:
            RequestError: as ``load``, or none has the name.
        """
        if wish is None or isinstance(wish, Adapter):
            return wish
        name, path = (
            (wish, "") if isinstance(wish, str) else (getattr(wish, f"lora_{of}", 0) for of in ("name", "path"))
        )
        if not isinstance(name, str) or not isinstance(path, str | Path):
            raise RequestError(f"lora_request is {wish!s:.60}; give a LoRARequest.", "lora_request")
        if not str(path) and name not in self:
            known = ", ".join(map(repr, self)) or "none"
            raise RequestError(f"no adapter {name!r:.80} is loaded; there is {known}.", "lora_name")
        return self.load(name, path) if str(path) else self[name]
