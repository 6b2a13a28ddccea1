"""A training's text on real Ray: the same bytes as without it, with a writer that is killed, after an interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from engine_environments import RAY, ROOT, needs, run_in
from tiny_checkpoint import write_tiny_model

pytestmark = [pytest.mark.engines, needs(RAY)]

PATIENCE = 300
FILES = ("tokens.i32", "answers.u8", "ends.i64", "corpus.json")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def training(model: Path, out: Path, *more: object, tokens: int = 6_800) -> subprocess.Popen[bytes]:
    """A training of one step; its text has five shards."""
    command = [
        RAY.python, "-c", "from headstart.cli.main import main; main()", "train", "medusa", "--model", model.name,
        "--precision", "fp32", "--out", out, "--tokens", tokens, "--answer-tokens", 6, "--steps", 1, "--batch", 1,
        "--micro-batch", 1, "--seed", 3, "--prompts", prompts(model), *more,
    ]  # fmt: skip
    variables = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with out.with_suffix(".log").open("ab") as log:
        # The model is named relative to where the command runs, which is not where the writers run.
        return subprocess.Popen(
            [*map(str, command)], stdout=log, stderr=log, env=os.environ | variables, cwd=model.parent
        )


def prompts(model: Path) -> Path:
    path = model.parent / "prompts.jsonl"
    path.write_text("".join(f'{{"prompt": "Say {i}."}}\n' for i in range(1000)))
    return path


def ended(run: subprocess.Popen[bytes], out: Path) -> dict[str, bytes]:
    """The corpus of a training that ended well."""
    assert run.wait(PATIENCE) == 0, out.with_suffix(".log").read_text(encoding="utf-8")[-4000:]
    return {name: (out / "corpus" / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[str, bytes]:
    """As one process writes it by itself."""
    out = model.parent / "alone"
    found = ended(training(model, out), out)
    assert len(found["ends.i64"]) > 8 * 4 * 256
    return found


@pytest.mark.parametrize("writers", [1, 2])
def test_the_text_is_the_same_for_any_number_of_writers(writers: int, model: Path, alone: dict[str, bytes]) -> None:
    out = model.parent / f"writers-{writers}"
    assert ended(training(model, out, "--ray", "--writers", writers), out) == alone


def test_a_killed_writer_costs_nothing(model: Path, alone: dict[str, bytes]) -> None:
    out = model.parent / "killed-writer"
    run = training(model, out, "--ray", "--writers", 2)
    until(run, lambda: bool(begun(out)))
    writers = actors(run.pid)
    assert writers
    os.kill(writers[0], signal.SIGKILL)
    assert ended(run, out) == alone


def test_an_interrupted_text_is_continued_with_the_same(model: Path, alone: dict[str, bytes]) -> None:
    out = model.parent / "killed"
    run = training(model, out, "--ray", "--writers", 2)
    until(run, lambda: bool(begun(out)))
    children = descendants(run.pid)
    run.kill()
    run.wait(PATIENCE)
    # Ray's own processes end when they miss the one that started them.
    until(None, lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()])
    written = begun(out)
    assert written
    assert ended(training(model, out, "--ray", "--writers", 1), out) == alone


def test_what_keeps_writers_from_writing_is_one_sentence(model: Path) -> None:
    said = run_in(RAY, Path(__file__).parent / "ray_writing_trial.py", [model], model.parent)
    assert said["room"] == "99 engines of 1 cores do not fit: this machine has 2."
    assert said["weights"].startswith("the writers on Ray stopped: model ")
    assert said["weights"].endswith("has other weights on the machine of a writer; give all the same.")


def begun(out: Path) -> int:
    """Bytes of documents that are in the corpus, or on its shelf."""
    corpus = out / "corpus"
    found = [*corpus.glob("shards/*.npz"), *corpus.glob("ends.i64")]
    return sum(path.stat().st_size for path in found if path.exists())


def until(run: subprocess.Popen[bytes] | None, true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert run is None or run.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)


def actors(ancestor: int) -> Sequence[int]:
    """Processes of a run that write."""
    return [pid for pid in descendants(ancestor) if "ShardWriter" in said(f"/proc/{pid}/cmdline")]


def descendants(ancestor: int) -> Sequence[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        # The name of a program may hold anything, brackets too; the parent stands behind it.
        fields = said(str(path / "stat")).rpartition(")")[2].split()
        if fields:
            parents[int(path.name)] = int(fields[1])

    def below(pid: int) -> bool:
        return pid == ancestor or (pid in parents and below(parents[pid]))

    return [pid for pid in parents if pid != ancestor and below(pid)]


def said(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
