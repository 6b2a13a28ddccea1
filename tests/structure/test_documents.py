"""README and docs: their links lead somewhere, and their commands are ones that Headstart knows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer

from headstart.cli.main import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "heads").glob("*.md")])
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SHELL_FENCE = re.compile(r"^```(?:bash|sh|console|dockerfile)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`(headstart [^`]+)`(?!`)")
OPTION = re.compile(r"--?[a-z][\w-]*")
COMMANDS: Any = typer.main.get_command(app)


def anchors(document: Path) -> set[str]:
    """What its headings are linked by, as GitHub makes it: lower case, no punctuation, hyphens for spaces."""
    prose = FENCE.sub("", document.read_text(encoding="utf-8"))
    headings = [line.lstrip("#").strip().lower() for line in prose.splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def links(document: Path) -> list[str]:
    """Targets of its links to files of this repository or to headings."""
    prose = FENCE.sub("", document.read_text(encoding="utf-8"))
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in link]


def command_lines(text: str) -> list[str]:
    """Every call of ``headstart`` in shell blocks and in code spans, from its name to the end of the line."""
    blocks = [line for fence in SHELL_FENCE.findall(text) for line in fence.replace("\\\n", " ").splitlines()]
    spans = [" ".join(span.split()) for span in SPAN.findall(FENCE.sub("", text))]
    called = (re.search(r"(?:^|[ /])(headstart( .*|$))", re.split(r"\s+#", line)[0]) for line in blocks)
    return [match[1] for match in called if match] + spans


def unknown(line: str) -> Iterator[str]:
    """The words of a call that its command does not know: sub-commands and options."""
    words = list(takewhile(lambda word: word not in {"|", "&&", ">", ";"}, shlex.split(line)[1:]))
    command = COMMANDS
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if command is COMMANDS and words and not words[0].startswith("-"):
        yield words[0]
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"-h", "--help"}
    yield from (word for word in words if OPTION.fullmatch(word.split("=")[0]) and word.split("=")[0] not in known)


CALLS = [
    pytest.param(line, id=f"{document.name}: {line[:60]}")
    for document in DOCUMENTS
    if document.name != "CHANGELOG.md"
    for line in command_lines(document.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    dead = []
    for link in links(document):
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("line", CALLS)
def test_commands_know_their_options(line: str) -> None:
    assert not list(unknown(line))


def test_the_checks_find_what_is_wrong() -> None:
    text = "```\n$ .venv/bin/headstart generat x\n```\nand `headstart bench serve\n--rate 1 --url U`"
    assert [list(unknown(line)) for line in command_lines(text)] == [["generat"], ["--rate"]]
    assert len(CALLS) > 80


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = document.read_text(encoding="utf-8")
        assert set(re.findall(r"(?:^\$? ?|`)make ([\w-]+)", text, re.MULTILINE)) <= targets


def script_of(name: str) -> Path:
    """The file that ``python NAME`` or ``python -m NAME`` runs."""
    return ROOT / name if name.endswith(".py") else ROOT / "src" / f"{name.replace('.', '/')}.py"


def test_scripts_exist_and_know_their_options() -> None:
    calls = [
        call
        for document in DOCUMENTS
        for call in re.findall(
            r"python (?:-m )?((?:examples/|headstart_(?:lab|train)\.)[^`\n#]+)", document.read_text(encoding="utf-8")
        )
    ]
    assert any(call.startswith("headstart_lab") for call in calls)
    for call in calls:
        name, *rest = call.split()
        script = script_of(name)
        source = script.read_text(encoding="utf-8")
        beside = [
            script.with_name(f"{found}.py") for found in re.findall(r"^from (?:[\w.]+\.)?(\w+) import", source, re.M)
        ]
        source += "".join(path.read_text(encoding="utf-8") for path in beside if path.exists())
        assert not [word for word in rest if OPTION.fullmatch(word) and f'"{word}"' not in source], call


def spelt_out(name: str) -> list[str]:
    """A name with alternatives in braces, as the names that it stands for."""
    found = re.search(r"\{([^{}]*)\}", name)
    if found is None:
        return [name]
    return [
        each for part in found[1].split(",") for each in spelt_out(name[: found.start()] + part + name[found.end() :])
    ]


def test_results_that_are_cited_are_there() -> None:
    kept = [path.stem for path in (ROOT / "benchmarks" / "results").iterdir()]
    cited = {
        name.removesuffix(".json")
        for document in DOCUMENTS
        for found in re.findall(r"20\d\d-\d\d-\d\d-[\w.{},*-]*[\w}*]", document.read_text(encoding="utf-8"))
        for name in spelt_out(found)
    }
    assert len(cited) > 50
    assert not [name for name in cited if not any(fnmatchcase(stem, name) for stem in kept)]


def test_results_are_figures_and_no_pages() -> None:
    assert {path.suffix for path in (ROOT / "benchmarks" / "results").iterdir()} == {".json"}
    assert not list((ROOT / "src").rglob("report.html"))


def test_the_tables_of_the_plan_to_scale_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    draw = import_module("draw_scale")
    text = draw.PAGE.read_text(encoding="utf-8")
    assert draw.written(text) == text
    assert draw.written(re.sub(r"^\| AM.*\n", "", text, flags=re.MULTILINE)) == text
    assert all(f"`{name}`" in text for name in (*draw.SERVERS.values(), draw.WEIGHTS))
    # By hand: 2 cores x 10^6 / (606.7 tokens/s x 3600) core-hours, and 50 tokens asked each of 5 turns.
    assert "| AMX, bf16 | 16 | 607 | 593 | 0.92 |" in text
    assert draw.tokens_read(5, 50, 200, 1) == 250
    assert draw.tokens_read(2, 50, 200, 0) == 350


def test_the_papers_tables_and_pictures_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    draw = import_module("draw_paper")
    text = draw.PAGE.read_text(encoding="utf-8")
    assert draw.page(text) == text
    assert draw.page(re.sub(r"^\| (editing|text|T5 \(|GPT-like \().*\n", "", text, flags=re.MULTILINE)) == text
    for pair in draw.PAIRS:
        for name, svg in draw.pictures(pair).items():
            assert (draw.IMAGES / name).read_text(encoding="utf-8") == svg
            assert f"images/{name}" in text
    assert draw.draft_name("draft-model:model=a/b:layers=2, γ = 7") == "draft-model:layers=2, γ = 7"


def test_the_tables_and_charts_of_results_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    draw = import_module("draw_results")
    text = draw.PAGE.read_text(encoding="utf-8")
    assert draw.page(text) == text
    assert draw.page(re.sub(r"^\| (bf16|int8).*\n", "", text, flags=re.MULTILINE)) == text
    for machine in draw.SITTINGS:
        chart = (draw.IMAGES / f"results-{draw.slug(machine)}.svg").read_text(encoding="utf-8")
        assert draw.chart(machine) == chart
        assert f"images/results-{draw.slug(machine)}.svg" in text
