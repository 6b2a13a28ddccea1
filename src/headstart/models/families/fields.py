"""Typed reading of a model's description, be it ``config.json`` or GGUF metadata.

These files come from strangers: an entry of a wrong type or an absurd size is refused by name and value, before
anything is computed or allocated from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headstart.errors import CheckpointError, UnsupportedModelError

MAX_SIZE = 1 << 24
"""No size of a real decoder (vocabulary, width, layers, positions) is larger, but for the context length."""
MAX_POSITIONS = 1 << 31


class Fields:
    """The entries of one description. An entry that is null counts as absent.

    ``prefix`` is put before every key ("llama." for GGUF metadata); ``names``: what some keys are called here;
    ``source`` says in messages where it is from.
    """

    def __init__(
        self, entries: Mapping[str, Any], source: str, prefix: str = "", names: Mapping[str, str] | None = None
    ) -> None:
        self.entries = entries
        self.source = source
        self.prefix = prefix
        self.names: Mapping[str, str] = names or {}

    @property
    def of_gguf(self) -> bool:
        return bool(self.prefix)

    def name(self, key: str) -> str:
        """What an entry is called here."""
        return self.prefix + self.names.get(key, key)

    def called(self, names: Mapping[str, str], defaults: Mapping[str, Any] | None = None) -> Fields:
        """The same, where a ``config.json`` calls entries by other ``names``, and means ``defaults`` if it leaves them
        out. GGUF metadata have one name for all families, and leave nothing out."""
        if self.of_gguf:
            return self
        named = Fields(self.entries, self.source, names={**self.names, **names})
        return named.with_defaults(defaults or {})

    def get(self, key: str) -> Any:
        return self.entries.get(self.name(key))

    def has(self, key: str) -> bool:
        """Whether there is such an entry, be it null."""
        return self.name(key) in self.entries

    def integer(self, key: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """A whole number; the entry is required where there is no default."""
        value = self.optional_integer(key, minimum, maximum)
        value = default if value is None else value
        if value is None:
            raise self.missing(key)
        return value

    def optional_integer(self, key: str, minimum: int = 1, maximum: int = MAX_SIZE) -> int | None:
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.bad(key, value, f"a whole number from {minimum} to {maximum}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; the entry is required where there is no default."""
        value = self.optional_number(key)
        value = default if value is None else value
        if value is None:
            raise self.missing(key)
        return value

    def optional_number(self, key: str) -> float | None:
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise self.bad(key, value, "a positive number")
        return float(value)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """``count`` positive numbers; the entry is required."""
        values = self.get(key)
        if values is None:
            raise self.missing(key)
        if not isinstance(values, list) or len(values) != count:
            raise self.bad(key, values, f"a list of {count} numbers")
        if not all(isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < 1e30 for v in values):
            raise self.bad(key, values, "a list of positive numbers")
        return tuple(map(float, values))

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(key, value, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.bad(key, value, "a string")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of them; absent: none."""
        value = self.get(key)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i <= MAX_SIZE for i in ids):
            raise self.bad(key, value, "a token id or a list of them")
        return tuple(ids)

    def kinds(self, key: str, count: int, known: Collection[str]) -> list[str] | None:
        """[layer] words that are ``known``; None: there is no entry."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count or any(str(each) not in known for each in value):
            raise self.bad(key, value, f"{count} entries, each {' or '.join(known)}")
        return value

    def layers(self, key: str) -> list[int]:
        """Numbers of layers; absent: none."""
        value = self.get(key) or []
        if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
            raise self.bad(key, value, "a list of layers")
        return value

    def text_config(self) -> Fields:
        """The decoder's description, in one of a model that sees or hears."""
        text = self.within("text_config")
        if text is None:
            raise self.missing("text_config")
        # Released files say the ends outside, and both say whether the head is tied.
        outside = {key: self.get(key) for key in ("eos_token_id", "tie_word_embeddings") if self.get(key) is not None}
        return text.with_entries(**outside)

    def within(self, key: str) -> Fields | None:
        """A nested description; None where it is absent or empty."""
        value = self.get(key)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.bad(key, value, "an object")
        return Fields(value, f"{self.source}, {self.name(key)}")

    def with_entries(self, **entries: Any) -> Fields:
        """The same with others in the place of some."""
        changed = {self.name(key): value for key, value in entries.items()}
        return Fields({**self.entries, **changed}, self.source, self.prefix, self.names)

    def with_defaults(self, entries: Mapping[str, Any]) -> Fields:
        """The same with entries that it leaves out."""
        return self.with_entries(**{key: value for key, value in entries.items() if self.get(key) is None})

    def refuse(self, key: str, *values: Any, because: str) -> None:
        """Stop where the entry has one of ``values``: a feature that would silently give wrong numbers."""
        value = self.get(key)
        if value in values:
            raise UnsupportedModelError(
                f"{self.source}: {self.name(key)} is {value!r:.60}, {because}; use another model."
            )

    def unsupported(self, key: str, value: Any, wanted: str) -> UnsupportedModelError:
        """As ``bad``, for a value that means something which is not built."""
        return UnsupportedModelError(str(self.bad(key, value, wanted)))

    def require(self, key: str, value: Any, default: Any) -> None:
        """Stop where the entry, ``default`` if it is absent, is anything but ``value``: another kind of model."""
        found = self.get(key)
        if (default if found is None else found) != value:
            raise self.unsupported(key, found, repr(value))

    def missing(self, key: str) -> CheckpointError:
        return CheckpointError(f"{self.source} has no entry {self.name(key)!r}; fetch the model again.")

    def bad(self, key: str, value: Any, wanted: str) -> CheckpointError:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return CheckpointError(f"{self.source}: {self.name(key)} is {shown}, but must be {wanted}.")
