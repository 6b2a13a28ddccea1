"""What C++ and Python both say is the same: ``api.h`` as it is read from Python, and numbers that both write down."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from headstart.backends.native import (
    block_pass,
    heads,
    library,
    matrices,
    packing,
    shapes,
    storage,
    stretch,
    supported,
)
from headstart.backends.native.matrices import (
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
from headstart.drafting.planning import guess_rates
from headstart.models.config import Activation, Channel, Gate, Mixer, NormKind
from headstart.models.experts_config import ExpertScore, GroupScore
from headstart.models.state_config import StateNorm
from headstart.passes import runner
from headstart.passes.draft_tree import MAX_GRADES, ROOT
from headstart.passes.rounds import MOST_GUESSERS

STRUCTURES = library.INTERFACE.structures


def source(name: str) -> str:
    """Without comments, white space in one piece."""
    text = re.sub(r"//.*|/\*.*?\*/", "", (SOURCES / name).read_text())
    return re.sub(r"\s+", " ", text)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_structures_lie_as_the_compiler_lays_them(tmp_path: Path) -> None:
    lines = ['#include <cstddef>\n#include "api.h"']
    for name, structure in STRUCTURES.items():
        lines.append(f"static_assert(sizeof(Headstart{name}) == {ctypes.sizeof(structure)});")
        for field, *_ in structure._fields_:
            place = getattr(structure, field)
            where = f"offsetof(Headstart{name}, {field}) == {place.offset}"
            lines.append(f"static_assert({where} && sizeof(Headstart{name}::{field}) == {place.size});")
    (tmp_path / "layout.cpp").write_text("\n".join(lines))
    done = subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", f"-I{SOURCES}", str(tmp_path / "layout.cpp")],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_everything_that_is_declared_is_read() -> None:
    text = source("api.h")
    assert sorted(re.findall(r"struct Headstart(\w+) {", text)) == sorted(STRUCTURES)
    assert sorted(re.findall(r"headstart_(\w+)\(", text)) == sorted(library.INTERFACE.functions)
    defined = re.findall(r"HEADSTART_API [^(]*headstart_(\w+)\(", source("api.cpp"))
    assert sorted(defined) == sorted(library.INTERFACE.functions)


def test_types_are_told_apart() -> None:
    header = """
struct HeadstartInner {
  uint32_t key[2], more{};  // comment, with commas; and signs {}
};
struct HeadstartOuter {
  const int32_t *a, *b{};
  float *const *rows;
  const HeadstartInner *inner;
  HeadstartInner inners[2]{};
  double x;
};
const char *headstart_run(void *model, const HeadstartOuter *outer,
                          int64_t *bytes, float scale);
void headstart_stop();
"""
    read = library.Interface(header)
    inner, outer = read.structures["Inner"], read.structures["Outer"]
    assert inner._fields_ == [("key", ctypes.c_uint32 * 2), ("more", ctypes.c_uint32)]
    assert outer._fields_ == [
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("rows", ctypes.POINTER(ctypes.c_void_p)),
        ("inner", ctypes.POINTER(inner)),
        ("inners", inner * 2),
        ("x", ctypes.c_double),
    ]
    arguments = (ctypes.c_void_p, ctypes.POINTER(outer), ctypes.c_void_p, ctypes.c_float)
    assert read.functions == {"run": (ctypes.c_char_p, arguments), "stop": (None, ())}


def test_structures_are_made_by_name() -> None:
    fields = {"passes": 3, "pass_seconds": None, "other_seconds": 0.5, "plain_seconds": 1.0, "allowance": 2.0}
    fields |= {"least_gain": 1.0, "most_certain": 1.0}
    cut_rule = library.CutRule(**fields)
    assert (cut_rule.passes, cut_rule.other_seconds) == (3, 0.5)
    assert library.Rows(data=None, row_bytes=8, kind=1, rows=2).order is None
    some = {name: value for name, value in fields.items() if name not in ("pass_seconds", "plain_seconds")}
    with pytest.raises(TypeError, match="CutRule lacks pass_seconds, plain_seconds"):
        library.CutRule(**some)
    with pytest.raises(TypeError, match="positional"):
        library.CutRule(3, None, 0.5)
    with pytest.raises(AttributeError, match="seconds"):
        library.CutRule(**fields, seconds=1.0)
    with pytest.raises(AttributeError, match="passed"):
        cut_rule.passed = 4
    assert library.CutRule().passes == 0  # blank, as in an array


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
        ("kUnsaid", stretch._UNSAID),
        ("kLinears", matrices.MATRICES),
        ("kHeadGates", 1 + get_args(Gate).index("head")),
        ("kMostLength", supported._MOST_LENGTH),
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
    # "blocks" and "nearest" are int4 to the library; "stored" and "float8" are forms of single matrices.
    named = [each.replace("-", "_") for each in PRECISIONS if each not in ("blocks", "nearest")]
    assert enumerators("kernels/products/linear.h", "Precision") == [*named, "stored", "float8"]
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
    assert experts == [*matrices.EXPERT_LINEARS, "linears"]
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
        "module": shapes._MODULE,
        "module_feature_first": shapes._MODULE_HIDDEN_FIRST,
    }
