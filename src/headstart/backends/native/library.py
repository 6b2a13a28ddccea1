"""The C interface as ctypes sees it: structures and functions of ``src/api.h``, read from there.

``library.Pass`` is ``HeadstartPass``. Structures are made by name. A name that ``api.h`` does not have is refused, and
so is a structure without one of the fields that have no ``{}`` there.
"""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from headstart.backends.native.isa import InstructionSet
from headstart.backends.native.toolchain import SOURCES

_NUMBERS: dict[str, Any] = {
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    **{f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class Record(ctypes.Structure):
    """A structure of the interface.

    Raises:
        TypeError: a field that has to be given is not, or one is given by position; without any, all of it is 0.
        AttributeError: there is no such field.
    """

    __slots__ = ()
    _required_: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **fields: Any) -> None:
        if fields and (missing := self._required_ - fields.keys()):
            raise TypeError(f"{type(self).__name__} lacks {', '.join(sorted(missing))}")
        super().__init__(**fields)


class Function(NamedTuple):
    """What a function gives and takes; None: nothing."""

    result: Any
    arguments: tuple[Any, ...]


class Interface:
    """What a header declares, by names without their prefixes.

    A pointer to a structure says to which, any other is an address.
    """

    def __init__(self, header: str) -> None:
        text = re.sub(r"//.*", "", header)
        self.structures: dict[str, type[Record]] = {}
        for name, body in re.findall(r"^struct Headstart(\w+) \{(.*?)^\};", text, re.MULTILINE | re.DOTALL):
            self.structures[name] = _structure(
                name, [field for each in body.split(";") for field in self.declared(each)]
            )
        self.functions: dict[str, Function] = {}
        for result, name, arguments in re.findall(r"^(\w[\w *]*)\bheadstart_(\w+)\(([^)]*)\);", text, re.MULTILINE):
            given = [field for each in arguments.split(",") for field in self.declared(each)]
            self.functions[name] = Function(
                self.declared(f"{result} result")[0][1], tuple(kind for _, kind, _ in given)
            )

    def declared(self, statement: str) -> list[tuple[str, Any, bool]]:
        """Names, types and whether they may be left out, of ``const int32_t *a, *b[2]{}``; empty of nothing."""
        found = re.match(r"\s*(?:const )?(\w+)(.*)", statement, re.DOTALL)
        if found is None:
            return []
        each = re.findall(r"((?:\*|const |\s)*)(\w+)(?:\[(\d+)\])?(\{\})?", found[2])
        return [(name, self._type(found[1], stars.count("*"), size), bool(blank)) for stars, name, size, blank in each]

    def _type(self, base: str, stars: int, size: str) -> Any:
        structure = self.structures.get(base.removeprefix("Headstart"))
        if stars > 1:
            return ctypes.POINTER(ctypes.c_void_p)
        if stars and base == "char":
            return ctypes.c_char_p
        if stars:
            return ctypes.c_void_p if structure is None else ctypes.POINTER(structure)
        if base == "void":
            return None
        plain = structure or _NUMBERS[base]
        return plain * int(size) if size else plain


def _structure(name: str, fields: list[tuple[str, Any, bool]]) -> type[Record]:
    required = frozenset(field for field, _, blank in fields if not blank)
    # Without slots of their own instances would take any name.
    members = {"__slots__": (), "_fields_": [(field, kind) for field, kind, _ in fields], "_required_": required}
    return type(name, (Record,), members)


INTERFACE = Interface((SOURCES / "api.h").read_text(encoding="utf-8"))

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

else:
    globals().update(INTERFACE.structures)


class Library:
    """One loaded library; each function of the interface is an attribute named without its prefix."""

    def __init__(self, handle: ctypes.CDLL, isa: InstructionSet, file_name: str) -> None:
        self.isa = isa.name
        self.file_name = file_name
        """Stands for everything that its behaviour depends on."""
        self.has_matrix_unit = isa.has_matrix_unit
        self.multiplies_bytes = isa.multiplies_bytes
        self.blocks_pay = isa.blocks_pay
        self.codebooks: set[str] = set()
        """Types whose codebooks it has been given."""
        for name, (result, arguments) in INTERFACE.functions.items():
            function = getattr(handle, f"headstart_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> ctypes._CFuncPtr: ...  # type: ignore[name-defined]
