"""What a drafter is given when it is built, besides its options."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from headstart.common.enumerations import CacheType
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart.drafting.base import SequenceView
    from headstart.drafting.heads.tables import TargetTables
    from headstart.drafting.text_store import TextStore
    from headstart.models.multi_token_modules import MultiTokenModules
    from headstart.passes.backend import Backend, BackendKit
    from headstart.passes.runner import ModelRunner


class TextEncoder(Protocol):
    """The part of a tokenizer that every drafter may rely on."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain text."""
        ...


@dataclass(frozen=True)
class LoadedModel:
    """Another model, for a drafter that runs one."""

    backend: Backend
    tokenizer: TextEncoder


@dataclass(frozen=True)
class SmallModel:
    """A small model of the target's tokenizer that is at hand."""

    where: str
    """What it is called, with its size."""
    path: Path


def one_scope(sequence: SequenceView) -> Hashable:
    """All sequences may learn from each other."""
    return ""


@dataclass(frozen=True)
class DraftContext:
    """The surroundings of a drafter. Only ``vocab_size`` is always there.

    Drafters without a model need no more than that, so they can be built and tested without a target.
    """

    vocab_size: int
    """Of the target; every drafted id lies below it."""
    runner: ModelRunner | None = None
    """The target's runner: its backend (and through it the ``ModelConfig``) and its cache."""
    tokenizer: TextEncoder | None = None
    """The target's."""
    load_model: Callable[[str], LoadedModel] | None = None
    """Loads a model by alias, directory, hub id or file."""
    lend_layers: Callable[[Sequence[int]], Backend] | None = None
    """A model of these layers of the target, in this order, with its embedding, final norm and head."""
    lend_itself: Callable[[int | str, int | None], Backend] | None = None
    """The target in so many bits, or a precision, all of it or its first layers: its passes take the target's cache."""
    lend_tables: Callable[[], TargetTables] | None = None
    """The target's embedding and output head, for drafters with a trained head."""
    lend_modules: Callable[[str | None], MultiTokenModules | None] | None = None
    """The multi-token modules of a model of the target's shape, by its name; of None those that came with the target.
    None: it has none."""
    find_head: Callable[[str], tuple[Path, str] | None] | None = None
    """Directory of the trained head of a kind that is at hand for this target, and why it guesses, the beginning of a
    sentence; None: none is."""
    find_sibling: Callable[[], SmallModel | None] | None = None
    """A small model that nobody has named, of the target's tokenizer; None: there is none."""
    stand_in: Callable[[], object] | None = None
    """A head with random weights in place of a trained one that nobody names, to know what it would cost."""
    target: object | None = None
    """The loaded target (``loading.model.Model``), for drafters of packages that make something of its shape."""
    digest: Callable[[], str] | None = None
    """Identity of the target's weights, to be compared with what a trained head records of its target."""
    tell: Callable[[str], None] = lambda sentence: None
    """Hears what users should know of how a drafter works here, a sentence."""
    scope_of: Callable[[SequenceView], Hashable] = one_scope
    """The scope of a sequence, which a drafter may have made of a request's (``inner_sequence.request_of``). Requests
    learn from earlier ones of the same scope only. What one request taught shows in the timing of the
    next, so a server that serves several tenants gives each its own."""

    cache_type: CacheType = CacheType.AUTO
    """How draft models keep their own keys and values."""
    texts: TextStore | None = None
    """Texts of each scope that drafters may copy from beyond a request's own; None: they keep their own."""

    @property
    def kit(self) -> BackendKit | None:
        """What runs beside the target's passes; None without a target."""
        return None if self.runner is None else self.runner.backend.kit

    def require_runner(self) -> ModelRunner:
        """The target's runner, for a drafter that cannot do without.

        Raises:
            ConfigError: there is none.
        """
        return _required("runner", self.runner)

    def require_tokenizer(self) -> TextEncoder:
        """The target's tokenizer, likewise."""
        return _required("tokenizer", self.tokenizer)

    def require_loader(self) -> Callable[[str], LoadedModel]:
        """The loader of other models, likewise."""
        return _required("load_model", self.load_model)

    def require_layers(self) -> Callable[[Sequence[int]], Backend]:
        """The lender of the target's layers, likewise."""
        return _required("lend_layers", self.lend_layers)

    def require_itself(self) -> Callable[[int | str, int | None], Backend]:
        """The lender of the target in fewer bits, likewise."""
        return _required("lend_itself", self.lend_itself)

    def require_target(self) -> object:
        """The loaded target, likewise."""
        return _required("target", self.target)

    def require_tables(self) -> Callable[[], TargetTables]:
        """The lender of the target's embedding and output head, likewise."""
        return _required("lend_tables", self.lend_tables)

    def require_modules(self) -> Callable[[str | None], MultiTokenModules | None]:
        """The lender of the target's multi-token modules, likewise."""
        return _required("lend_modules", self.lend_modules)


Needed = TypeVar("Needed")


def _required(name: str, value: Needed | None) -> Needed:
    if value is None:
        raise ConfigError(f"this drafter needs the context's {name}, which is None; give it to DraftContext.")
    return value


Memory = TypeVar("Memory")


class ScopedMemory(Generic[Memory]):
    """What outlives a request, apart for each scope; the scopes used last are kept."""

    def __init__(self, new: Callable[[], Memory], max_scopes: int = 16) -> None:
        self._new = new
        self._max_scopes = max_scopes
        self._scopes: OrderedDict[Hashable, Memory] = OrderedDict()

    def __getitem__(self, scope: Hashable) -> Memory:
        """The memory of a scope; an unknown scope starts with a blank one."""
        memory = self._scopes.get(scope)
        if memory is None:
            memory = self._scopes[scope] = self._new()
            if len(self._scopes) > self._max_scopes:
                self._scopes.popitem(last=False)
        self._scopes.move_to_end(scope)
        return memory
