"""Chat templates: transformers' output for sound templates, one clear error in bounded time for others."""

from __future__ import annotations

import json
import os
import signal
import threading
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import torch
from jinja2 import TemplateError
from safetensors.torch import save_file
from small_tokenizers import byte_level_metadata
from thinning import thorough_but
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import AutoTokenizer

from headstart.errors import CheckpointError, RequestError
from headstart.models.aliases import ALIASES, DEFAULT_MODEL
from headstart.models.checkpoint import Checkpoint, open_checkpoint
from headstart.text import bounded_process, sandbox
from headstart.text.bounded_process import BoundedProcess
from headstart.text.chat import ChatTemplate
from headstart.text.template_process import TemplateFailure, TemplateProcesses

USER = [{"role": "user", "content": "Hi"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "\u00e9 <b> 'x'\n\n  y "},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"b": 1, "a": ["\u00e9", "<", None, True]}}}]

SOUND_TEMPLATES = {
    "plain": "{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}",
    "specials": "{{ bos_token }}{% for m in messages %}{{ m.content ~ eos_token }}{% endfor %}",
    "prompt": "{% if add_generation_prompt %}<assistant>{% else %}<end>{% endif %}",
    "whitespace": "  {% if true %}\n    a\n  {% endif %}\n  {%- for m in messages -%}\n {{ loop.index }}\n{% endfor %}",
    "tools": "{% if tools %}{{ tools | tojson }}{{ tools[0] | tojson(indent=2) }}{% else %}none{% endif %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "loop-controls": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}"
    "{{ m.role }}{% break %}{% endfor %}",
    "macro": "{% macro show(m, mark='*') %}{{ mark }}{{ m.content }}{% endmacro %}"
    "{% for m in messages %}{{ show(m) }}{% endfor %}",
    "filters": "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(' | ') | upper }}"
    "{{ messages | length }}{{ 'a,b' | replace(',', ';') | title }}"
    "{{ messages | map(attribute='role') | unique | list }}"
    "{{ 'one\ntwo' | indent(2, true) }}{{ 2.567 | round(1) }}{{ '%s-%d' | format('a', 3) }}{{ '%s' % 'b' }}",
    "strings": "{{ 'a b c'.split(' ')[-1] }}{{ ' x '.strip() }}{{ 'abc'[::-1] }}{{ 'Abc'.startswith('A') }}"
    "{{ ', '.join(['a', 'b']) }}{{ 'ab' * 3 }}{{ 'aXb'.replace('X', '-') }}{{ '{}'.format('z') }}",
    "data": "{{ dict(a=1) | tojson }}{{ {'k': [1, 2.5, none]} | tojson }}"
    "{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}"
    "{{ (1, 2) + (3,) }}{{ [1] + [2] }}{{ 'role' in messages[0] }}{{ messages[0].get('name', 'nobody') }}",
    "undefined": "{{ nothing }}{% if nothing is defined %}x{% endif %}{{ nothing | default('d') }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "set-block": "{% set x %}{{ messages[0].role }}!{% endset %}{{ x | length }}{{ x }}",
    "variable": "{{ enable_thinking }}",
}


@pytest.mark.parametrize("messages", [USER, TALK], ids=["one", "talk"])
@pytest.mark.parametrize("source", SOUND_TEMPLATES.values(), ids=SOUND_TEMPLATES.keys())
def test_sound_templates_render_as_in_transformers(source: str, messages: list[dict[str, str]]) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    specials = {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate(source, specials)
    for prompt in (True, False):
        for tools in (None, TOOLS):
            (expected,), _ = render_jinja_template(
                [messages],
                tools=tools,
                chat_template=source,
                add_generation_prompt=prompt,
                enable_thinking=False,
                **specials,
            )
            assert template.render(messages, tools, prompt, variables={"enable_thinking": False}) == expected


@pytest.mark.parametrize("content", ["Once upon", "Once upon a ", "<end> again", "a {{ b }}"])
@pytest.mark.parametrize("name", ["plain", "specials", "generation", "macro"])
def test_a_message_is_continued_as_in_transformers(name: str, content: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    specials = {"bos_token": "<s>", "eos_token": "</s>"}
    messages = [*USER, {"role": "assistant", "content": content}]
    (expected,), _ = render_jinja_template(
        [messages], chat_template=SOUND_TEMPLATES[name], continue_final_message=True, **specials
    )
    said = ChatTemplate(SOUND_TEMPLATES[name], specials).render(messages, continue_final_message=True)
    # The template "plain" strips what it shows; here the space that the message ends with stays.
    assert said.rstrip() == expected.rstrip()
    assert said.endswith(content)


def test_what_a_template_says_behind_a_message_is_no_part_of_it() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}, said {{ m.role }} at the end{% endfor %}")
    messages = [{"role": "assistant", "content": "the end"}]
    assert template.render(messages, continue_final_message=True) == "the end"
    assert template.render([{"role": "assistant", "content": ""}], continue_final_message=True) == ""


def test_a_message_that_cannot_be_continued_is_refused() -> None:
    hiding = ChatTemplate("{{ messages | length }}")
    with pytest.raises(RequestError, match="does not show the last message") as refusal:
        hiding.render(USER, continue_final_message=True)
    assert refusal.value.field == "continue_final_message"
    with pytest.raises(RequestError, match="add_generation_prompt"):
        hiding.render(USER, None, True, continue_final_message=True)


@pytest.mark.model
def test_the_default_model_chats_as_transformers_has_it() -> None:
    if ALIASES[DEFAULT_MODEL].installed_file() is None:
        pytest.skip(f"the package {ALIASES[DEFAULT_MODEL].package!r} with the default model is not installed")
    from transformers.utils.chat_template_utils import render_jinja_template

    checkpoint = open_checkpoint(DEFAULT_MODEL)
    template = ChatTemplate.from_checkpoint(checkpoint)
    source = checkpoint.metadata["tokenizer.chat_template"]
    for messages in (USER, TALK):
        (expected,), _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=True)
        assert template.render(messages) == expected


# where templates come from


def gguf_checkpoint(**metadata: Any) -> Checkpoint:
    class NoWeights:
        def shapes(self) -> dict[str, tuple[int, ...]]:
            return {}

        def read(self, name: str, index: int | None = None) -> torch.Tensor:
            raise KeyError(name)

        def digest(self) -> str:
            return ""

    return Checkpoint("gguf", "some-model", Path("model.gguf"), {**byte_level_metadata(), **metadata}, NoWeights())


def directory_checkpoint(directory: Path, template: Any = None, file: str | None = None) -> Checkpoint:
    (directory / "config.json").write_text("{}")
    save_file({"weight": torch.zeros(2)}, directory / "model.safetensors")
    settings = {"bos_token": {"content": "<s>"}, "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    if file is not None:
        (directory / "chat_template.jinja").write_text(file)
    return open_checkpoint(directory)


def test_a_template_that_is_a_link_to_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("my key")
    (tmp_path / "other.jinja").write_text("other")
    folder, cached = tmp_path / "model", tmp_path / "hub" / "snapshots" / "revision"
    for each in (folder, cached, tmp_path / "hub" / "blobs", folder / "additional_chat_templates"):
        each.mkdir(parents=True, exist_ok=True)
    directory_checkpoint(folder), directory_checkpoint(cached)
    (tmp_path / "hub" / "blobs" / "f00d").write_text("cached")
    (cached / "chat_template.jinja").symlink_to("../../blobs/f00d")
    (folder / "chat_template.jinja").symlink_to(tmp_path / "other.jinja")
    for place, text in ((cached, "cached"), (folder, "other")):
        assert ChatTemplate.from_checkpoint(open_checkpoint(place)).default == text
    for name, target in (
        ("chat_template.jinja", tmp_path / "secret"),
        ("chat_template.jinja", "../secret"),
        ("additional_chat_templates/tool_use.jinja", "/etc/passwd"),
    ):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
        with pytest.raises(CheckpointError, match=r"is a link to .* outside the model's folder; put the template"):
            ChatTemplate.from_checkpoint(open_checkpoint(folder))
        (folder / name).unlink()


def test_a_gguf_file_brings_its_templates() -> None:
    template = ChatTemplate.from_checkpoint(
        gguf_checkpoint(
            **{
                "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}",
                "tokenizer.chat_templates": ["tool_use"],
                "tokenizer.chat_template.tool_use": "tools: {{ tools | length }}",
            }
        )
    )
    assert template.available
    assert template.render(USER) == "<|im_start|>Hi"
    assert template.render(USER, tools=TOOLS) == "tools: 1"


def test_a_directory_brings_its_template(tmp_path: Path) -> None:
    source = "{{ bos_token }}{{ messages[0].content }}"
    assert ChatTemplate.from_checkpoint(directory_checkpoint(tmp_path, source)).render(USER) == "<s>Hi"
    named = [{"name": "default", "template": source}, {"name": "tool_use", "template": "with tools"}]
    template = ChatTemplate.from_checkpoint(directory_checkpoint(tmp_path, named))
    assert (template.render(USER), template.render(USER, tools=TOOLS)) == ("<s>Hi", "with tools")
    template = ChatTemplate.from_checkpoint(directory_checkpoint(tmp_path, source, file="from the file"))
    assert template.render(USER) == "from the file"


NAMED = {"default": "the default", "tool_use": "with tools"}


@pytest.mark.parametrize(
    "settings",
    [None, "the default", "another", NAMED, {}, [], [{"name": n, "template": t} for n, t in NAMED.items()]],
)
@pytest.mark.parametrize("files", [{}, {"default": "of the file"}, {"default": "of the file", "tool_use": "and tools"}])
def test_a_directory_chats_as_in_transformers(tmp_path: Path, settings: Any, files: dict[str, str]) -> None:
    """Templates by name, in a dictionary, a list or files; with tools the one for them."""
    checkpoint = directory_checkpoint(tmp_path, settings, files.get("default"))
    (tmp_path / "additional_chat_templates").mkdir()
    for name, source in files.items():
        if name != "default":
            (tmp_path / "additional_chat_templates" / f"{name}.jinja").write_text(source)
    config = {"model_type": "llama", "num_attention_heads": 2, "hidden_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": settings}))
    Backend(models.BPE(vocab={"a": 0}, merges=[])).save(str(tmp_path / "tokenizer.json"))
    reference = AutoTokenizer.from_pretrained(tmp_path)
    template = ChatTemplate.from_checkpoint(checkpoint)
    assert template.available == bool(reference.chat_template)
    if template.available:
        for tools in (None, TOOLS):
            expected = reference.apply_chat_template(USER, tools=tools, tokenize=False)
            assert template.render(USER, tools=tools) == expected


def test_a_template_for_tools_alone_beside_the_settings_leaves_them_the_default(tmp_path: Path) -> None:
    """Where transformers has no default any more."""
    checkpoint = directory_checkpoint(tmp_path, "the default")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    template = ChatTemplate.from_checkpoint(checkpoint)
    assert (template.render(USER), template.render(USER, tools=TOOLS)) == ("the default", "with tools")


def test_templates_for_special_uses_alone_are_told(tmp_path: Path) -> None:
    template = ChatTemplate.from_checkpoint(directory_checkpoint(tmp_path, {"tool_use": "with tools", "rag": "x"}))
    assert template.render(USER, tools=TOOLS) == "with tools"
    with pytest.raises(RequestError, match=r"special uses only \(tool_use, rag\); give tools"):
        template.render(USER)


def test_templates_of_a_gguf_file_are_found_by_their_own_keys() -> None:
    keys = {"tokenizer.chat_template": "the default", "tokenizer.chat_template.tool_use": "with tools"}
    for listed in (7, [1, 2], ["another"], "tool_use"):
        template = ChatTemplate.from_checkpoint(gguf_checkpoint(**keys, **{"tokenizer.chat_templates": listed}))
        assert (template.render(USER), template.render(USER, tools=TOOLS)) == ("the default", "with tools")
    with pytest.raises(CheckpointError, match=r"tokenizer\.chat_template\.rag is of type int; it must be a text"):
        ChatTemplate.from_checkpoint(gguf_checkpoint(**keys, **{"tokenizer.chat_template.rag": 7}))


@pytest.mark.parametrize("value", [7, ["x"], [{"name": "default"}], {"default": 7}, [{"name": 1, "template": "x"}]])
def test_a_nonsensical_template_entry_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"chat_template of tokenizer_config\.json"):
        ChatTemplate.from_checkpoint(directory_checkpoint(tmp_path, value))


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    for checkpoint in (gguf_checkpoint(), directory_checkpoint(tmp_path)):
        template = ChatTemplate.from_checkpoint(checkpoint)
        assert not template.available
        with pytest.raises(RequestError, match="has no chat template; give a plain prompt"):
            template.render(USER)


# messages

ECHO = ChatTemplate("{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}")


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ECHO.render([{"role": "user", "content": parts}]) == "[user|a\nb]"


def test_only_plain_data_reach_the_template() -> None:
    class Role(StrEnum):
        USER = "user"

    template = ChatTemplate("{{ messages[0].role.value is defined }}{{ messages[0].role }}")
    assert template.render([{"role": Role.USER, "content": "x"}]) == "Falseuser"


def test_a_tool_call_needs_no_content() -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]
    assert ECHO.render(messages) == "[assistant|]"
    assert ChatTemplate("{{ 'said: ' + messages[0]['content'] }}").render(messages) == "said: "
    for odd in (5, "f", {"name": "f"}, [5, None, {"function": "f"}]):
        assert ECHO.render([{"role": "assistant", "content": "x", "tool_calls": odd}]) == "[assistant|x]"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [('{"a": [1, "é"]}', '{"a": [1, "é"]}'), ({"a": 1}, '{"a": 1}'), ("a: 1", '"a: 1"'), ("3", '"3"')],
)
def test_arguments_of_a_call_are_not_quoted_twice(arguments: Any, shown: str) -> None:
    """The API has them as JSON text; what is no object stays as it came."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments | tojson }}")
    assert template.render([{"role": "assistant", "content": None, "tool_calls": [call]}]) == shown


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty"),
        ("Hi", "messages is of type str; give a list"),
        (None, "messages is of type NoneType"),
        ({"role": "user", "content": "x"}, "messages is of type dict"),
        (["Hi"], r"messages\[0\] is of type str"),
        (
            [
                {
                    "role": "x",
                    "content": "",
                    "tool_calls": [{"function": {"arguments": '{"a": ' + "[" * 60 + "]" * 60 + "}"}}],
                }
            ],
            "nested more than 50",
        ),
        ([*USER, {"content": "x"}], r"messages\[1\]\.role is None"),
        ([{"role": 3, "content": "x"}], r"messages\[0\]\.role is 3"),
        ([{"role": "user"}], r"messages\[0\]\.content is missing"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content is of type int"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"messages\[0\]\.content\[0\] is not a text part"),
        ([{"role": "user", "content": "x", "extra": object()}], r"messages\[0\] holds a object"),
        ([{"role": "user", "content": "x", "extra": b"bytes"}], r"messages\[0\] holds a bytes"),
    ],
)
def test_malformed_messages_are_refused(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ECHO.render(messages)


def test_deeply_nested_messages_are_refused() -> None:
    value: Any = "x"
    for _ in range(100):
        value = [value]
    with pytest.raises(RequestError, match="nested more than 50 levels"):
        ECHO.render([{"role": "user", "content": "x", "extra": value}])


def test_a_template_may_refuse() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="roles must alternate"):
        template.render(USER)


# templates that mean harm

DOUBLING = (
    "{{% set ns = namespace(x={0}) %}}{{% for i in range(99) %}}{{% set ns.x = {1} %}}{{% endfor %}}{{{{ ns.x }}}}"
)
HUNDRED_THOUSAND = "'a' * 100000"

TOO_LARGE = {
    "range": "{% for i in range(10 ** 12) %}x{% endfor %}",
    "repeated-text": "{{ 'a' * 10 ** 12 }}",
    "repeated-list": "{{ [1] * 10 ** 12 }}",
    "doubled-by-tilde": DOUBLING.format("'a'", "ns.x ~ ns.x"),
    "doubled-by-plus": DOUBLING.format("'a'", "ns.x + ns.x"),
    "doubled-list": DOUBLING.format("[1]", "ns.x + ns.x"),
    "shared-list": DOUBLING.format("[1]", "[ns.x, ns.x]"),
    "shared-tuple": DOUBLING.format("[1]", "(ns.x, ns.x)"),
    "shared-dict": DOUBLING.format("[1]", "{'a': ns.x, 'b': ns.x}"),
    "squared-number": DOUBLING.format("9", "ns.x * ns.x"),
    "power": "{{ 9 ** 99999 }}",
    "rounding": "{{ 1.5 | round(99999999, 'ceil') }}",
    "replace": f"{{% set s = {HUNDRED_THOUSAND} %}}{{{{ s.replace('a', s) }}}}",
    "replace-filter": f"{{% set s = {HUNDRED_THOUSAND} %}}{{{{ s | replace('a', s) }}}}",
    "join": f"{{% set s = {HUNDRED_THOUSAND} %}}{{{{ s.join(s) }}}}",
    "join-filter": f"{{% set s = {HUNDRED_THOUSAND} %}}{{{{ s | join(s) }}}}",
    "percent": "{{ '%999999999d' % 1 }}",
    "percent-star": "{{ '%*d' % (999999999, 1) }}",
    "format": "{{ '{:999999999}'.format(1) }}",
    "format-nested": "{{ '{:{}}'.format(1, 999999999) }}",
    "format-colons": "{{ ('{' + ':' * 100000 + '{}}').format(1) }}",
    "format-filter": "{{ '%999999999d' | format(1) }}",
    "indent": "{{ 'a\nb' | indent(999999999) }}",
    "tojson": "{{ [1] | tojson(indent=999999999) }}",
    "date": "{{ strftime_now('%999999999d') }}",
    "output": "{% for i in range(9999) %}{{ 'a' * 9999 }}{% endfor %}",
    "captured": "{% set x %}{% for i in range(9999) %}{{ 'a' * 9999 }}{% endfor %}{% endset %}{{ x | length }}",
    "source": "x" * (1 << 21),
}


@pytest.mark.parametrize("source", TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_a_template_cannot_grow_without_bounds(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_ITEMS", 1 << 12)  # smaller than in earnest, for the test's own time
    with pytest.raises((TemplateError, OverflowError), match=r"more than|too large|Range too big"):
        sandbox.render(sandbox.compile_template(source), {})


ENDLESS = {
    "loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% for k in range(9999) %}" + "{% endfor %}" * 3,
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    "recursive-loop": "{% for x in [0] recursive %}{{ loop([0, 0]) }}{% endfor %}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_template_cannot_run_for_ever(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_STEPS", 1000)
    with pytest.raises((TemplateError, RecursionError), match=r"more than|recursion"):
        sandbox.render(sandbox.compile_template(source), {})


COSTLY = {
    "strip": "{{ ('ab' * 2000000).strip('a' * 1000000 ~ 'b') }}",
    "rfind": "{{ ('a' * 4000000).rfind('a' * 1000 ~ 'b' ~ 'a' * 1000) }}",
    "straight-line": "{% set s = 'ab' * 2000000 %}" + "{{ s.replace('a', 'b') | length }}" * 3000,
    "literal": "{{ [" + "1," * 200_000 + "] | length }}",
    "expression": "{{ 1" + " + 1" * 2000 + " }}{{ [" + "[1]," * 60_000 + "] | length }}",
}


@pytest.mark.parametrize("source", thorough_but([COSTLY["literal"]], COSTLY.values()), ids=COSTLY.keys())
def test_a_step_that_takes_for_ever_is_ended(source: str) -> None:
    processes = TemplateProcesses(0.2)
    for _ in range(2):
        with pytest.raises(TemplateFailure, match="takes more time or memory"):
            processes.render(source, {})
        assert processes.render("{{ 1 + x }}", {"x": 1}) == "2"


def test_a_template_that_cannot_be_compiled_in_time_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started = count_processes(monkeypatch)
    processes = TemplateProcesses(0.2)
    for _ in range(3):
        with pytest.raises(TemplateFailure, match="to be compiled"):
            processes.render(COSTLY["literal"], {})
    assert len(started) == 1


def test_a_template_is_compiled_once_and_its_process_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    started, asked = count_processes(monkeypatch), list[Any]()
    ask = BoundedProcess.ask
    monkeypatch.setattr(BoundedProcess, "ask", lambda self, *work: asked.append(work) or ask(self, *work))
    processes = TemplateProcesses()
    assert [processes.render("{{ x }}", {"x": x}) for x in range(5)] == list("01234")
    assert len(started) == 1
    assert [variables for _, variables in asked] == [None, *({"x": x} for x in range(5))]
    os.kill(started[0].pid, signal.SIGKILL)
    started[0].wait()
    assert processes.render("{{ x }}", {"x": 5}) == "5"
    assert len(started) == 2


def test_one_slow_rendering_holds_up_no_other() -> None:
    processes = TemplateProcesses(0.5)

    def wait() -> None:
        with pytest.raises(TemplateFailure):
            processes.render(COSTLY["strip"], {})

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert processes.render("{{ 1 }}", {}) == "1"
    waiting.join()


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_fork_renders_in_processes_of_its_own() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render(USER) == "Hi"
    child = os.fork()
    if not child:
        os._exit(0 if template.render(USER) == "Hi" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert template.render(USER) == "Hi"


def count_processes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that are started from now on."""
    started: list[Any] = []
    popen = bounded_process.subprocess.Popen

    def noted(*args: Any, **options: Any) -> Any:
        started.append(popen(*args, **options))
        return started[-1]

    monkeypatch.setattr(bounded_process.subprocess, "Popen", noted)
    return started


@pytest.mark.parametrize("name", ["self", "cls", "source", "messages_", "context", "class", "1", "", "__init__", "é "])
def test_a_variable_may_have_any_name(name: str) -> None:
    assert ECHO.render(USER, variables={name: 1}) == ECHO.render(USER)


def test_limits_hold_on_other_threads_and_do_not_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_STEPS", 100)
    outcomes: dict[int, str] = {}

    def run(number: int) -> None:
        template = sandbox.compile_template("{% for i in range(n) %}{{ i }}{% endfor %}")
        try:
            outcomes[number] = sandbox.render(template, {"n": number})
        except TemplateError:
            outcomes[number] = "refused"

    threads = [threading.Thread(target=run, args=(number,)) for number in (90, 110, 95, 120, 80)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number for number, outcome in outcomes.items() if outcome == "refused"} == {110, 120}
    assert outcomes[80] == "".join(map(str, range(80)))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ (messages | attr('__class__')).mro() }}",
        "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__.x }}",
        "{{ dict.__class__.x }}",
        "{{ namespace.__init__.__globals__ }}{{ namespace.__init__.__globals__.x }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'other'}) }}",
        "{{ messages[0].clear() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}{{ '{0.__class__}'.format('').x.y }}",
        "{{ 'a'.encode().decode() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'other' %}",
        "{{ step.__self__ }}",
    ],
)
def test_a_template_cannot_reach_out_of_the_sandbox(source: str) -> None:
    with pytest.raises(RequestError, match="cannot render"):
        ChatTemplate(source).render(USER)
    assert USER == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{",
        "{% for %}",
        "{% endfor %}",
        "{% if 1 %}" * 200,
        "{{ x | no_such_filter }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ messages() }}",
        "{{ [1][9].x }}",
        "{{ nothing.at.all }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ " + "(" * 3000 + ")" * 3000 + " }}",
        "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    ],
    ids=lambda source: source[:20],
)
def test_broken_templates_are_one_clear_error(source: str) -> None:
    with pytest.raises(RequestError, match="chat template"):
        ChatTemplate(source).render(USER)
