"""``headstart train`` and ``headstart export`` from the command line to the files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_checkpoint import write_tiny_model

from headstart.cli import main as command
from headstart_train.checkpoints import Progress
from headstart_train.commands.writing_on_ray import RayWriting
from headstart_train.recipe import TrainedHead


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        command.app(list(arguments), prog_name="headstart")
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err


def test_train_then_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_tiny_model(model)
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(f'{{"prompt": "Say {i}."}}\n' for i in range(24)))
    text = ["--tokens", "200", "--answer-tokens", "6", "--batch-size", "24", "--prompts", str(asked)]
    training = ["--steps", "2", "--batch", "2", "--length", "128", "--draft-vocab", "64", "-q"]
    head = tmp_path / "head"
    code, out, err = run(capsys, "train", "eagle3", "--out", str(head), "-m", str(model), *text, *training)
    assert (code, err) == (0, "")
    assert "2 steps" in out
    assert "accepted length" in out
    exported = tmp_path / "exported"
    code, out, _ = run(capsys, "export", str(head), "--to", "speculators", "--out", str(exported), "-m", str(model))
    assert code == 0
    tensors = load_file(exported / "model.safetensors")
    assert tensors["layers.0.self_attn.q_proj.weight"].shape == (32, 64)
    assert tensors["d2t"].shape == (64,)
    again = ["--out", str(tmp_path / "again"), "-m", str(model)]
    code, _, err = run(capsys, "train", "eagle3", *again, *text, *training[:-1])
    assert code == 0
    (estimate,) = err.splitlines()  # further lines every ten seconds alone
    assert "200 tokens of text and" in estimate
    assert "on this machine" in estimate
    wrong = str(tmp_path / "wrong")
    code, _, err = run(capsys, "export", str(head), "--to", "medusa", "--out", wrong, "-m", str(model))
    assert code == 2
    assert "no form in the format 'medusa'; choose eagle3 or speculators or sglang or specforge." in err


def test_no_model_or_head_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_model(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for command_line in (("train", "medusa", "-q"), ("train", "draft-model", "-q"), ("export", "x", "--to", "eagle")):
        code, _, err = run(capsys, *command_line, "-m", str(tmp_path), "--out", str(tmp_path))
        assert code == 2
        assert "name another directory" in err or "name a new folder" in err
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_head(*_: Any, **__: Any) -> TrainedHead:
        raise KeyboardInterrupt

    monkeypatch.setattr("headstart_train.recipe.train_head", train_head)
    code, _, err = run(capsys, "train", "medusa", "--out", str(tmp_path))
    assert code == 130
    assert "the same command goes on" in err


def test_acceptance_that_was_not_measured_is_not_called_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart_train.recipe.train_head", lambda *_, **__: TrainedHead(tmp_path, Progress(), 1.0))
    code, out, _ = run(capsys, "train", "medusa", "--out", str(tmp_path), "-q")
    assert code == 0
    assert "accepted length" not in out
    assert "too little text" in out


@pytest.mark.parametrize(("first", "useless"), [(0.02, True), (0.29, True), (0.55, False)])
@pytest.mark.parametrize("minutes", [None, 42.0])
def test_a_head_that_is_no_good_yet_is_called_so(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    first: float,
    useless: bool,
    minutes: float | None,
) -> None:
    progress = Progress(step=7, best=1.8, held_out=[(0, 1.0, [0.9, 0.0]), (7, 1.8, [first, 0.1]), (8, 1.7, [0.8, 0.8])])
    done = TrainedHead(tmp_path, progress, 1.0, corpus=tmp_path / "corpus", minutes=2.04, enough_minutes=minutes)
    monkeypatch.setattr("headstart_train.recipe.train_head", lambda *_, **__: done)
    code, out, _ = run(capsys, "train", "medusa", "--out", str(tmp_path), "-q")
    assert code == 0
    assert f"7 steps, 2.0 min in all, accepted length 1.80 on held-out text ({first:.0%} of first guesses" in out
    assert (f"This head accepts {first:.0%} of its first guesses" in out) == useless
    assert ("headstart train medusa --minutes 50 --corpus" in out) == (useless and minutes is not None)
    code, out, _ = run(capsys, "train", "medusa", "--out", str(tmp_path), "-q", "--json")
    told = json.loads(out)
    assert (told["steps"], told["accepted_length"], told["first_guesses_accepted"]) == (7, 1.8, first)
    assert (told["useful"], told["enough_minutes"]) == (not useless, minutes)
    assert told["corpus"] == str(tmp_path / "corpus")


@pytest.mark.parametrize(
    ("arguments", "layers", "lr"),
    [
        (["draft-model"], None, 1e-3),
        (["draft-model", "--layers", "0,2", "--lr", "0.5"], (0, 2), 0.5),
        (["draft-model", "--layers", "2"], 2, 1e-3),
        (["pass"], None, 1e-2),
    ],
)
def test_layers_and_rates_arrive(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    layers: object,
    lr: float,
) -> None:
    seen: dict[str, Any] = {}

    def train_head(name: str, model: str, out: Path, **settings: Any) -> TrainedHead:
        seen.update(settings, name=name)
        return TrainedHead(out, Progress(), 1.0, leads=False)

    monkeypatch.setattr("headstart_train.recipe.train_head", train_head)
    code, _, err = run(capsys, "train", *arguments, "--out", str(tmp_path), "-q")
    assert (code, err) == (0, "")
    assert (seen["name"], seen["head"].layers, seen["settings"].lr) == (arguments[0], layers, lr)


def test_layers_that_are_no_numbers_are_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", "draft-model", "--layers", "few", "--out", str(tmp_path), "-q")
    assert code == 2
    assert "'few'" in err


@pytest.mark.parametrize(
    ("head", "option", "value"),
    [
        ("eagle3", "--slots", "6"),
        ("eagle3", "--residual-blocks", "2"),
        ("medusa", "--layers", "3"),
        ("medusa", "--unroll", "2"),
        ("pass", "--dropout", "0.1"),
    ],
)
def test_an_option_that_the_head_does_not_use_is_refused(
    tmp_path: Path, unread_model: Path, capsys: pytest.CaptureFixture[str], head: str, option: str, value: str
) -> None:
    code, _, err = run(capsys, "train", head, option, value, "--out", str(tmp_path), "-m", str(unread_model))
    assert code == 2
    (sentence,) = err.splitlines()
    assert sentence.startswith(f"Error: {option[2:].replace('-', '_')} is a setting of ")
    assert sentence.endswith(f"; leave it out for {head}.")


def test_what_cannot_be_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = run(capsys, "train", "eagle9", "--out", str(tmp_path))
    assert code == 2
    assert "eagle3" in err
    code, _, err = run(capsys, "train", "medusa", "--out", str(tmp_path), "-m", str(tmp_path / "nothing"))
    assert code == 2
    assert "does not exist" in err
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "export", str(tmp_path), "--to", "medusa", "--out", str(tmp_path / "file"))
    assert code == 2
    assert err == f"Error: --out is {tmp_path / 'file'}, which exists already; name a new folder, or empty it.\n"
    for folders in (["--out", str(tmp_path / "file")], ["--out", str(tmp_path), "--corpus", str(tmp_path / "file")]):
        code, _, err = run(capsys, "train", "medusa", *folders)
        assert code == 2
        assert err == f"Error: {folders[-2]} is {tmp_path / 'file'}, a folder that cannot be written: File exists.\n"
    for device, reason in (("gpu", "give cpu or cuda"), ("cuda", "finds no GPU here")):
        code, _, err = run(capsys, "train", "medusa", "--out", str(tmp_path), "--device", device)
        assert code == 2
        assert reason in err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--writers", "2"], "--writers is of text on Ray; give --ray as well."),
        (["--ray-address", "auto"], "--ray-address is of text on Ray; give --ray as well."),
        (["--cpus-per-writer", "2"], "--cpus-per-writer is of text on Ray; give --ray as well."),
        (["--ray"], "writing on Ray needs ray; install headstart with its extras: headstart[server,ray]."),
    ],
)
def test_writers_need_ray(
    given: list[str],
    said: str,
    tmp_path: Path,
    unread_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    status, _, err = run(capsys, "train", "medusa", "-m", str(unread_model), "-o", str(tmp_path / "head"), *given)
    assert status == 2
    assert err.strip().endswith(said)


def test_only_the_process_that_leads_connects_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with RayWriting(ray=True).connected() as writers:
        assert writers is None
