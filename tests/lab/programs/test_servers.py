"""Servers that a comparison starts: what each is told, and that none outlives it."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tiny_checkpoint import write_tiny_model

from headstart_lab.programs.peers import compare_servers, servers
from headstart_lab.programs.peers.servers import SERVERS, Command, Room, Startable, StartError, free_port, process

LITTLE = textwrap.dedent("""
    import json, subprocess, sys, time
    from http.server import BaseHTTPRequestHandler, HTTPServer
    port, notes = int(sys.argv[1]), sys.argv[2]
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(notes, "w") as file:
        file.write(str(child.pid))
    time.sleep(0.5)
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply({"data": [{"id": "little"}]})
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.reply({"usage": {"completion_tokens": asked["max_tokens"]}})
        def reply(self, value):
            text = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        def log_message(self, *_):
            pass
    HTTPServer(("127.0.0.1", port), Handler).serve_forever()
""")


@pytest.fixture
def little(tmp_path: Path) -> Startable:
    """A server that starts another process, whose number it notes down."""
    (tmp_path / "little.py").write_text(LITTLE)
    program = [sys.executable, str(tmp_path / "little.py")]
    return Startable(lambda room, port: Command([*program, str(port), str(tmp_path / "child")]))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def ends(pid: int) -> bool:
    """Whether a process that was told to end does."""
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_a_server_answers_in_the_context_and_leaves_nothing_behind(little: Startable, tmp_path: Path) -> None:
    port = free_port()
    with process("little", little.command(Room(), port), port, tmp_path / "log"):
        assert servers.answers(port)
        child = int((tmp_path / "child").read_text())
        assert alive(child)
    assert not servers.answers(port)
    assert ends(child)


def test_a_second_signal_ends_a_server_that_takes_its_time(tmp_path: Path) -> None:
    """Whoever is impatient leaves nothing behind either."""
    notes = tmp_path / "pid"
    code = (
        "import os, pathlib, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(notes)!r}).write_text(str(os.getpid())); "
        "from http.server import *; H = type('H', (BaseHTTPRequestHandler,), {'do_GET': lambda s: "
        "(s.send_response(200), s.end_headers(), s.wfile.write(b'{\"data\": [1]}')), 'log_message': lambda *a: None}); "
        "HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()"
    )
    port = free_port()
    stubborn = Command([sys.executable, "-c", code, str(port)])

    def impatient(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, impatient)
    try:
        with pytest.raises(KeyboardInterrupt), process("stubborn", stubborn, port, tmp_path / "log"):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ends(int(notes.read_text()))


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    failing = Command([sys.executable, "-c", "import os; raise SystemExit(os.environ['WHY'])"], {"WHY": "no weights"})
    with (
        pytest.raises(StartError, match=r"failing ended with status 1; .*log ends so:\nno weights"),
        process("failing", failing, free_port(), tmp_path / "log"),
    ):
        raise AssertionError


def test_a_server_that_is_silent_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(servers, "PATIENCE", 0.3)
    notes = tmp_path / "pid"
    code = f"import os, pathlib, time; pathlib.Path({str(notes)!r}).write_text(str(os.getpid())); time.sleep(600)"
    with (
        pytest.raises(StartError, match="did not answer within"),
        process("silent", Command([sys.executable, "-c", code]), free_port(), tmp_path / "log"),
    ):
        raise AssertionError
    assert not notes.exists() or ends(int(notes.read_text()))


def test_a_comparison_starts_measures_and_ends_them(
    little: Startable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SERVERS, "little", little)
    words = ["--start", "little", "--users", "1,2", "--repeats", "1", "--max-tokens", "5", "--threads", "1"]
    compare_servers.main([*words, "--out", str(tmp_path / "out")])
    record = json.loads((tmp_path / "out" / "serving.json").read_text())
    assert [server["name"] for server in record["servers"]] == ["little"]
    assert [(load["users"], load["tokens"]) for load in record["loads"]] == [(1, 20), (2, 20)]
    assert (record["settings"]["users"], record["settings"]["threads"]) == (2, 1)
    assert (tmp_path / "out" / "little.log").exists()
    assert ends(int((tmp_path / "child").read_text()))
    assert capsys.readouterr().out.splitlines()[0].split() == ["users", "little"]


def test_what_cannot_be_started_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in ((["--start", "nothing"], "no server 'nothing'"), ([], "--start NAMES, or NAME=URL")):
        with pytest.raises(SystemExit):
            compare_servers.main(words)
        assert said in capsys.readouterr().err


def test_all_get_one_model_as_many_threads_and_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(servers, "CACHE", tmp_path / "cache")
    (folder := tmp_path / "tiny").mkdir()
    write_tiny_model(folder)
    room = Room(str(folder), threads=1, users=7, max_context=96, cache_tokens=700)
    commands = {name: SERVERS[name].command(room, 8123) for name in SERVERS if name != "vllm-eagle3"}
    for name, command in commands.items():
        words = command.words
        assert "8123" in words, name
        assert "7" in words, name
        model = Path(words[words.index("--model") + 1])
        if name.startswith("vllm"):
            assert (model / "model.safetensors").exists()
            assert (model / "tokenizer.json").exists()
            assert command.variables["VLLM_CPU_OMP_THREADS_BIND"] == str(min(os.sched_getaffinity(0)))
            assert command.variables["VLLM_CPU_KVCACHE_SPACE"] == "1"
        else:
            assert model == folder
            threads = command.variables.get("OMP_NUM_THREADS") or words[words.index("--threads") + 1]
            assert threads == "1"
    with pytest.raises(StartError, match="no EAGLE-3 head comes"):
        SERVERS["vllm-eagle3"].command(room, 8123)
