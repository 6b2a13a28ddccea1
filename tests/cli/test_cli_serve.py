"""``headstart serve`` as a process: it answers on a socket, and SIGTERM lets it finish."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_runs import headstart, refusal

pytest.importorskip("uvicorn", reason="needs the extra 'server'")
import httpx


def test_a_key_file_without_keys_is_refused(tmp_path: Path, tiny_model_dir: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("# nobody yet\n", encoding="utf-8")
    for path, match in [(empty, "no API key"), (tmp_path / "missing", "cannot be read")]:
        assert match in refusal(headstart("serve", "--model", tiny_model_dir, "--api-key-file", path))


def test_an_address_that_cannot_be_had_is_refused_before_anything_is_loaded(unread_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = refusal(headstart("serve", "--model", unread_model, "--port", port))
    assert refused.endswith(
        f"127.0.0.1:{port} cannot be listened on: Address already in use; give another --host or --port."
    )
    assert "no.such.host.invalid:8000 cannot be listened on" in refusal(
        headstart("serve", "--model", unread_model, "--host", "no.such.host.invalid")
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--speculative-config", "{method: suffix}"], "no JSON"),
        (["--speculative-config", '{"method": "sufix"}'], "did you mean 'suffix'"),
        (["--speculative-config", '{"method": "suffix", "no_such": 1}'], "no option 'no_such'"),
        (["--speculative-config", '{"method": "suffix"}', "--drafter", "ngram"], "says the same"),
    ],
)
def test_a_speculative_config_is_checked_before_the_target_is_read(
    given: list[str], said: str, unread_model: Path
) -> None:
    result = headstart("serve", "-m", unread_model, *given)
    assert result.exit_code == 2
    assert said in result.stderr


def test_what_a_drafter_lacks_is_said_before_the_target_is_read(unread_model: Path, tmp_path: Path) -> None:
    serve = ("serve", "--model", unread_model, "--port", "0")
    (tmp_path / "empty").mkdir()
    assert "empty has no config.json" in refusal(headstart(*serve, "--draft-model", tmp_path / "empty"))
    assert "there is no drafter 'guess'" in refusal(headstart(*serve, "--also", "guess"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--max-loaded", 2], "max_loaded is of several models"),
        (["--keep-alive", "soon"], "a time such as 5m"),
        (["--models", "/not/there"], "cannot be read"),
        (["--models", ".", "--served-name", "x"], "served_name is given beside models"),
    ],
)
def test_several_models_are_checked_before_any_is_read(given: list[object], said: str) -> None:
    assert said in refusal(headstart("serve", "--port", 0, *given))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-contxt: 9", "did you mean 'max-context'?"),
        ("max_model_len: 9\nmax-context: 9", "twice"),
        ("max-context: 1", "max_context is 1; it must be 2 or more"),
        ("precision: fp4", "precision is 'fp4'; choose one of"),
        ("- model", "holds no options"),
        ("a: [", "cannot be read"),
        ("speculative-config: {method: sufix}", "did you mean 'suffix'"),
        ("drafter: ngram\ndrafter_options: {max_ordre: 3}", "did you mean 'max_order'?"),
        ("enforce-eager: true\nmodel: /not/there\nport: 0", "/not/there"),
    ],
)
def test_options_come_from_a_file(text: str, said: str, tmp_path: Path) -> None:
    """Under all their names, and refused in the words of the command line."""
    path = tmp_path / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    assert said in refusal(headstart("serve", "--config", path))


def test_the_command_line_goes_before_a_file(tmp_path: Path, tiny_model_dir: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(f"model: {tiny_model_dir}\nport: 0\nmax-num-seqs: 0\n", encoding="utf-8")
    assert "max_batch_size is 0" in refusal(headstart("serve", "--config", path))
    assert "/on/the/line" in refusal(headstart("serve", "--config", path, "-m", "/on/the/line", "--batch-size", 2))


def started(tiny_model_dir: Path, interruption: str = "default_int_handler") -> tuple[subprocess.Popen[str], str]:
    """A server in a process of its own, and its address; ``interruption`` is what handles SIGINT when it starts."""
    code = f"import signal; signal.signal(signal.SIGINT, signal.{interruption}); "
    arguments = ["--model", str(tiny_model_dir), "--precision", "fp32", "--port", "0", "--served-name", "tiny"]
    server = subprocess.Popen(
        [sys.executable, "-c", code + "from headstart.cli.main import main; main()", "serve", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HEADSTART_API_KEYS": "secret", "OMP_NUM_THREADS": "1"},
    )
    assert server.stderr is not None
    return server, next(found.group() for line in server.stderr if (found := re.search(r"http://127[.\d]+:\d+", line)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("interruption", "number", "status"),
    [
        ("default_int_handler", signal.SIGINT, 130),
        ("SIG_IGN", signal.SIGINT, 130),
        ("default_int_handler", signal.SIGTERM, 143),
    ],
)
def test_a_second_interruption_ends_it_at_once_and_traces_nothing(
    torch_model_dir: Path, interruption: str, number: signal.Signals, status: int
) -> None:
    """Also where Ctrl-C is ignored, as in a script's background jobs."""
    server, address = started(torch_model_dir, interruption)
    try:
        with httpx.Client(base_url=address, headers={"authorization": "Bearer secret"}, timeout=120) as client:
            # More than can end before the second signal comes.
            body = {"prompt": ["abc"] * 4, "n": 16, "max_tokens": 480, "ignore_eos": True, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as reply:
                assert reply.status_code == 200
                lines = reply.iter_lines()  # kept: a forgotten iterator closes the connection
                next(lines)
                server.send_signal(number)
                for line in server.stderr or ():
                    if "Waiting" in line:
                        break
                server.send_signal(number)
                _, rest = server.communicate(timeout=120)
        assert server.returncode == status
        assert "Traceback" not in rest
    finally:
        server.kill()
        server.communicate()


def test_it_answers_and_drains(tiny_model_dir: Path) -> None:
    server, address = started(tiny_model_dir)
    try:
        assert server.stderr is not None
        rest = threading.Thread(target=server.stderr.read)
        rest.start()
        key = {"authorization": "Bearer secret"}
        with httpx.Client(base_url=address, headers=key, timeout=120) as client:
            assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
            assert client.get("/v1/models", headers={"authorization": ""}).status_code == 401
            body = {"prompt": "abc", "max_tokens": 300, "temperature": 0, "ignore_eos": True, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as reply:
                lines = reply.iter_lines()
                next(lines)
                server.send_signal(signal.SIGTERM)
                assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.wait(timeout=120) == 0
        rest.join()
    finally:
        server.kill()
        server.wait()
        if server.stderr is not None:
            server.stderr.close()


@pytest.mark.thorough
def test_a_drain_ends_though_a_client_never_sends_the_rest(tiny_model_dir: Path) -> None:
    server, address = started(tiny_model_dir)
    try:
        assert server.stderr is not None
        rest = threading.Thread(target=server.stderr.read)
        rest.start()
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as half_sent:
            half_sent.sendall(b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{")
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=120) == 0
        rest.join()
    finally:
        server.kill()
        server.wait()
        if server.stderr is not None:
            server.stderr.close()


def test_a_model_that_is_not_there_is_refused_before_ray_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart_integrations.ray.require_ray", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "/missing/model" in refusal(headstart("serve", "--ray", "-m", "/missing/model"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--replicas", "2"], "--replicas is of replicas on Ray; give --ray as well."),
        (["--ray-address", "auto"], "--ray-address is of replicas on Ray; give --ray as well."),
        (["--ray"], "install headstart with its extras: headstart[server,ray]."),
    ],
)
def test_replicas_need_ray(given: list[str], said: str, unread_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refusal(headstart("serve", "-m", unread_model, *given)).endswith(said)
