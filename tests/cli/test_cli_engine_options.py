"""Every front door takes every option: the same names, defaults, bounds and refusals, from one declaration."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_runs import headstart, refusal, rows

from headstart import LLM, AsyncLLM, ConfigError
from headstart.cli.main import app
from headstart.common.options import Declared, declared
from headstart.entrypoints.engine_options import AsyncEngineOptions, EngineOptions
from headstart_chat.commands.chat import ChatOptions
from headstart_integrations.ray.arguments import RayArguments
from headstart_lab.commands.bench_serve import BenchedOptions
from headstart_server.arguments import ServeArguments

OPTIONS = {each.name: each for each in declared(EngineOptions)}
WRITTEN = [each for each in OPTIONS.values() if each.option.written]
CLASSES: dict[str, Callable[..., Any]] = {
    "LLM": LLM, "AsyncLLM": AsyncLLM, "options": EngineOptions, "server": ServeArguments, "ray": RayArguments,
}  # fmt: skip
COMMANDS = {
    "generate": EngineOptions, "transcribe": EngineOptions, "lab": EngineOptions, "chat": ChatOptions,
    "serve": RayArguments,
}  # fmt: skip
BEFORE = {
    "generate": ["generate", "Hello"], "transcribe": ["transcribe", __file__], "lab": ["lab", "--export", "x"],
    "chat": ["chat"], "serve": ["serve"],
}  # fmt: skip
WRONG: dict[str, Any] = {
    "precision": "fp4", "numerics": "fast", "backend": "mine", "verify": "never", "max_context": 1, "max_batch_size": 0,
    "cache_tokens": 1, "max_rows": 0, "draft_tokens": -1, "tree_nodes": -1, "lenience": 0.0, "typical": 1.0,
    "draft_precision": "float16", "speculative_config": "{method: suffix}", "drafter_options": "3", "seed": -1,
    "drafter_store_bytes": 4095,
    "prefix_cache_bytes": 4095,
    "cache_type": "q4_0", "draft_cache_type": "int8",
}  # fmt: skip
"""A value that an option cannot have, as a command writes it too."""


def command(name: str) -> Any:
    return typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]


def test_every_option_says_what_it_is() -> None:
    for each in (*declared(RayArguments), *declared(AsyncEngineOptions)):
        assert each.option.help.endswith("."), each.name
        assert each.option.group, each.name
        assert "e+" not in each.option.range, each.name
    assert {each.name for each in fields(EngineOptions)} == set(OPTIONS)  # none lacks its declaration
    bounded = {each.name for each in OPTIONS.values() if each.option.range or each.choices is not None}
    assert bounded <= WRONG.keys() | {"backend"}  # the refusals below leave none of them out


@pytest.mark.parametrize("door", CLASSES)
def test_a_class_shows_them_all_with_their_types_and_defaults(door: str) -> None:
    shown = inspect.signature(CLASSES[door]).parameters
    assert list(shown)[:2] == ["model", "drafter"]
    assert [each.kind for each in shown.values()][:3] == [
        inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    ]  # fmt: skip
    own = ServeArguments._defaults if door in ("server", "ray") else {}
    for name, each in OPTIONS.items():
        assert shown[name].default == own.get(name, each.default), name
    if door in ("LLM", "AsyncLLM"):
        doc = " ".join((inspect.getdoc(CLASSES[door]) or "").split())
        assert all(f"{name}: {each.option.help}" in doc for name, each in OPTIONS.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_takes_them_all_by_all_their_names(name: str) -> None:
    flags = {flag: each for each in command(name).params for flag in (*each.opts, *each.secondary_opts)}
    for each in declared(COMMANDS[name]):
        for other in (each.name, *each.option.names, *each.option.elsewhere) if each.option.written else ():
            found = flags[f"--{other.replace('_', '-')}"]
            assert found.name == each.name
            wanted = None if each.option.repeated else getattr(each.default, "value", each.default)
            assert found.default == wanted, other
        for other in each.option.opposites:
            assert f"--{other.replace('_', '-')}" in flags[f"--{each.name.replace('_', '-')}"].secondary_opts


def said_by_class(kind: Callable[..., Any], given: Mapping[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        kind(**given)
    return str(caught.value)


@pytest.mark.parametrize("each", [OPTIONS[name] for name in WRONG], ids=lambda each: each.name)
def test_all_doors_refuse_the_same_values_in_the_same_words(each: Declared) -> None:
    """Before anything is read: there is no such model."""
    value = WRONG[each.name]
    nowhere = {"model": "/not/even/looked/at", each.name: value}
    sentence = said_by_class(EngineOptions, nowhere)
    assert sentence.startswith(f"{each.name} is ")
    assert sentence.endswith(".")
    for kind in CLASSES.values():
        assert said_by_class(kind, nowhere) == sentence
    assert said_by_class(lambda **given: RayArguments.read(given), {each.name: str(value)}) == sentence
    for name in (each.name, *each.option.names, *each.option.elsewhere) if each.option.written else ():
        written = f"--{name.replace('_', '-')}={value}"
        assert sentence.rstrip(".") in refusal(headstart("generate", "Hello", written))


@pytest.mark.parametrize("name", BEFORE)
def test_each_command_uses_the_declarations_words(name: str) -> None:
    for option, value in (("--max-model-len", "1"), ("--precision", "fp4"), ("--lenience", "2")):
        assert f"{option.removeprefix('--')} is" in refusal(headstart(*BEFORE[name], option, value)).replace(
            "max_context", "max-model-len"
        )


def test_an_unknown_option_is_named_with_what_was_meant() -> None:
    for kind in CLASSES.values():
        with pytest.raises(TypeError, match="no option 'max_contxt'; did you mean 'max_context'"):
            kind(max_contxt=3)


def test_a_file_may_write_values_as_text() -> None:
    read = RayArguments.read(
        {
            "max_num_seqs": "8", "enable_prefix_caching": "false", "enforce_eager": "true", "lenience": "0.5",
            "drafter_options": '{"max_order": 3}', "also": "ngram, suffix", "max_context": "none", "model": "123",
        }
    )  # fmt: skip
    assert (read.max_batch_size, read.prefix_caching, read.cuda_graphs, read.lenience) == (8, False, False, 0.5)
    assert (read.drafter_options, read.more_drafters) == ({"max_order": 3}, ("ngram", "suffix"))
    assert (read.max_context, read.model) == (None, "123")


def test_other_doors_choose_the_drafter_that_the_library_chooses(tiny_model_dir: Path) -> None:
    for given in (
        {"draft_model": str(tiny_model_dir), "draft_tokens": 3},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"drafter": "ngram:max_order=3"},
        {"draft_tokens": 0},
    ):
        engine = EngineOptions(tiny_model_dir, max_context=64, max_batch_size=1, **given)
        with LLM.from_options(engine) as llm:
            name, speculation = llm.drafter_name, llm.speculation
        other = AsyncLLM(tiny_model_dir, max_context=64, max_batch_size=1, **given)
        assert (other.llm.drafter_name, other.llm.speculation) == (name, speculation)
        other.close()
        for kind in (ServeArguments, RayArguments, ChatOptions):
            assert kind(tiny_model_dir, **given).check()[0] == name
    for kind in (EngineOptions, BenchedOptions):
        assert kind(draft_model=tiny_model_dir).check()[0] == "draft-model"


def test_options_reach_the_engine_from_a_command(tiny_model_dir: Path) -> None:
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 2})
    asked = ("--max-tokens=4", "--temperature=0", "--json", "--speculative-config", config)
    named = (
        "--enforce-eager",
        "--drafter-option=max_order=3",
        "--dtype=float32",
        "--max-num-seqs=2",
        "--cache-tokens=64",
    )
    (row,) = rows(headstart("generate", "abc", "-m", tiny_model_dir, *asked, *named))
    assert row["finish_reason"] == "length"
    assert "no option 'max_ordre'" in refusal(
        headstart("generate", "abc", "-m", tiny_model_dir, *asked, "--drafter-option=max_ordre=3")
    )
