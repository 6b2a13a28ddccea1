"""What is named on the command line and is not there is refused before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_checkpoint import write_tiny_model

from headstart.text.template_files import brings_template

SCRIPT = """
import sys
from headstart.cli.main import app

class Heavy:
    def find_spec(self, name, *_):
        if name in ("torch", "numpy", "tokenizers"):
            raise SystemExit(f"{name} was imported")
sys.meta_path.insert(0, Heavy())
calls = [line.split() for line in sys.stdin.read().splitlines()]
for call in calls:
    try:
        app(call, prog_name="headstart")
    except SystemExit as end:
        if end.code != 2:
            sys.exit(f"{call}: {end.code}")
"""
CALLS = {
    "generate x -m nonsense": "model is 'nonsense', which does not exist",
    "generate x -m smolm2": "did you mean 'smollm2'?",
    "chat -m ./no/where.gguf": "no/where.gguf",
    "chat -m {base}": "headstart generate, name a chat model with --model, or say how its messages are written with "
    "--chat-template FILE.",
    "generate --chat x -m {base}": "has no chat template",
    "chat -m {base} --chat-template nowhere.jinja": "chat_template is 'nowhere.jinja'",
    "serve -m nonsense": "nonsense",
    "transcribe -m nonsense {file}": "nonsense",
    "transcribe -m {model} ./nowhere.wav": "nowhere.wav cannot be read",
    "bench -m nonsense": "nonsense",
    "bench serve -m nonsense": "nonsense",
    "plan -m {folder}": "has no config.json",
    "plan -m {file}": "neither a .gguf file nor a directory",
    "audit -m nonsense": "nonsense",
    "acceptance -m nonsense": "nonsense",
    "paper -m nonsense": "nonsense",
    "quality -m nonsense": "nonsense",
    "quality -m {model} --text nowhere.txt": "nowhere.txt cannot be read",
    "bench -m {model} --prompts nowhere.jsonl": "nowhere.jsonl cannot be read",
    "train eagle3 -m nonsense --out {folder}/head": "nonsense",
    "derive -m nonsense --layers 2 --out {folder}/small": "nonsense",
    "export {folder}/nowhere -m {model} --to eagle --out {folder}/other": "nowhere is no directory",
    "import nowhere -m {model} --out {folder}/other": "there is no 'nowhere'",
    "lab --export {folder}/page --record Hello -m nonsense": "nonsense",
    "generate x -m {model} -d sufix": "did you mean 'suffix'?",
    "serve -m {model} --also sufix": "did you mean 'suffix'?",
    "bench -m {model} --drafters ngram,sufix": "did you mean 'suffix'?",
    "generate x -m {model} -d draft-model --draft-model nowhere": "draft_model is 'nowhere'",
    "bench -m {model} --drafters draft-model:model=nowhere": "is 'nowhere', which does not exist",
}


def test_wrong_names_are_refused_before_anything_heavy_is_imported(tiny_model_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "file.wav"
    file.touch()
    (tmp_path / "base").mkdir()
    base = write_tiny_model(tmp_path / "base", chat=False)
    calls = [call.format(model=tiny_model_dir, base=base, folder=tmp_path, file=file) for call in CALLS]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input="\n".join(calls), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    refusals = done.stderr.splitlines()
    assert len(refusals) == len(CALLS)
    for sentence, named in zip(refusals, CALLS.values(), strict=True):
        assert sentence.startswith("Error: ")
        assert named in sentence


def test_a_page_without_recordings_needs_no_model(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headstart", "lab", "--export", str(tmp_path / "page"), "-m", "nonsense"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("written", "brings"), [(b"tokenizer.chat_template", True), (b"tokenizer.ggml.model", False)])
def test_a_gguf_file_says_early_whether_it_talks(written: bytes, brings: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(200) + written + bytes(200))
    assert brings_template(path) is brings
