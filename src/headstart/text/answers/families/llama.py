"""Llama's: a JSON object alone, or calls in Python's notation."""

from headstart.text.answers.forced import json_frame, python_frame
from headstart.text.answers.forms import CallForm, Opening
from headstart.text.answers.readers import JsonCalls, PythonCalls

CALLS = (
    CallForm(
        names=("llama3_json", "llama4_json", "xlam"),
        models="Llama 3.1 to 3.3",
        openings=(
            Opening(("<|python_tag|>",), JsonCalls(between=";")),
            Opening(("{",), JsonCalls(between=";", bare=True), leads=True),
            Opening(("[",), JsonCalls(bare=True, alone=True), leads=True, held=True),
        ),
        signs=("<|python_tag|>", '{"name": function name, "parameters":'),
        without=("<|python_start|>", "func_name1("),
        forced=json_frame("", "", "parameters", between="; "),
    ),
    CallForm(
        names=("llama4_pythonic", "pythonic"),
        models="Llama 4, and Llama 3.2 as it is prompted for lists of calls",
        openings=(
            Opening(("<|python_start|>",), PythonCalls(("<|python_end|>",))),
            Opening(("[",), PythonCalls(bare=True), leads=True),
        ),
        signs=("<|python_start|>", "func_name1("),
        marks=("<|python_end|>",),
        forced=python_frame("[", ", ", "]"),
    ),
)
