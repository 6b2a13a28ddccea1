"""``headstart chat`` as a user meets it: typed at a terminal, and as a script on stdin."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cli_runs import headstart, refusal
from tiny_checkpoint import write_tiny_model
from typer.testing import Result

from headstart import LLM, SamplingParams, SpeculationParams
from headstart.cli.showing import PlainText
from headstart_chat.conversing import Conversation
from headstart_chat.lines import read_message

Chat = Callable[..., Result]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm(tiny_model_dir: Path) -> LLM:
    """The library, which says what the command has to print."""
    return LLM(tiny_model_dir, "none", precision="fp32")


@pytest.fixture
def chat(tiny_model_dir: Path) -> Chat:
    """Greedy ``headstart chat`` with the tiny model and 12 tokens an answer, told these lines."""

    def call(*lines: str, more: tuple[object, ...] = ()) -> Result:
        base = (
            "chat",
            "-m",
            tiny_model_dir,
            "--precision",
            "fp32",
            "--temperature",
            0,
            "--max-tokens",
            12,
            "-d",
            "ngram",
        )
        return headstart(*base, *more, stdin="".join(f"{line}\n" for line in lines))

    return call


def said(llm: LLM, *messages: str, system: str | None = None) -> str:
    """The greedy answer to a conversation, user first."""
    chat = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(messages)]
    return llm.chat(([{"role": "system", "content": system}] if system else []) + chat, GREEDY)[0].text


class TestScript:
    def test_each_line_is_a_message_and_answers_are_remembered(self, chat: Chat, llm: LLM) -> None:
        result = chat("Hello", "", "And then?")
        first = said(llm, "Hello")
        assert result.stdout == f"{first}\n{said(llm, 'Hello', first, 'And then?')}\n"
        assert result.exit_code == 0
        lines = result.stderr.splitlines()
        assert len(lines) == 2
        assert all(re.match(r"12 tokens, [\d.]+ tokens/s", line) for line in lines)
        assert "prompt tokens from the cache" in lines[1]

    def test_quiet_says_nothing_else(self, chat: Chat, llm: LLM) -> None:
        result = chat("Hello", more=("-q",))
        assert (result.stdout, result.stderr) == (said(llm, "Hello") + "\n", "")

    def test_the_systems_message(self, chat: Chat, llm: LLM) -> None:
        assert chat("Hello", more=("--system", "Be brief.")).stdout == said(llm, "Hello", system="Be brief.") + "\n"
        told = chat("/system Be long.", "Hello", "/reset", "/system", "Hello", more=("-q",))
        assert told.stdout == f"{said(llm, 'Hello', system='Be long.')}\n{said(llm, 'Hello')}\n"

    def test_reset_and_retry(self, chat: Chat, llm: LLM) -> None:
        told = chat("Hello", "/retry", "/reset", "Hello", "/drafter none", "/retry")
        assert told.stdout == f"{said(llm, 'Hello')}\n" * 4
        assert told.exit_code == 0

    def test_several_lines(self, chat: Chat, llm: LLM) -> None:
        told = chat('"""one', "two", '"""', "/reset", "one\\", "two", "/reset", '"""one', 'two"""')
        assert told.stdout == f"{said(llm, chr(10).join(['one', 'two']))}\n" * 3

    def test_a_message_may_begin_with_a_slash(self, chat: Chat, llm: LLM) -> None:
        assert chat("//quit").stdout == said(llm, "/quit") + "\n"

    def test_quit_ends_it(self, chat: Chat, llm: LLM) -> None:
        for word in ("/quit", "/exit"):
            assert chat("Hello", word, "never").stdout == said(llm, "Hello") + "\n"

    def test_settings_are_shown_and_changed(self, chat: Chat) -> None:
        told = chat(
            "/temperature", "/temperature 0.5", "/temperature", "/drafter", "/drafter suffix", "/stats", "/help"
        )
        lines = told.stderr.splitlines()
        assert lines[:3] == ["Temperature 0.", "Temperature 0.5.", "Temperature 0.5."]
        assert lines[3].startswith("Drafter ngram, of none, ngram, suffix, prompt-lookup, recycling")
        assert lines[4:6] == ["Drafter suffix.", "Nothing was answered yet."]
        assert all(f"/{name}" in told.stderr for name in ("save FILE", "retry", "drafter NAME", "quit"))
        assert told.stdout == ""

    def test_stats_by_drafter(self, chat: Chat) -> None:
        lines = chat("a", "b", "c", "/drafter none", "a", "b", "c", "/stats").stderr.splitlines()[-2:]
        assert lines[0].startswith("ngram: 3 answers, 36 tokens, ")
        assert lines[0].endswith(" times plain")
        assert lines[1].startswith("none: 3 answers, 36 tokens, ")

    @pytest.mark.parametrize(
        ("line", "named"),
        [
            ("/drafer suffix", "did you mean /drafter?"),
            ("/nonsense", "/help lists them"),
            ("/drafter sufix", "did you mean 'suffix'?"),
            ("/temperature hot", "temperature is 'hot'"),
            ("/temperature -1", "temperature is -1"),
            ("/retry", "nothing was asked"),
            ("/save", "names no file"),
            ("/save /no/such/folder/x", "cannot be written"),
            ("/load /no/such/file", "cannot be read"),
            ("a" * 600, "the context holds 512"),
        ],
    )
    def test_what_goes_wrong_is_a_sentence_and_the_conversation_goes_on(
        self, chat: Chat, llm: LLM, line: str, named: str
    ) -> None:
        told = chat(line, "Hello")
        assert told.stdout == said(llm, "Hello") + "\n"
        errors = [each for each in told.stderr.splitlines() if each.startswith("Error: ")]
        assert len(errors) == 1
        assert named in errors[0]
        assert told.exit_code == 1

    def test_a_conversation_is_saved_and_loaded(self, chat: Chat, llm: LLM, tmp_path: Path) -> None:
        path, other = tmp_path / "talk.jsonl", tmp_path / "other"
        other.write_text('{"prompt": "no conversation"}\n')
        told = chat("/system Be brief.", "Hello", f"/save {path}", "/reset", "/system", f"/load {path}", "And?")
        first = said(llm, "Hello", system="Be brief.")
        assert told.stdout == f"{first}\n{said(llm, 'Hello', first, 'And?', system='Be brief.')}\n"
        roles = [message["role"] for message in json.loads(path.read_text())["messages"]]
        assert roles == ["system", "user", "assistant"]
        assert "exists already" in chat("Hello", f"/save {path}").stderr
        assert json.loads(path.read_text())["messages"][1]["content"] == "Hello"
        assert "holds no conversation" in chat(f"/load {other}").stderr

    def test_the_oldest_turns_leave_a_full_context(self, chat: Chat, llm: LLM) -> None:
        asked = [f"{number} " + "x" * 150 for number in range(5)]
        told = chat(*asked, more=("--system", "Stay."))
        assert told.exit_code == 0
        notes = [line for line in told.stderr.splitlines() if "no longer fit" in line]
        assert notes
        assert notes[-1] == "The oldest 6 messages no longer fit into the context and were left out."
        answers = told.stdout.splitlines()
        assert len(answers) == 5
        assert answers[4] == said(llm, asked[3], answers[3], asked[4], system="Stay.")


class TestRefusals:
    def test_before_anything_is_loaded(self, tiny_model_dir: Path, tmp_path: Path) -> None:
        assert "no chat template" in refusal(headstart("chat", "-m", write_tiny_model(tmp_path, chat=False)))
        assert "/no/such" in refusal(headstart("chat", "-m", "/no/such"))
        assert "did you mean 'suffix'?" in refusal(headstart("chat", "-m", tiny_model_dir, "-d", "sufix"))
        assert "LOSSY" in refusal(headstart("chat", "-m", tiny_model_dir, "--numerics", "exact", "--lenience", 0.5))


class TestMessages:
    class Typed:
        """Lines that were typed."""

        def __init__(self, *lines: str) -> None:
            self._lines: Iterator[str] = iter(lines)

        def read(self, prompt: str) -> str | None:
            return next(self._lines, None)

        def close(self) -> None: ...

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            ([], None),
            ([""], ""),
            (["a\\", "b\\", "c"], "a\nb\nc"),
            (["a\\"], "a\n"),
            (['"""a"""'], "a"),
            (['"""', "a", "", "b", '"""'], "a\n\nb"),
            (['"""never closed', "b"], "never closed\nb"),
        ],
    )
    def test_lines_become_messages(self, lines: list[str], message: str | None) -> None:
        found = read_message(self.Typed(*lines))
        assert found == (None if message is None else message.removesuffix("\n"))


class Terminal:
    """A program at a pseudo-terminal."""

    def __init__(self, words: list[str], env: dict[str, str]) -> None:
        self._terminal, own = pty.openpty()
        self.process = subprocess.Popen(
            words, stdin=own, stdout=own, stderr=own, env={**os.environ, **env}, start_new_session=True, close_fds=True
        )
        os.close(own)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def until(self, wanted: str, seconds: float = 120) -> str:
        """What was shown since the last call, up to ``wanted``."""
        deadline = time.monotonic() + seconds
        while wanted not in self.seen:
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{wanted!r} did not come after {self.seen!r}"
            try:
                read = os.read(self._terminal, 4096)
            except OSError:
                read = b""
            assert read, f"it ended before {wanted!r}: {self.seen!r}"
            self.seen += read.decode(errors="replace")
        shown, _, self.seen = self.seen.partition(wanted)
        return shown

    def interrupt(self, wanted: str) -> None:
        """Press Ctrl-C until it shows: the interpreter's readline does not hear a signal that comes right before it
        waits for a key, and hears the next one."""
        for _ in range(10):
            self.process.send_signal(signal.SIGINT)
            with suppress(AssertionError):
                self.until(wanted, seconds=6)
                return
        pytest.fail(f"{wanted!r} did not come after Ctrl-C")

    def end(self) -> int:
        """Its exit status, once it has ended."""
        while True:
            try:
                if not os.read(self._terminal, 4096):
                    break
            except OSError:
                break
        return self.process.wait(timeout=60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._terminal)


@pytest.fixture
def terminal(tiny_model_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """``headstart chat`` at a terminal, greedy on the tiny model."""
    opened: list[Terminal] = []

    def call(*more: str, **env: str) -> Terminal:
        words = [
            sys.executable,
            "-m",
            "headstart",
            "chat",
            "-m",
            str(tiny_model_dir),
            "--precision",
            "fp32",
            "--temperature",
            "0",
        ]
        surroundings = {"TERM": "xterm", "XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", **env}
        opened.append(Terminal([*words, "-d", "ngram", *more], surroundings))
        return opened[-1]

    yield call
    for each in opened:
        each.close()


class TestTerminal:
    def test_a_conversation_with_colours_and_history(
        self, terminal: Callable[..., Terminal], llm: LLM, tmp_path: Path
    ) -> None:
        shown = terminal("--max-tokens", "12")
        shown.until(">>> ")
        shown.type("Hello\r")
        answer = shown.until("tokens/s")
        assert said(llm, "Hello") in re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", answer)
        shown.until(">>> ")
        # The arrow up brings the last message back.
        shown.type("\x1b[A\r")
        shown.until("Hello")
        shown.until("tokens/s")
        shown.until(">>> ")
        shown.type("\x04")
        assert shown.end() == 0
        history = tmp_path / "headstart" / "chat_history"
        assert history.read_text().splitlines()[-1] == "Hello"
        assert history.stat().st_mode & 0o077 == 0

    @pytest.mark.thorough
    def test_no_color_is_respected(self, terminal: Callable[..., Terminal], llm: LLM) -> None:
        shown = terminal("--max-tokens", "12", NO_COLOR="1")
        shown.until(">>> ")
        shown.type("Hello\r")
        shown.until("Hello")
        answer = shown.until(">>> ")
        assert said(llm, "Hello") in answer
        shown.type("/nonsense\r")
        shown.until("/nonsense")
        # What readline itself writes is no colour.
        assert not re.search(r"\x1b\[[\d;]*m", answer + shown.until(">>> "))
        shown.type("/quit\r")
        assert shown.end() == 0

    @pytest.mark.thorough
    def test_ctrl_c_clears_a_line_and_ctrl_d_leaves(self, terminal: Callable[..., Terminal]) -> None:
        shown = terminal("-q", NO_COLOR="1")
        shown.until(">>> ")
        shown.type("never sent")
        shown.until("never sent")
        shown.interrupt(">>> ")
        shown.type("/temperature hot\r")
        shown.until("temperature is 'hot'")
        shown.until(">>> ")
        shown.type("\x04")
        assert shown.end() == 0


class TestStopping:
    def conversation(self, model: Path, stoppable: bool) -> Conversation:
        llm = LLM(model, "none", precision="fp32", prefix_caching=True)
        sampling = {"temperature": 0, "max_tokens": 300, "ignore_eos": True}
        return Conversation(llm, sampling, {}, SpeculationParams(), None, colours=False, stoppable=stoppable)

    def test_ctrl_c_ends_an_answer_and_keeps_what_was_said(
        self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        conversation = self.conversation(tiny_model_dir, stoppable=True)
        before = signal.getsignal(signal.SIGINT)
        monkeypatch.setattr(PlainText, "show", press_ctrl_c)
        told = conversation.answer("Hello")
        assert told.stats is None
        assert [message["role"] for message in conversation.messages] == ["user", "assistant"]
        assert 0 < len(conversation.messages[1]["content"]) < 300
        assert capsys.readouterr().out == "\n"
        assert signal.getsignal(signal.SIGINT) == before
        monkeypatch.undo()
        assert conversation.take_back() == "Hello"
        assert conversation.answer("Hello").stats is not None

    def test_a_script_ends_as_ever(self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        conversation = self.conversation(tiny_model_dir, stoppable=False)
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        monkeypatch.setattr(PlainText, "show", press_ctrl_c)
        try:
            with pytest.raises(KeyboardInterrupt):
                conversation.answer("Hello")
        finally:
            signal.signal(signal.SIGINT, previous)


def press_ctrl_c(*_: object) -> None:
    """What a key does while an answer is shown."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("given", [(), ("--temperature", 1), ("--generation-config", "none"), ("--top-p", 0.5)])
def test_words_that_were_said_become_less_likely_where_nobody_says_how_to_draw(
    given: tuple[object, ...], tiny_model_dir: Path, llm: LLM
) -> None:
    base = ("chat", "-m", tiny_model_dir, "--precision", "fp32", "--max-tokens", 24, "--seed", 3, "-d", "none")
    heard = headstart(*base, *given, stdin="Hello\n").stdout
    named = {str(name)[2:].replace("-", "_"): value for name, value in zip(given[::2], given[1::2], strict=True)}
    defaults = llm.sampling_defaults
    if named.pop("generation_config", None) == "none":
        defaults = type(defaults)()
    own = {} if given else {"repetition_penalty": 1.1}
    params = defaults.params({"max_tokens": 24, "seed": 3, **named}, own)
    assert params.repetition_penalty == (1.0 if given else 1.1)
    (output,) = llm.chat([[{"role": "user", "content": "Hello"}]], params)
    assert heard == output.outputs[0].text + "\n"


def test_a_base_model_talks_by_a_template_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    base = write_tiny_model(tmp_path / "base", chat=False)
    template = tmp_path / "plain.jinja"
    template.write_text("{{ messages[-1].content }}")
    call = ("-m", base, "--precision", "fp32", "--max-tokens", 9, "--temperature", 0)
    plain = headstart("generate", *call, "Hello").stdout
    for given in (template, "{{ messages[-1].content }}"):
        assert headstart("chat", *call, "--chat-template", given, stdin="Hello\n").stdout == plain
        assert headstart("generate", *call, "--chat", "--chat-template", given, "Hello").stdout == plain
