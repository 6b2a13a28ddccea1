"""What all sub-commands share: quick help, one sentence for each error, quiet ends."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from cli_runs import headstart, refusal

import headstart as package
from headstart.cli import commands, prompts

COMMANDS = list(commands.every())
CALLS = [(), *((name,) for name in COMMANDS), ("bench", "serve")]
QUICK = [
    ["--version"],
    ["drafters"],
    *([*call, "--help"] for call in CALLS),
    *([*call, "--help-all"] for call in CALLS),
]


def test_help_imports_nothing_heavy() -> None:
    script = f"""
import sys
from pathlib import Path
from headstart.cli.main import app
for path in {QUICK!r}:
    try:
        app(path, prog_name="headstart")
    except SystemExit as end:
        assert end.code == 0, path
heavy = {{"torch", "numpy", "tokenizers", "transformers", "gguf", "jinja2"}} & set(sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Examples" in done.stdout


def test_help_names_every_command_and_is_shown_without_arguments() -> None:
    result = headstart()
    assert result.exit_code == 0
    assert result.stdout == headstart("--help").stdout
    assert all(command in result.stdout for command in COMMANDS)
    assert {"generate", "drafters", "derive", "theory"} <= set(COMMANDS)


def test_the_package_runs_as_a_module() -> None:
    run = [sys.executable, "-m", "headstart", "--version"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == headstart("--version").stdout


def test_version() -> None:
    result = headstart("--version")
    assert result.exit_code == 0
    assert result.stdout == f"headstart {package.__version__}\n"
    assert package.__version__ == version("headstart")
    assert "__version__" in dir(package)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nonsense"], "nonsense"),
        (["--nonsense"], "--nonsense"),
        (["generate", "x", "--top-k", "many"], "--top-k"),
        (["generate", "x", "--verify", "never"], "--verify"),
        (["generate"], "PROMPT"),
        (["derive", "--layers", "2"], "--out"),
        (["plan", "--what-if"], "--what-if"),
    ],
)
def test_misuse_is_one_sentence_with_status_2(arguments: list[str], named: str) -> None:
    sentence = refusal(headstart(*arguments), status=2)
    assert named in sentence
    whose = "" if arguments[0] not in COMMANDS else f" {arguments[0]}"
    assert f"Try 'headstart{whose} --help'" in sentence
    assert "Value error" not in sentence


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["genrate"], "did you mean 'generate'?"),
        (["bench", "sevre"], "did you mean 'serve'?"),
        (["generate", "x", "--temprature", "1"], "did you mean '--temperature'?"),
        (["serve", "--prot", "1"], "did you mean '--port'?"),
        (["generate", "x", "--precision", "bf61"], "did you mean 'bf16'?"),
        (["generate", "x", "--verify", "copled"], "did you mean 'coupled'?"),
        (["generate", "x", "--numerics", "exakt"], "did you mean 'exact'?"),
        (["theory", "tabel1"], "did you mean 'table1'?"),
        (["train", "eagel3", "--out", "x"], "did you mean 'eagle3'?"),
        (["generate", "x", "--drafter", "sufix"], "did you mean 'suffix'?"),
        (["generate", "x", "--drafter", "prompt_lookup"], "did you mean 'prompt-lookup'?"),
        (["generate", "x", "--drafter", "ngram:max_ordre=3"], "did you mean 'max_order'?"),
        (["serve", "--also", "recyling"], "did you mean 'recycling'?"),
        (["drafters", "eagel"], "did you mean 'eagle'?"),
        (["generate", "x", "-m", "smolm2"], "did you mean 'smollm2'?"),
    ],
)
def test_a_misspelt_name_gets_the_near_one(arguments: list[str], meant: str) -> None:
    assert meant in refusal(headstart(*arguments))


@pytest.mark.parametrize(
    "arguments", [["xyzzy"], ["generate", "x", "--xyzzy"], ["generate", "x", "--drafter", "xyzzy"]]
)
def test_what_is_like_nothing_gets_no_guess(arguments: list[str]) -> None:
    assert "did you mean" not in refusal(headstart(*arguments))


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_help_speaks_to_people(call: tuple[str, ...]) -> None:
    for page in ("--help", "--help-all"):
        shown = headstart(*call, page).stdout
        assert "Examples:" in shown
        assert not re.search(r"(<|\b)(bool|str|int|float|path|file|directory|list)([>\[]|<)", shown, re.IGNORECASE)


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(prompts, "one_prompt", broken)


def test_a_fault_of_ours_is_one_sentence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(RuntimeError("some\nthing"), monkeypatch)
    sentence = refusal(headstart("generate", "x"), status=1)
    assert "RuntimeError: some thing" in sentence
    assert "HEADSTART_TRACEBACK" in sentence


def test_a_fault_of_ours_shows_its_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(RuntimeError("something"), monkeypatch)
    assert isinstance(headstart("generate", "x", HEADSTART_TRACEBACK="1").exception, RuntimeError)


def test_what_the_system_refuses_is_no_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/some/file"), monkeypatch)
    assert refusal(headstart("generate", "x"), status=1) == "Error: /some/file: No space left on device."
    fail_with(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), monkeypatch)
    assert refusal(headstart("generate", "x"), status=1) == "Error: No space left on device."


def test_ctrl_c_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    result = headstart("generate", "x")
    assert result.exit_code == 130
    assert result.output == ""


@pytest.mark.parametrize("words", [["drafters", "--json"], ["drafters"], ["theory", "table1"], ["--help"], []])
def test_a_closed_pipe_is_silent(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", "from headstart.cli.main import main; main()", *words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == b""


def test_closed_streams_are_no_fault() -> None:
    command = f"{sys.executable} -c 'from headstart.cli.main import main; main()' drafters >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0


def options_of(*call: str) -> list[str]:
    """Long names, as the whole page of help explains them."""
    panels = headstart(*call, "--help-all").stdout.partition("Examples:")[2]
    return re.findall(r"^  (?:-\w, )?(--[a-z][\w-]*)", panels, flags=re.MULTILINE)


def test_the_manual_names_only_options_that_exist() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", manual))
    shown = "".join(headstart(*command, "--help-all").stdout for command in CALLS)
    assert named <= set(re.findall(r"(?<![\w-])--[a-z][\w-]*", shown))


def test_the_manual_names_every_option_of_generate() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert len(options_of("generate")) > 50
    for option in options_of("generate"):
        assert option in manual, option


PRESSED = """
import os, signal, sys
from headstart.__main__ import main
class Pressing:
    def find_spec(self, name, *_):
        if name == {name!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("half of it") from None
sys.meta_path.insert(0, Pressing())
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["headstart", "generate", "x", "-m", {model!r}]
main()
"""


@pytest.mark.parametrize(("name", "status"), [("typer", -signal.SIGINT), ("torch", 130)])
def test_ctrl_c_in_the_middle_of_an_import_is_silent(name: str, status: int, tiny_model_dir: Path) -> None:
    """While the command line itself is imported, and where an import has made another error of it."""
    script = PRESSED.format(name=name, model=str(tiny_model_dir))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
