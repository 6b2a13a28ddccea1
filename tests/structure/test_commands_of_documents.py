"""Every command of README and docs is run as it is written, in its document's order and one folder.

The default model is a tiny one of as many layers. What would take minutes gets options behind its own that make it
short; what serves, compiles or measures for long is parsed alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import DEVICES
from multi_token_models import write_tiny_mimo
from test_documents import COMMANDS, ROOT, unknown
from thinning import thorough_but
from tiny_checkpoint import write_tiny_model
from tiny_encoder_decoders import make_model as make_encoder_decoder
from tiny_encoder_decoders import name_languages
from tiny_encoder_decoders import save_model as save_encoder_decoder
from typer.testing import CliRunner

import headstart
from headstart.cli.main import app
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.models.aliases import Alias
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from headstart_train.files.heads import save_head
from headstart_train.first_steps.eagle import eagle_config

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONG_PAGES = {"beam_search", "benchmarks", "cli", "models", "serving_elsewhere", "training"}
"""Those whose commands take more than seconds."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = {"", "bash", "sh", "console"}
SHORTER = {
    "generate": (),
    "drafters": (),
    "derive": (),
    "export": (),
    "import": (),
    "theory": (),
    "train": ("--tokens 300 --answer-tokens 8 --batch-size 24 --steps 2 --batch 2 --micro-batch 1 --length 256 -q",),
    "bench": ("--per-group 1 --max-tokens 4 --repeats 1 -q",),
    "acceptance": ("--per-group 1 --max-tokens 4 -q",),
}
"""Commands that are run, with what is added to them."""
LONG = {"chat", "transcribe", "lab", "serve", "native", "bench serve", "audit", "paper", "quality", "plan"}
"""Those that are not: their own tests run them."""


@dataclass(frozen=True)
class Call:
    """A line of a shell block that calls headstart: what feeds it, its words, the file that it writes."""

    line: str
    feed: str
    words: list[str]
    to: str | None

    @property
    def command(self) -> str:
        found, command = [], COMMANDS
        for word in self.words:
            if word not in getattr(command, "commands", {}):
                break
            command = command.commands[word]
            found.append(word)
        return " ".join(found)


def calls(text: str) -> list[Call]:
    """The lines of all shell blocks that call headstart."""
    blocks = [block.replace("\\\n", " ") for language, block in FENCE.findall(text) if language in SHELL]
    lines = [line for block in blocks for line in block.splitlines() if "headstart" in line]
    found = []
    for line in lines:
        line = re.split(r"\s+#", line.removeprefix("$ "))[0].strip()
        feed, _, last = line.rpartition(" | ") if " | " in line else ("", "", line)
        words = shlex.split(last)
        if words[:1] != ["headstart"]:
            continue
        to = None
        if ">" in words:
            to = words[words.index(">") + 1]
            words = words[: words.index(">")]
        found.append(Call(line, feed, words[1:], to))
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("default"), layers=30, head_dim=32)


@pytest.fixture(scope="module")
def others_head(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EAGLE-3 head as others publish it."""
    config, _ = load_decoder(open_checkpoint(model), torch.float32)
    directory = tmp_path_factory.mktemp("published") / "head"
    save_head(EagleHead(eagle_config(config, "eagle3", 64)), directory)
    return directory


@pytest.fixture(scope="module")
def encoder_decoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with an encoder, in directories of the names that the pages have for them."""
    root = tmp_path_factory.mktemp("encoder-decoders")
    for name, family in (
        ("t5-small", "t5"),
        ("bart-large-cnn", "bart"),
        ("nllb-200", "m2m-100"),
        ("m2m100", "m2m-100"),
    ):
        save_encoder_decoder(make_encoder_decoder(family), root / name)
    name_languages(root / "nllb-200", ["eng_Latn", "fra_Latn"])
    name_languages(root / "m2m100", ["__en__", "__de__", "__fr__"])
    return root


@pytest.fixture(scope="module")
def with_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that brings a multi-token module."""
    return write_tiny_mimo(tmp_path_factory.mktemp("modules"))


@pytest.fixture
def folder(
    model: Path,
    others_head: Path,
    with_modules: Path,
    encoder_decoders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A user's folder, with the files that the pages speak of."""
    monkeypatch.setattr(Alias, "installed_file", lambda self: model)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").symlink_to(model)
    (tmp_path / "EAGLE3-head").symlink_to(others_head)
    for name in ("MiMo-7B", "MiMo-7B-tuned"):
        (tmp_path / name).symlink_to(with_modules)
    asked = "".join(json.dumps({"id": i, "category": "qa", "turns": [f"Count to {i}."]}) + "\n" for i in range(8))
    for name in ("questions", "prompts", "spec_bench", "my"):
        (tmp_path / f"{name}.jsonl").write_text(asked)
    for directory in encoder_decoders.iterdir():
        (tmp_path / directory.name).symlink_to(directory)
    (tmp_path / "articles.jsonl").write_text('{"prompt": "The river is long."}\n')
    for name in ("notes", "my-notes"):
        (tmp_path / f"{name}.txt").write_text("The river is long. The river is wide.\n")
    return tmp_path


def run(call: Call) -> Any:
    """In this process, as a shell would."""
    stdin = subprocess.run(call.feed, shell=True, capture_output=True, check=True).stdout if call.feed else None
    more = [word for options in SHORTER[call.command] for word in shlex.split(options)]
    result = CliRunner().invoke(app, [*call.words, *more], input=stdin, prog_name="headstart")
    if call.to is not None:
        Path(call.to).write_text(result.stdout, encoding="utf-8")
    return result


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "page", thorough_but([page for page in PAGES if page.stem not in LONG_PAGES], PAGES), ids=lambda page: page.stem
)
def test_a_pages_commands_run_in_their_order(page: Path) -> None:
    for call in calls(page.read_text(encoding="utf-8")):
        assert call.command in LONG or call.command in SHORTER, call.line
        assert not list(unknown(shlex.join(["headstart", *call.words])))
        # Ray is in an environment of its own, where tests/integrations run such commands.
        there = "--ray" not in call.words and ("cuda" not in call.words or "cuda:0" in DEVICES)
        if call.command in SHORTER and there:
            result = run(call)
            assert result.exit_code == 0, f"{call.line}\n{result.output[-2000:]}"


def test_all_commands_of_the_pages_are_found() -> None:
    found = [call for page in PAGES for call in calls(page.read_text(encoding="utf-8"))]
    assert len(found) > 50
    assert {"generate", "train", "bench", "derive", "bench serve"} <= {call.command for call in found}
    text = "```bash\n$ cat a.txt | headstart generate - --json > b   # what for\nls\n```"
    assert calls(text) == [
        Call("cat a.txt | headstart generate - --json > b", "cat a.txt", ["generate", "-", "--json"], "b")
    ]


@pytest.mark.usefixtures("folder")
def test_a_folder_that_is_written_twice_would_be_noticed() -> None:
    twice = calls("```bash\nheadstart derive --layers 10 --out small\nheadstart derive --layers 2 --out small\n```")
    assert [run(call).exit_code for call in twice] == [0, 2]


@pytest.mark.usefixtures("folder")
def test_the_python_of_the_readme_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [block for language, block in FENCE.findall(text) if language == "python"]
    assert blocks
    for block in blocks:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(block, "README.md", "exec"), {"headstart": headstart})
        assert said.getvalue()
