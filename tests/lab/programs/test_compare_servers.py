"""Servers under the same load; they are little ones of the test's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headstart_lab.programs.peers import compare_servers


class Little(BaseHTTPRequestHandler):
    """Answers with as many tokens as are asked for, and counts who asks at once."""

    lock = threading.Lock()
    asked: list[tuple[int, str, int]] = []  # noqa: RUF012
    refuses = False

    def do_GET(self) -> None:
        self._reply(200, {"data": [{"id": "little"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (body["model"], body["temperature"], body["ignore_eos"]) == ("little", 0, True)
        with self.lock:
            self.asked.append((self.server.server_address[1], body["messages"][0]["content"], body["max_tokens"]))
        if self.refuses:
            self._reply(400, {"error": "told to"})
        else:
            self._reply(200, {"usage": {"completion_tokens": body["max_tokens"]}})

    def _reply(self, status: int, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def urls() -> Iterator[list[str]]:
    Little.asked.clear()
    Little.refuses = False
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Little) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    yield [f"http://127.0.0.1:{server.server_address[1]}" for server in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join()


def test_all_servers_get_the_same_questions(
    urls: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = urls
    words = [
        f"a={first}",
        f"b={second}",
        "--users",
        "1,3",
        "--each",
        "2",
        "--questions",
        "3",
        "--repeats",
        "2",
        "--max-tokens",
        "7",
    ]
    compare_servers.main([*words, "--out", str(tmp_path)])
    by_port: dict[int, list[str]] = {}
    for port, prompt, tokens in Little.asked:
        by_port.setdefault(port, []).append(prompt)
        assert tokens == 7
    one, other = by_port.values()
    # Those that are not counted, and two repeats of three questions and of six.
    assert len(one) == compare_servers.WARM_UP + 2 * (3 + 6)
    assert len(set(one)) == len(one)
    assert sorted(one) == sorted(other)
    record = json.loads((tmp_path / "serving.json").read_text())
    assert [(load["server"], load["users"], load["tokens"]) for load in record["loads"]] == [
        *(("a", 1, 21), ("b", 1, 21), ("b", 1, 21), ("a", 1, 21)),
        *(("a", 3, 42), ("b", 3, 42), ("b", 3, 42), ("a", 3, 42)),
    ]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["users", "a", "b"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "3"]


def test_the_table_compares_with_the_first_server() -> None:
    servers = [compare_servers.Server(name, "", "") for name in "ab"]
    loads = [compare_servers.Load(name, 4, 0, tokens, 2.0, 1.0) for name, tokens in (("a", 200), ("b", 80))]
    assert compare_servers.table(servers, loads).splitlines()[1].split() == [
        "4",
        "100.0",
        "40.0",
        "(first",
        "is",
        "2.50",
        "x)",
    ]


@pytest.mark.thorough
def test_what_goes_wrong_is_one_sentence(urls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["nobody"], "name=URL"),
        (["a=http://127.0.0.1:9"], "does not say"),
        ([f"a={urls[0]}", "--users", "x"], "invalid"),
        ([f"a={urls[0]}", "--users", "64"], "--prompts"),
    ):
        with pytest.raises(SystemExit):
            compare_servers.main(words)
        assert said in capsys.readouterr().err
    Little.refuses = True
    with pytest.raises(SystemExit, match=r"refused: .*told to"):
        compare_servers.main([f"a={urls[0]}", "--users", "1"])
