"""``headstart lab`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import headstart, refusal, rows

from headstart_lab.page.static_page import recorded_runs

PROMPT = "Name ten rivers = or lakes, please"


def runs_of(folder: Path) -> list[dict[str, object]]:
    html = (folder / "index.html").read_text(encoding="utf-8")
    data = json.loads(html.split('id="recorded-runs">')[1].split("</script>")[0])
    runs: list[dict[str, object]] = data["runs"]
    return runs


def test_the_page_is_written_with_the_runs_that_come_with_it(tmp_path: Path) -> None:
    done = headstart("lab", "--export", tmp_path / "page")
    assert done.exit_code == 0
    assert done.stdout == ""
    assert "index.html" in done.stderr
    assert runs_of(tmp_path / "page") == recorded_runs()
    assert headstart("lab", "--export", tmp_path / "quiet", "-q").stderr == ""
    (told,) = rows(headstart("lab", "--export", tmp_path / "told", "--json"))
    assert Path(told["page"]).is_file()
    assert told["recorded"] == []


@pytest.mark.thorough
def test_prompts_are_recorded_with_the_model_at_hand(tiny_model_dir: Path, tmp_path: Path) -> None:
    prompts = ["--record", PROMPT, "--record", "Hi"]
    done = headstart(
        "lab", "--export", tmp_path / "page", *prompts, "-m", tiny_model_dir, "-d", "suffix", "--max-tokens", 6
    )
    assert done.exit_code == 0
    first, second = runs_of(tmp_path / "page")
    assert (first["title"], first["prompt"]) == ("Name ten rivers = …", PROMPT)
    assert (second["title"], second["prompt"]) == ("Hi", "Hi")
    assert first["settings"] == {"temperature": 0, "max_tokens": 6}


@pytest.mark.parametrize("blocked", ["full", "file"])
def test_what_lies_there_is_not_written_over(tmp_path: Path, blocked: str) -> None:
    target = tmp_path / "page"
    if blocked == "full":
        target.mkdir()
        (target / "index.html").write_text("mine")
    else:
        target.write_text("mine")
    assert "exists already" in refusal(headstart("lab", "--export", target))
    kept = target / "index.html" if blocked == "full" else target
    assert kept.read_text() == "mine"


def test_a_prompt_that_does_not_fit_leaves_no_page(tiny_model_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "page"
    told = refusal(headstart("lab", "--export", target, "--record", "much " * 3000, "-m", tiny_model_dir))
    assert "prompt" in told
    assert not (target / "index.html").exists()


def test_an_empty_prompt_is_refused(tmp_path: Path) -> None:
    assert "--record" in refusal(headstart("lab", "--export", tmp_path / "page", "--record", " "), 2)
