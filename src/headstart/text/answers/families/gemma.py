"""Gemma's: ``call:NAME{key:value}`` between marks, texts between marks of their own."""

from headstart.text.answers.forced import Frame, Pairs
from headstart.text.answers.forms import CallForm, Opening, ThoughtForm
from headstart.text.answers.literals import Notation
from headstart.text.answers.readers import Reader
from headstart.text.answers.source import NotCalls, Reading, Source
from headstart.text.answers.tools import Calls


def _reader(closing: str, quote: str) -> Reader:
    notation = Notation((quote, '"'), bare_keys=True)

    def read(source: Source, calls: Calls, opening: str) -> Reading[None]:
        while True:
            yield from source.blank()
            place = source.place()
            if not (yield from source.mark("call:")):
                break
            name, mark = yield from source.name_until("{")
            source.push_back(mark)
            known = calls.begin(name.strip())
            yield from notation.value(source, calls.say)
            if not known:
                calls.stray.append(opening + source.since(place))
        if not calls.seen and not calls.stray:
            raise NotCalls
        yield from source.close((closing,), (opening,))

    return read


def _form(names: tuple[str, ...], models: str, opening: str, closing: str, quote: str) -> CallForm:
    return CallForm(
        names=names,
        models=models,
        openings=(Opening((opening,), _reader(closing, quote)),),
        signs=(opening,),
        marks=(closing, quote),
        forced=Frame(f"{opening}call:", "", closing, Pairs("", ":", "", ",", "{", "}", quote=quote, nested=True)),
    )


CALLS = (
    _form(("gemma4",), "Gemma 4", "<|tool_call>", "<tool_call|>", '<|"|>'),
    _form(("functiongemma",), "FunctionGemma", "<start_function_call>", "<end_function_call>", "<escape>"),
)
THOUGHTS = (ThoughtForm(("gemma4",), "Gemma 4", "<|channel>thought", "<channel|>", signs=("<|channel>",)),)
