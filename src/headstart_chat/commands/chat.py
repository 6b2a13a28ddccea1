"""``headstart chat``: a conversation with a model in the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from headstart.cli import options
from headstart.cli.asking import Asked, require_template, warn_of_losses
from headstart.cli.option_groups import Only, with_groups
from headstart.cli.options import OUTPUT, said
from headstart.cli.sampling import SamplingOptions
from headstart.cli.wording import tell_aside, tell_error
from headstart.common.options import declares
from headstart.drafting.registry import free_drafters
from headstart.entrypoints.engine_options import EngineOptions
from headstart.errors import HeadstartError, RequestError, closest
from headstart_chat.lines import BLOCK, ScriptLines, TerminalLines, read_message

if TYPE_CHECKING:
    from headstart_chat.conversing import Conversation, Told

MAX_TOKENS = 1024
"""Most tokens of an answer, where neither the command nor the model says: small models may never come to an end."""
REPETITION_PENALTY = 1.1
"""Where neither of them says how tokens are drawn, likewise: small models tell one sentence over and over."""


@declares
class ChatOptions(EngineOptions):
    """Of an engine that one conversation has for itself."""

    _defaults: ClassVar = {"max_batch_size": 1, "prefix_caching": True, "more_drafters": free_drafters()}


@with_groups
def chat(
    *,
    system: Annotated[str | None, typer.Option(help="System message.", metavar="TEXT")] = None,
    engine: ChatOptions,
    sampling: Annotated[
        SamplingOptions, Only("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop")
    ],
    max_tokens: Annotated[
        int | None,
        said(
            f"Most tokens of an answer. Left out: the model's default, {MAX_TOKENS} if it has none.",
            panel=options.STOPPING,
            metavar="N",
        ),
    ] = None,
    plain_text: Annotated[
        bool, said("Show no colours: accepted guesses look like the model's own.", "--plain-text", panel=OUTPUT)
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Talk with a model in the terminal.

    Answers stream as they are decoded: green was guessed and accepted, blue is the model's own token after a guess.
    `/help` lists the commands. Ctrl-C stops an answer, Ctrl-D ends the conversation. A line that ends with a backslash
    goes on in the next one; three quotation marks begin and end a message of several lines. Where stdin is no terminal,
    each line is a message.

    Examples:

        headstart chat

        headstart chat --system "You are a pirate." --temperature 0.7

        headstart chat --model ./my-model --drafter suffix

        printf 'My name is Ann.\\nWhat is my name?\\n' | headstart chat --quiet
    """
    given = sampling.given() | ({} if max_tokens is None else {"max_tokens": max_tokens})
    asked = Asked(engine, given)
    interactive = sys.stdin is not None and sys.stdin.isatty()
    require_template(engine)

    from headstart.cli.progress import Activity
    from headstart.cli.prompts import one_prompt

    with Activity(shown=not quiet) as activity:
        activity.show(f"Looking at {engine.model}")
        params, speculation, outline = asked.checked([one_prompt("Hello", True, system)])
        activity.stop()
        warn_of_losses(engine, speculation, params)
        llm = asked.load(activity, outline)
    from headstart_chat.conversing import Conversation

    colours = not plain_text and sys.stdout.isatty()
    own: dict[str, Any] = {"max_tokens": MAX_TOKENS}
    drawn = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"} & given.keys()
    if not drawn and engine.generation_config != "none":
        own["repetition_penalty"] = REPETITION_PENALTY
    conversation = Conversation(llm, given, own, speculation, system, colours=colours, stoppable=interactive)
    talk = Talk(conversation, quiet)
    lines = TerminalLines([f"/{name}" for name in talk.commands]) if interactive else ScriptLines()
    if interactive and not quiet:
        tell_aside(f"{engine.model}, guessed for by {llm.drafter_name}. /help lists the commands, Ctrl-D ends.")
        if not drawn and conversation.params.repetition_penalty == REPETITION_PENALTY:
            tell_aside(
                f"Answers end after {conversation.params.max_tokens} tokens, and words that were said become less "
                f"likely (--repetition-penalty {REPETITION_PENALTY:g}; 1: as likely as ever)."
            )
    if interactive:
        # Whoever started this may have had it ignored, as shells do for what runs in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _converse(talk, lines)
    finally:
        lines.close()
        llm.close()
    if talk.failures and not interactive:
        raise typer.Exit(1)


def _converse(talk: Talk, lines: TerminalLines | ScriptLines) -> None:
    """Message by message, until there are no more."""
    while not talk.over:
        try:
            message = read_message(lines)
        except KeyboardInterrupt:
            if isinstance(lines, ScriptLines):
                raise
            # It clears the line, as in a shell.
            print()
            continue
        if message is None:
            return
        talk.take(message)


@dataclass(frozen=True)
class Order:
    """A command of a conversation."""

    run: Callable[[str], None]
    help: str
    argument: str = ""


class Talk:
    """What each line of a conversation does."""

    def __init__(self, conversation: Conversation, quiet: bool) -> None:
        self.over = False
        self.failures = 0
        """Lines that could not be answered or followed."""
        self._conversation = conversation
        self._quiet = quiet
        self.commands = {
            "help": Order(self._help, "these commands"),
            "quit": Order(self._quit, "end the conversation (Ctrl-D)"),
            "reset": Order(self._reset, "begin anew; the system message stays"),
            "retry": Order(self._retry, "answer the last message again"),
            "system": Order(self._system, "the system message from now on; nothing: none", "TEXT"),
            "temperature": Order(self._temperature, "how random answers are; 0: greedy", "X"),
            "drafter": Order(self._drafter, "who guesses; none: nobody", "NAME"),
            "stats": Order(self._stats, "how fast it was, by drafter"),
            "save": Order(self._save, "write the conversation", "FILE"),
            "load": Order(self._load, "go on with a conversation that was saved", "FILE"),
        }

    def take(self, line: str) -> None:
        """Answer a message, or follow a command; what goes wrong is said in one sentence."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                name, _, argument = line[1:].partition(" ")
                self._command(name).run(argument.strip())
            elif line.strip():
                self._answer(line.removeprefix("/") if line.startswith("//") else line)
        except HeadstartError as error:
            self.failures += 1
            tell_error(str(error))

    def _command(self, name: str) -> Order:
        if name in ("exit", "bye"):
            name = "quit"
        if name not in self.commands:
            near = closest(name, self.commands)
            hint = f"did you mean /{near}? " if near else ""
            raise RequestError(f"there is no command /{name}; {hint}/help lists them, and // begins a message with /.")
        return self.commands[name]

    def _answer(self, text: str) -> None:
        self._show(self._conversation.answer(text))

    def _show(self, told: Told) -> None:
        from headstart_chat.conversing import stats_line

        if told.dropped:
            self._say(f"The oldest {told.dropped} messages no longer fit into the context and were left out.")
        if told.stats is None:
            self._say("Stopped; what was said stays.")
        else:
            self._say(stats_line(told.stats, self._conversation.plain_speed()))
        if told.hint is not None:
            self._say(f"Hint: {told.hint}")

    def _say(self, sentence: str) -> None:
        if not self._quiet:
            tell_aside(sentence)

    def _help(self, _: str) -> None:
        for name, order in self.commands.items():
            typer.echo(f"{f'/{name} {order.argument}'.rstrip():16} {order.help}", err=True)
        typer.echo(f"A line that ends with \\ goes on in the next; {BLOCK} begins and ends several lines.", err=True)

    def _quit(self, _: str) -> None:
        self.over = True

    def _reset(self, _: str) -> None:
        self._conversation.messages.clear()
        self._say("The conversation begins anew.")

    def _retry(self, _: str) -> None:
        self._answer(self._conversation.take_back())

    def _system(self, text: str) -> None:
        self._conversation.system = text or None
        self._say("The next answer sees the new system message." if text else "There is no system message any more.")

    def _temperature(self, text: str) -> None:
        if text:
            try:
                temperature = float(text)
            except ValueError:
                raise RequestError(f"temperature is {text!r}; give a number, 0 for greedy.") from None
            self._conversation.set_sampling("temperature", temperature)
        self._say(f"Temperature {self._conversation.params.temperature:g}.")

    def _drafter(self, name: str) -> None:
        from headstart.errors import meant

        known = self._conversation.drafters
        if name and name not in known:
            raise RequestError(f"drafter {name!r} was not loaded; {meant(name, known)}")
        self._conversation.drafter = name or self._conversation.drafter
        self._say(f"Drafter {self._conversation.drafter}" + ("." if name else f", of {', '.join(known)}."))

    def _stats(self, _: str) -> None:
        from headstart_chat.conversing import summed

        lines = summed(self._conversation.all_stats)
        for line in lines or ["Nothing was answered yet."]:
            typer.echo(line, err=True)

    def _save(self, name: str) -> None:
        self._conversation.save(_named(name, "save"))
        self._say(f"Saved to {name}.")

    def _load(self, name: str) -> None:
        self._conversation.load(_named(name, "load"))
        self._say(f"{len(self._conversation.messages)} messages were loaded.")


def _named(name: str, command: str) -> Path:
    if not name:
        raise RequestError(f"/{command} names no file; give one, like /{command} talk.jsonl.")
    return Path(name).expanduser()
