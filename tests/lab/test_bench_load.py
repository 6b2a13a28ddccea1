"""Loads, what is read off a stream, and the figures made of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from headstart.errors import ConfigError, HeadstartError
from headstart_charts.page import Table, to_html
from headstart_lab.bench.load import Answered, Client, Load, send
from headstart_lab.bench.load_report import Spread, exhibits, summarise, to_json
from headstart_lab.bench.load_run import OFF, LoadRun

USAGE = {"completion_tokens": 5, "speculation": {"rounds": 3}}


class Scripted(BaseHTTPRequestHandler):
    """Streams what the request's ``script`` names: pieces of text, an error, or an end too soon."""

    most, now, lock = 0, 0, threading.Lock()

    def do_GET(self) -> None:
        status = {"/stats": 200, "/words": 200, "/locked": 401}.get(self.path, 404)
        self._reply(status, b"<html>" if self.path == "/words" else b'{"model": "x"}')

    def do_POST(self) -> None:
        with Scripted.lock:
            Scripted.now += 1
            Scripted.most = max(Scripted.most, Scripted.now)
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.headers.get("authorization") == "Bearer secret"
        if body["script"] == "busy":
            self._reply(429, b'{"error": {"message": "try later"}}')
        elif body["script"] == "fault":
            self._reply(200, self._events({"error": {"message": "no"}}))
        else:
            chunks = [{"choices": [{"delta": {"content": piece}}], "usage": None} for piece in body["script"]]
            end = [] if body.get("broken") else [{"choices": [], "usage": USAGE}]
            self._reply(200, self._events({"choices": [{"delta": {"role": "assistant"}}]}, *chunks, *end))
        with Scripted.lock:
            Scripted.now -= 1

    def log_message(self, *_: object) -> None: ...

    @staticmethod
    def _events(*chunks: object) -> bytes:
        return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def client() -> Iterator[Client]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Client(f"http://127.0.0.1:{server.server_port}", "secret")
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_answer_is_timed_piece_by_piece(client: Client) -> None:
    (answered,) = send(client, [{"script": ["a", "", "b", "c"]}], Load(users=1), seed=0)
    assert (answered.error, answered.tokens, answered.rounds) == (None, 5, 3)
    assert 0 <= answered.sent <= answered.first <= answered.last
    assert len(answered.gaps) == 2
    assert answered.seconds_per_token == pytest.approx((answered.last - answered.first) / 4)


def test_failures_are_told_and_stop_nothing(client: Client) -> None:
    bodies = [{"script": "busy"}, {"script": ["a"]}, {"script": "fault"}, {"script": ["a"], "broken": True}]
    seen: list[Answered] = []
    answers = send(client, bodies, Load(users=2), seed=0, on_answer=seen.append)
    assert [each.error for each in answers] == ["status 429: try later", None, "no", "the stream broke off."]
    assert len(seen) == 4


def test_a_closed_loop_keeps_its_users_busy_and_no_more(client: Client) -> None:
    Scripted.most = 0
    assert all(each.error is None for each in send(client, [{"script": ["a"]}] * 12, Load(users=3), seed=0))
    assert 1 <= Scripted.most <= 3


def test_an_open_loop_sends_at_its_own_moments(client: Client) -> None:
    load = Load(rate=200.0)
    answers = send(client, [{"script": ["a"]}] * 8, load, seed=3)
    for answered, moment in zip(answers, load.arrivals(8, 3), strict=True):
        assert answered.sent >= moment - 1e-4


def test_arrivals_are_those_of_a_poisson_process() -> None:
    times = Load(rate=4.0).arrivals(20_000, seed=1)
    gaps = np.diff(times)
    assert times[0] == 0
    assert times == Load(rate=4.0).arrivals(20_000, seed=1) != Load(rate=4.0).arrivals(20_000, seed=2)
    # Exponential gaps: mean and standard deviation are both 1 / rate.
    assert np.mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert np.std(gaps) == pytest.approx(0.25, rel=0.04)


def test_what_the_server_says_of_itself_is_read_or_refused(client: Client) -> None:
    assert client.get("/stats") == {"model": "x"}
    for path, sentence in (
        ("/nothing", "/nothing was answered with status 404; give the address of a Headstart server with --url."),
        ("/words", " is no Headstart server; give the address of one with --url."),
        ("/locked", " wants an API key; give it with --api-key-file."),
    ):
        with pytest.raises(HeadstartError) as refused:
            client.get(path)
        assert str(refused.value).endswith(sentence)
    with pytest.raises(HeadstartError) as refused:
        Client("http://127.0.0.1:1").get("/stats")
    assert str(refused.value) == (
        "no server answers at http://127.0.0.1:1 (Connection refused); start one with 'headstart serve', or give its "
        "address with --url."
    )


@pytest.mark.parametrize("url", ["localhost:8000", "http://", "http://127.0.0.1:99999", "http://127.0.0.1:x"])
def test_an_address_that_no_server_can_have_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=f"--url is '{url}'"):
        Client(url)


TWO = Load(users=2)


def run(mode: str, repeat: int, seconds: float, load: Load = TWO) -> LoadRun:
    answers = [Answered(0.0, 0.1 * i, seconds, 11, (0.2, 0.4), 5) for i in (1, 2)]
    return LoadRun(mode, load, repeat, (*answers, Answered(0.0, error="status 429: x")))


def test_summaries_pair_what_was_measured_together() -> None:
    runs = [run("ngram", 0, 2.0), run(OFF, 0, 4.0), run("ngram", 1, 8.0), run(OFF, 1, 4.0), run("ngram", 2, 4.0)]
    ngram, off = summarise(runs)
    assert (ngram.mode, off.mode, off.ratio) == ("ngram", OFF, None)
    assert ngram.tokens_per_second == pytest.approx(22 / 4)
    assert ngram.ratio == pytest.approx((2.0 + 0.5) / 2)
    assert ngram.ratio_range == pytest.approx((0.5, 2.0))
    assert ngram.requests == 9
    assert ngram.errors == {"status 429: x": 3}
    assert ngram.first_token == Spread(pytest.approx(0.15), pytest.approx(0.15), pytest.approx(0.2))
    assert off.per_token is not None
    assert off.per_token.mean == pytest.approx((3.9 + 3.8) / 2 / 10)
    assert ngram.tokens_per_round == pytest.approx(2.2)
    assert Spread.of([]) is None


def test_the_report_states_where_speculation_is_slower() -> None:
    """Under open loops throughput says nothing of it: requests come when they come."""
    loads = [Load(users=1), Load(users=4), Load(rate=1.0), Load(rate=2.0)]
    slow = (loads[1], loads[3])
    runs = [run(mode, 0, 2.0 + (mode == "ngram" and load in slow), load) for load in loads for mode in ("ngram", OFF)]
    summaries = summarise(runs)
    shown = exhibits(summaries)
    assert isinstance(shown[0], Table)
    assert "Slower than without speculation: 4 at a time." in shown[0].note
    assert "compare the waits" in shown[0].note
    assert to_html("x", shown).count("<figure") == 6
    result = json.loads(json.dumps(to_json(runs, summaries, {"server": {}}), allow_nan=False))
    assert [each["load"]["rate"] for each in result["summaries"][4:]] == [1.0, 1.0, 2.0, 2.0]
    assert len(result["runs"][0]["answers"]) == 3


def test_nothing_answered_is_no_figure() -> None:
    nothing = [LoadRun(mode, Load(users=1), 0, (Answered(0.0, error="gone"),)) for mode in ("ngram", OFF)]
    ngram, _ = summarise(nothing)
    assert (ngram.tokens_per_second, ngram.ratio, ngram.whole) == (0.0, None, None)
    assert to_html("x", exhibits(summarise(nothing)))
