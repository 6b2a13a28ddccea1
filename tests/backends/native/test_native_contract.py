"""What C++ and Python both write down is the same: the structures and functions of ``api.h``, and shared numbers."""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, Structure
from typing import get_args

import pytest

from headstart.backends.native import (
    backend,
    block_pass,
    formats,
    heads,
    library,
    packing,
    shapes,
    storage,
    stretch,
)
from headstart.backends.native.formats import (
    CROSS_LINEARS,
    DELTA_LINEARS,
    GATE_LINEARS,
    INPUT_LINEARS,
    LATENT_LINEARS,
    LINEARS,
    MAMBA_LINEARS,
    SIDE_LINEARS,
    TWO_MIXERS_LINEARS,
)
from headstart.backends.native.precision import PRECISIONS
from headstart.backends.native.toolchain import SOURCES
from headstart.drafting.planning import guess_rates, learned_acceptance, merged
from headstart.models.config import Activation, Channel, ExpertScore, GroupScore, Mixer, NormKind
from headstart.models.state_config import StateNorm
from headstart.passes import runner
from headstart.passes.draft_tree import MAX_GRADES, ROOT
from headstart.passes.rounds import MOST_GUESSERS

_NUMBERS = {
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    **{f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
Type = type[ctypes._SimpleCData] | type[ctypes.Array] | type[Structure] | None  # type: ignore[type-arg]


def source(name: str) -> str:
    """Without comments, white space in one piece."""
    text = re.sub(r"//.*|/\*.*?\*/", "", (SOURCES / name).read_text())
    return re.sub(r"\s+", " ", text)


API = source("api.h")


def python_struct(name: str) -> type[Structure]:
    """The structure of ``library`` that stands for one of ``api.h``."""
    assert name.startswith("Headstart")
    found = getattr(library, name.removeprefix("Headstart"), None)
    assert found is not None, f"library.py lacks {name}"
    return found


def ctype(base: str, declarator: str) -> Type:
    """What ``const base declarator`` is for ctypes. A pointer to a structure says to which, any other is an address."""
    stars = declarator.count("*")
    base = base.replace("const ", "").strip()
    if stars > 1:
        return POINTER(ctypes.c_void_p)
    if stars == 1:
        if base == "char":
            return ctypes.c_char_p
        return POINTER(python_struct(base)) if base.startswith("Headstart") else ctypes.c_void_p
    if base == "void":
        return None
    plain = _NUMBERS[base] if base in _NUMBERS else python_struct(base)
    size = re.search(r"\[(\d+)\]", declarator)
    return plain * int(size[1]) if size else plain


def declared(statement: str) -> list[tuple[str, Type]]:
    """Names and types of ``const int32_t *a, *b[2]``."""
    found = re.match(r"((?:const )?\w+)(.*)", statement)
    assert found is not None, statement
    fields = []
    for declarator in found[2].split(","):
        name = re.search(r"(\w+)\s*(?:\[\d+\])?$", declarator.strip())
        assert name is not None, statement
        fields.append((name[1], ctype(found[1], declarator)))
    return fields


STRUCTS = {
    name: [field for statement in body.split(";") if statement.strip() for field in declared(statement.strip())]
    for name, body in re.findall(r"struct (Headstart\w+) \{(.*?)\};", API)
}
PROTOTYPES = re.findall(r"((?:const )?\w+) ?(\*?)headstart_(\w+)\((.*?)\);", API)


def test_every_structure_is_known_on_both_sides() -> None:
    ours = {each for each in vars(library).values() if isinstance(each, type) and issubclass(each, Structure)}
    assert {python_struct(name) for name in STRUCTS} == ours - {Structure}
    assert len(STRUCTS) > 10


@pytest.mark.parametrize("name", STRUCTS)
def test_structures_have_the_same_fields(name: str) -> None:
    assert [(field[0], field[1]) for field in python_struct(name)._fields_] == STRUCTS[name]


def test_the_parser_tells_types_apart() -> None:
    """So that a field of another type is found."""
    assert declared("const int32_t *a, *b") == [("a", ctypes.c_void_p), ("b", ctypes.c_void_p)]
    assert declared("uint32_t key[2], counter[3]") == [("key", ctypes.c_uint32 * 2), ("counter", ctypes.c_uint32 * 3)]
    assert declared("float *const *rows") == [("rows", POINTER(ctypes.c_void_p))]
    assert declared("const HeadstartDraft *draft") == [("draft", POINTER(library.Draft))]
    assert declared("HeadstartGuesser guessers[2]") == [("guessers", library.Guesser * 2)]
    assert declared("double x")[0][1] is not ctypes.c_float


def test_functions_have_the_same_arguments() -> None:
    wanted = {}
    for result, star, name, arguments in PROTOTYPES:
        parsed = [declared(each.strip()) for each in arguments.split(",") if each.strip()]
        wanted[name] = (ctype(result, star), tuple(each[0][1] for each in parsed))
    assert library._SIGNATURES.keys() == wanted.keys()
    for name, (result, arguments) in wanted.items():
        ours = library._SIGNATURES[name]
        assert ours[0] is result, name
        assert len(ours[1]) == len(arguments), name
        for here, there in zip(ours[1], arguments, strict=True):
            # A structure that is filled somewhere else may be passed by its address.
            assert here is there or (here is ctypes.c_void_p and issubclass(there, ctypes._Pointer)), name


def constant(name: str) -> float:
    """Of any header; all of them agree."""
    texts = [source(path.relative_to(SOURCES).as_posix()) for path in SOURCES.rglob("*.h")]
    found = {value for text in texts for value in re.findall(rf"\b{name} = ([-\w.]+)[,;]", text)}
    assert len(found) == 1, f"{name}: {found}"
    return float(found.pop())


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("kGuessers", MOST_GUESSERS),
        ("kRoot", ROOT),
        ("kAgreed", MAX_GRADES),
        ("kAgreed", guess_rates.AGREED),
        ("kContradicted", guess_rates.CONTRADICTED),
        ("kMostCertain", merged._MOST_CERTAIN),
        ("kClues", learned_acceptance.CLUES),
        ("kLeast", guess_rates._LEAST),
        ("kUnsaid", stretch._UNSAID),
        ("kLinears", formats.MATRICES),
        ("kHeadGates", shapes._HEAD_GATES),
        ("kMostLength", backend._MOST_LENGTH),
        ("kPageKeys", storage.PAGE_KEYS),
        ("kPageKeys", runner.BLOCK_SIZE),
    ],
)
def test_shared_numbers(name: str, ours: float) -> None:
    assert constant(name) == ours


def enumerators(header: str, name: str) -> list[str]:
    found = re.search(rf"enum (?:class )?{name} {{(.*?)}}", source(header))
    assert found is not None
    return [each.strip() for each in found[1].split(",") if each.strip()]


def snake(name: str) -> str:
    """``kMlpPostNorm`` as ``mlp_post_norm``."""
    words = re.sub(r"([A-Z])", r"_\1", name.removeprefix("k")).lower().removeprefix("_")
    return words.replace("query_", "q_").replace("key_", "k_")


def linears(name: str) -> list[str]:
    """Matrices of a layer; those of some kinds of attention have the numbers behind the ones that all layers have."""
    first, *others = enumerators("pass/decoder_layer.h", name)
    assert name == "LinearIndex" or first.endswith(" = kOwnLinears")
    return [snake(each) for each in (first.partition(" = ")[0], *others)]


def test_enumerations_are_in_the_same_order() -> None:
    # "blocks" and "nearest" are int4 to the library; "fine", "stored" and "float8" are forms of single matrices.
    named = [each.replace("-", "_") for each in PRECISIONS if each not in ("blocks", "nearest")]
    assert enumerators("kernels/products/linear.h", "Precision") == [*named, "fine", "stored", "float8"]
    assert enumerators("kernels/products/rowwise.h", "NormKind") == list(get_args(NormKind))
    assert enumerators("kernels/vectors/vector_math.h", "Activation") == list(get_args(Activation))
    assert linears("LinearIndex") == [*LINEARS, "own_linears"]
    assert linears("CrossLinearIndex") == list(CROSS_LINEARS)
    assert linears("LatentLinearIndex") == list(LATENT_LINEARS)
    assert linears("GateLinearIndex") == list(GATE_LINEARS)
    assert linears("InputLinearIndex") == list(INPUT_LINEARS)
    side = enumerators("pass/decoder_layer.h", "SideLinearIndex")
    assert side[0].endswith(" = kInputOutput + 1")
    assert [snake(each.partition(" = ")[0]) for each in side] == list(SIDE_LINEARS)
    assert linears("MambaLinearIndex") == list(MAMBA_LINEARS)
    assert linears("TwoMixersLinearIndex") == list(TWO_MIXERS_LINEARS)
    assert linears("DeltaLinearIndex") == list(DELTA_LINEARS)
    for name, ours in (("Mixer", Mixer), ("Channel", Channel), ("StateNorm", StateNorm)):
        assert enumerators("pass/decoder_layer.h", name) == [each.replace("+", "_") for each in get_args(ours)]
    assert [snake(each) for each in enumerators("pass/decoder_layer.h", "NormIndex")] == [*packing.NORMS, "norms"]
    constants = [snake(each) for each in enumerators("pass/decoder_layer.h", "ConstantIndex")]
    assert constants == [*packing.CONSTANTS, "constants"]
    experts = [snake(each).removeprefix("expert_") for each in enumerators("pass/experts.h", "ExpertLinearIndex")]
    assert experts == [*formats.EXPERT_LINEARS, "linears"]
    assert enumerators("pass/experts.h", "ExpertScore") == list(get_args(ExpertScore))
    assert enumerators("pass/experts.h", "GroupScore") == list(get_args(GroupScore))
    own = {name: index for index, name in enumerate(enumerators("pass/decoder_layer.h", "OwnNormIndex"))}
    assert own == {
        "kFinalNorm": packing.FINAL_NORM,
        "kFeatureNorm": packing.FEATURE_NORM,
        "kEmbeddingNorm": packing.EMBEDDING_NORM,
        "kInputsNorm": packing.INPUTS_NORM,
        "kPartNorms": packing.PART_NORMS,
    }
    entries = {name: index for index, name in enumerate(enumerators("pass/decoder.h", "Entry"))}
    assert entries == {
        "token": 0,
        "fused": heads._FUSED,
        "beside": heads._BESIDE,
        "beside_normed": heads._BESIDE_NORMED,
        "block": block_pass._BLOCK,
    }
