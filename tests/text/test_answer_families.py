"""Forms of calls and thoughts of the families, as their models' cards and templates describe them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from headstart.errors import ConfigError
from headstart.text.answers.choosing import call_forms, check_names, choose, known_names, thought_forms
from headstart.text.answers.events import Answer, Arguments, told
from headstart.text.answers.reader import AnswerReader
from headstart.text.answers.tools import Tools

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "where": {"type": "object"},
    "wind": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
}
TOOLS = Tools({"weather": {"type": "object", "properties": PROPERTIES}, "time.now": {"type": "object"}})
ARGUMENTS = {"city": 'São "Paulo"\n<b>', "days": 3, "tags": ["a", "b c"], "where": {"x": 1.5, "y": None}, "wind": True}
JSON = json.dumps(ARGUMENTS, ensure_ascii=False)
TEXTS = {name: json.dumps(value) if name != "city" else value for name, value in ARGUMENTS.items()}
PYTHON = ", ".join(f"{name}={value!r}" for name, value in ARGUMENTS.items())
DSML = "｜DSML｜"


def pairs(form: str, between: str = "") -> str:
    return between.join(form.format(name=name, value=value) for name, value in TEXTS.items())


def dsml() -> str:
    told = [
        f'<{DSML}parameter name="{name}" string="{str(name == "city").lower()}">{value}</{DSML}parameter>\n'
        for name, value in TEXTS.items()
    ]
    return f'<{DSML}invoke name="weather">\n{"".join(told)}</{DSML}invoke>\n'


GEMMA = '{city:<|"|>São "Paulo"\n<b><|"|>,days:3,tags:[<|"|>a<|"|>,<|"|>b c<|"|>],where:{x:1.5,y:null},wind:true}'
OBJECT = f'{{"name": "weather", "arguments": {JSON}}}'
XML = pairs("<parameter={name}>\n{value}\n</parameter>\n")
PARAMETERS = pairs('<parameter name="{name}">{value}</parameter>\n')
INVOKE = f'<invoke name="weather">\n{PARAMETERS}</invoke>\n'
BARE = pairs("<parameter={name}>{value}</parameter>")
GLM45 = pairs("<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>\n")
GLM47 = pairs("<arg_key>{name}</arg_key><arg_value>{value}</arg_value>")
CALLS = "<｜tool▁calls▁begin｜>{0}<｜tool▁calls▁end｜>"
FORMS: list[tuple[str, str]] = [
    ("hermes", f"<tool_call>\n{OBJECT}\n</tool_call>"),
    ("hermes", f'<tool_call>{{"arguments": {JSON}, "name": "weather"}}</tool_call>'),
    ("hermes", f'<tool_call>{{"name": "weather", "arguments": {json.dumps(JSON)}}}</tool_call>'),
    ("ernie45", f"<tool_call>\n{OBJECT}\n</tool_call>\n"),
    ("qwen3_coder", f"<tool_call>\n<function=weather>\n{XML}</function>\n</tool_call>"),
    ("qwen3_coder", f"<function=weather>\n{XML}</function>"),
    ("qwen3_coder", f"<function=weather>{BARE}</function></tool_call>"),
    ("seed_oss", f"<seed:tool_call>\n<function=weather>\n{XML}</function>\n</seed:tool_call>"),
    ("glm45", f"<tool_call>weather\n{GLM45}</tool_call>"),
    ("glm47", f"<tool_call>weather{GLM47}</tool_call>"),
    ("llama3_json", f'<|python_tag|>{{"name": "weather", "parameters": {JSON}}}'),
    ("llama4_pythonic", f"<|python_start|>[weather({PYTHON})]<|python_end|>"),
    ("lfm2", f"<|tool_call_start|>[weather({PYTHON})]<|tool_call_end|>"),
    ("olmo3", f"<function_calls>weather({PYTHON})</function_calls>"),
    ("gemma4", f"<|tool_call>call:weather{GEMMA}<tool_call|>"),
    ("functiongemma", "<start_function_call>call:weather" + GEMMA.replace('<|"|>', "<escape>") + "<end_function_call>"),
    (
        "deepseek_v3",
        CALLS.format(f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{JSON}\n```<｜tool▁call▁end｜>"),
    ),
    ("deepseek_v31", CALLS.format(f"<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>")),
    ("deepseek_v32", f"<{DSML}function_calls>\n{dsml()}</{DSML}function_calls>"),
    ("deepseek_v4", f"<{DSML}tool_calls>\n{dsml()}</{DSML}tool_calls>"),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        f"{JSON}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    ("minimax_m2", f"<minimax:tool_call>\n{INVOKE}</minimax:tool_call>"),
    ("minimax", f"<tool_calls>\n{OBJECT}\n</tool_calls>"),
    ("mistral", f"[TOOL_CALLS]weather[ARGS]{JSON}"),
    ("mistral", f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{JSON}"),
    ("mistral", f"[TOOL_CALLS]weather{JSON}"),
    ("mistral", f"[TOOL_CALLS] [{OBJECT}]"),
    (
        "cohere",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": '
        f"{JSON}}}\n]<|END_ACTION|>",
    ),
    ("hunyuan_a13b", f"<tool_calls>[{OBJECT}]</tool_calls>"),
    ("phi4_mini_json", f"functools[{OBJECT}]"),
    ("phi4_mini_json", f"<|tool_call|>[{OBJECT}]<|/tool_call|>"),
    ("granite", f"<|tool_call|>[{OBJECT}]"),
]
ALONE: list[tuple[str, str, int]] = [
    ("llama3_json", f'{{"name": "weather", "parameters": {JSON}}}', 1),
    ("llama3_json", f'{{"name": "weather", "parameters": {JSON}}}; {{"name": "weather", "parameters": {JSON}}}', 2),
    ("llama4_pythonic", f"[weather({PYTHON})]", 1),
    ("llama4_pythonic", f"[weather({PYTHON}), weather({PYTHON})]", 2),
    ("lfm2", f"<|tool_call_start|>[weather({PYTHON}), weather({PYTHON})]<|tool_call_end|>", 2),
    ("hermes", f"[{OBJECT}, {OBJECT}]", 2),
    ("hunyuan_a13b", f"<tool_calls>[{OBJECT}, {OBJECT}]</tool_calls>", 2),
    ("minimax", f"<tool_calls>\n{OBJECT}\n{OBJECT}\n</tool_calls>", 2),
    ("minimax_m2", f"<minimax:tool_call>\n{INVOKE}{INVOKE}</minimax:tool_call>", 2),
    ("deepseek_v32", f"<{DSML}function_calls>\n{dsml()}{dsml()}</{DSML}function_calls>", 2),
    ("mistral", f"[TOOL_CALLS]weather[ARGS]{JSON}[TOOL_CALLS]weather[ARGS]{JSON}", 2),
]


def reader(name: str, thoughts: str | None = None, thinking: bool = False) -> AnswerReader:
    form = next(form for form in call_forms() if name in form.names)
    thought = next((form for form in thought_forms() if thoughts in form.names), None)
    return AnswerReader(TOOLS, form, thought, thinking=thinking)


def pieces_of(text: str, seed: int) -> Iterable[str]:
    generator, at = random.Random(seed), 0
    while at < len(text):
        size = generator.choice((1, 1, 2, 5, 17, 60))
        yield text[at : at + size]
        at += size


def same(answer: Answer) -> tuple[str, str, list[tuple[str, str]]]:
    return answer.text, answer.thought, [(call.name, call.arguments) for call in answer.calls]


def read_anyhow(text: str, name: str, thoughts: str | None = None) -> Answer:
    """An answer, which must be the same however it is cut."""
    whole = told(reader(name, thoughts).all(text))
    streams = [pieces_of(text, seed) for seed in range(4)]
    streams += [(text[:cut], text[cut:]) for cut in range(0, len(text), 1 + len(text) // 60)]
    for pieces in streams:
        parser = reader(name, thoughts)
        events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
        assert same(told(events)) == same(whole)
    return whole


def arguments_of(answer: Answer) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


@pytest.mark.parametrize(("name", "call"), FORMS)
def test_a_call_of_each_family_is_found_in_its_text(name: str, call: str) -> None:
    assert arguments_of(read_anyhow(call, name)) == [("weather", ARGUMENTS)]
    assert read_anyhow(call, name).text == ""
    answer = read_anyhow(f"I look.\n{call}\nThen I tell.", name)
    assert arguments_of(answer) == [("weather", ARGUMENTS)]
    assert answer.text.split() == ["I", "look.", "Then", "I", "tell."]


@pytest.mark.parametrize(("name", "text", "count"), ALONE)
def test_several_calls_and_calls_without_marks(name: str, text: str, count: int) -> None:
    answer = read_anyhow(text, name)
    assert arguments_of(answer) == [("weather", ARGUMENTS)] * count
    assert len({call.id for call in answer.calls}) == count


@pytest.mark.parametrize(("name", "call"), FORMS)
def test_a_call_cut_short_or_of_no_function_stays_text(name: str, call: str) -> None:
    cut = call[: call.index("b c")]
    answer = read_anyhow(cut, name)
    assert (answer.text.split(), answer.calls) == (cut.split(), [])
    other = call.replace("weather", "wether")
    assert read_anyhow(other, name).calls == []
    answer = read_anyhow(f"{other}\n{call}", name)
    assert arguments_of(answer) == [("weather", ARGUMENTS)]
    assert "wether" in answer.text


@pytest.mark.parametrize(("name", "call"), FORMS)
def test_arguments_are_told_before_the_call_ends(name: str, call: str) -> None:
    if '"arguments"' in call and call.index('"arguments"') < call.index('"name"'):
        pytest.skip("the name comes last")
    if '\\"city' in call:
        pytest.skip("the arguments are a text in a text")
    parser = reader(name)
    events = [event for sign in call[: call.index("Paulo") + 5] for event in parser.feed(sign)]
    said = "".join(event.text for event in events if isinstance(event, Arguments))
    assert said.startswith('{"city": "São')


HEAD = "<|start|>assistant"


def harmony(*messages: tuple[str, str, str]) -> str:
    return HEAD.join(f"{head}<|message|>{text}{end}" for head, text, end in messages)


@pytest.mark.parametrize(
    "head",
    [
        "<|channel|>commentary to=functions.weather <|constrain|>json",
        "<|channel|>commentary to=functions.weather json",
        " to=functions.weather<|channel|>commentary <|constrain|>json",
    ],
)
def test_gpt_oss_messages_are_thoughts_text_and_calls(head: str) -> None:
    thought = ("<|channel|>analysis", "Look it up.", "<|end|>")
    text = harmony(thought, ("<|channel|>commentary", "I look.", "<|end|>"), (head, JSON, "<|call|>"))
    answer = read_anyhow(text, "openai", "openai_gptoss")
    assert (answer.thought, answer.text) == ("Look it up.", "I look.")
    assert arguments_of(answer) == [("weather", ARGUMENTS)]
    # The mark that ends an answer is not seen in its text.
    assert same(told(reader("openai", "gpt_oss").all(text.removesuffix("<|call|>")))) == same(answer)
    final = read_anyhow(harmony(thought, ("<|channel|>final", "It is\nwarm.", "")), "openai", "openai_gptoss")
    assert same(final) == ("It is\nwarm.", "Look it up.", [])
    assert read_anyhow("Plain text, <b>no</b> header.", "openai").text == "Plain text, <b>no</b> header."
    broken = read_anyhow(harmony((head, "{oh}", "<|call|>")), "openai", "gptoss")
    assert (broken.calls, broken.text) == ([], f"{head}<|message|>{{oh}}")


@pytest.mark.parametrize(
    ("name", "thoughts", "text"),
    [
        ("hermes", "qwen3", "<think>\nHm.\n</think>\n\nWarm."),
        ("ernie45", "ernie45", "<think>\nHm.\n</think>\n\n<response>\nWarm.\n</response>"),
        ("hunyuan_a13b", "hunyuan_a13b", "<think>\nHm.\n</think>\n<answer>\nWarm.\n</answer>"),
        ("seed_oss", "seed_oss", "<seed:think>Hm.</seed:think>Warm."),
        ("gemma4", "gemma4", "<|channel>thought\nHm.\n<channel|>Warm."),
        ("mistral", "mistral", "[THINK]Hm.[/THINK]Warm."),
        ("cohere", "cohere", "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Warm.<|END_RESPONSE|>"),
    ],
)
def test_thoughts_of_each_family(name: str, thoughts: str, text: str) -> None:
    assert same(read_anyhow(text, name, thoughts)) == ("Warm.", "Hm.", [])


def test_an_id_that_the_model_writes_is_kept() -> None:
    kimi = next(call for name, call in FORMS if name == "kimi_k2")
    assert told(reader("kimi_k2").all(kimi)).calls[0].id == "functions.weather:0"
    assert told(reader("mistral").all(f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{JSON}")).calls[0].id == "a1b2c3d4e"
    assert len(told(reader("mistral").all(f"[TOOL_CALLS]weather[ARGS]{JSON}")).calls[0].id) == 9


def test_values_without_quotes_are_typed_by_the_schema() -> None:
    tools = Tools(
        {
            "f": {
                "properties": {
                    "text": {"type": "string"},
                    "whole": {"type": "integer"},
                    "either": {"type": ["integer", "string"]},
                    "flag": {"type": "boolean"},
                    "named": {"$ref": "#/$defs/N"},
                    "one": {"enum": [1, 2]},
                },
                "$defs": {"N": {"type": "array"}},
            }
        }
    )
    form = next(form for form in call_forms() if "qwen3_coder" in form.names)
    values = {"text": "7", "whole": "7.0", "either": "x7", "flag": "True", "named": "[7]", "one": "2", "other": "7"}
    written = "".join(f"<parameter={name}>{value}</parameter>" for name, value in values.items())
    (call,) = told(AnswerReader(tools, form).all(f"<function=f>{written}</function>")).calls
    assert json.loads(call.arguments) == {
        "text": "7",
        "whole": 7,
        "either": "x7",
        "flag": True,
        "named": [7],
        "one": 2,
        "other": "7",
    }


TEMPLATES = [
    ("{{ '<tool_call>' }}{{ tool | tojson }}</tool_call><think>", "hermes", "deepseek_r1"),
    ("<tool_call>\n<function=example>\n<parameter=a>", "qwen3_coder", "none"),
    ("{% set begin = '<seed:tool_call>' %}<function=f> <seed:think>", "seed_oss", "seed_oss"),
    ("<tool_call>{name}<arg_key></think>", "glm45", "deepseek_r1"),
    ('Respond in the format {"name": function name, "parameters": dictionary}.<|python_tag|>', "llama3_json", "none"),
    ("<|python_start|>", "llama4_pythonic", "none"),
    ("<|tool_call_start|>", "lfm2", "none"),
    ("<|tool_call>call:<tool_call|><|channel>", "gemma4", "gemma4"),
    ("<|start|>assistant<|channel|>analysis", "openai", "openai_gptoss"),
    ("<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + '```json'", "deepseek_v3", "none"),
    ("<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜></think>", "deepseek_v31", "deepseek_r1"),
    ("<｜DSML｜function_calls>", "deepseek_v32", "none"),
    ("<|tool_call_begin|>", "kimi_k2", "none"),
    ("{% set b = '<minimax:tool_call>' %}<invoke name=", "minimax_m2", "none"),
    ("[TOOL_CALLS][THINK]", "mistral", "mistral"),
    ("<|START_ACTION|><|START_THINKING|>", "cohere", "cohere"),
    ("<tool_calls><think><answer>", "hunyuan_a13b", "hunyuan_a13b"),
    ("<response><think><tool_call>", "ernie45", "ernie45"),
    ("<|tool|>{{ tools }}<|/tool|>", "phi4_mini_json", "none"),
    ("{{ messages }}", "hermes", "none"),
]


@pytest.mark.parametrize(("template", "calls", "thoughts"), TEMPLATES)
def test_a_chat_template_shows_the_family(template: str, calls: str, thoughts: str) -> None:
    assert choose(template).names == (calls, thoughts)
    # A template of the model's own goes first, by a family's form where it has one.
    assert choose("{{ messages }}", {"fields": {"x": {"open": template}}}).names[0] in (calls, "hf")


def test_names_choose_otherwise_and_unknown_ones_are_refused() -> None:
    assert choose("<tool_call><think>", tool_parser="mistral", reasoning_parser="none").names == ("mistral", "none")
    assert choose("<tool_call>", {"fields": {}}, tool_parser="hf").names == ("hf", "hf")
    with pytest.raises(ConfigError, match=r"tool_parser is 'hermez'.*did you mean 'hermes'.*qwen3_coder"):
        check_names("hermez", None)
    with pytest.raises(ConfigError, match=r"reasoning_parser is 'r1', which is not known.*deepseek_r1"):
        choose("", reasoning_parser="r1")
    with pytest.raises(ConfigError, match="response_template, which this model does not have"):
        choose("", tool_parser="hf")


def test_no_name_stands_for_two_forms() -> None:
    for forms in (call_forms(), thought_forms()):
        names = [name for form in forms for name in form.names]
        assert len(names) == len(set(names))
    assert {"hermes", "hf", "none"} <= set(known_names("calls"))


def test_a_model_that_was_not_made_to_talk_calls_nothing() -> None:
    assert choose(None).names == ("none", "none")
    assert choose("{{ messages }}").names[0] == "hermes"
