"""OpenVINO GenAI's continuous batching behind the two routes that ``compare_servers.py`` asks, for greedy answers.

    python openvino_server.py --model FILE.gguf --port 8003 --threads 2 --users 16 --cache-gib 2

The package has the engine but no server. This one does no more than pass requests on: one thread steps the pipeline,
and requests join its batch between two steps.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import openvino_genai as genai

FIELDS = {"model", "messages", "temperature", "max_tokens", "ignore_eos", "stream"}
CONTENT_LIMIT = 4 << 20


class RefusedError(ValueError):
    """What is asked is not served here; the message says what."""


@dataclass(frozen=True)
class Asked:
    prompt: Any
    """Tensor [1, token] of ids."""
    config: genai.GenerationConfig
    answer: Future[list[int]]


class Batches:
    """The pipeline and the thread that steps it."""

    def __init__(self, pipeline: genai.ContinuousBatchingPipeline) -> None:
        self._pipeline = pipeline
        self._asked: SimpleQueue[Asked] = SimpleQueue()
        self._numbers = count()
        threading.Thread(target=self._run, daemon=True).start()

    def answer(self, prompt: Any, config: genai.GenerationConfig) -> list[int]:
        """Token ids of an answer.

        Raises:
            RefusedError: the pipeline would not take the prompt.
        """
        asked = Asked(prompt, config, Future())
        self._asked.put(asked)
        return asked.answer.result()

    def _run(self) -> None:
        going: list[tuple[Any, Asked]] = []
        while True:
            for asked in self._new(wait=not going):
                try:
                    going.append((self._pipeline.add_request(next(self._numbers), asked.prompt, asked.config), asked))
                except RuntimeError as error:
                    asked.answer.set_exception(RefusedError(str(error)))
            try:
                self._pipeline.step()
            except RuntimeError as error:
                for _, asked in going:
                    asked.answer.set_exception(error)
                going = []
            for handle, asked in going:
                if handle.get_status() == genai.GenerationStatus.FINISHED:
                    asked.answer.set_result(list(handle.read_all()[0].generated_ids))
                elif handle.get_status() != genai.GenerationStatus.RUNNING:
                    asked.answer.set_exception(RefusedError(f"the pipeline says {handle.get_status().name}."))
            going = [(handle, asked) for handle, asked in going if not asked.answer.done()]

    def _new(self, wait: bool) -> Iterator[Asked]:
        """What was asked meanwhile; ``wait``: for one at least."""
        try:
            while True:
                yield self._asked.get(block=wait)
                wait = False
        except Empty:
            return


def handler(name: str, pipeline: genai.ContinuousBatchingPipeline) -> type[BaseHTTPRequestHandler]:
    """What answers a connection."""
    batches, tokenizer = Batches(pipeline), pipeline.get_tokenizer()

    def complete(body: dict[str, Any]) -> dict[str, Any]:
        if unknown := set(body) - FIELDS:
            raise RefusedError(f"{min(unknown)} is not served here; leave it out.")
        if body.get("temperature") != 0 or body.get("stream"):
            raise RefusedError("answers are greedy and whole here; give temperature 0, and no stream.")
        if body.get("model", name) != name:
            raise RefusedError(f"model is {body['model']!r}; this server has {name!r}.")
        text = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        prompt = tokenizer.encode(text, add_special_tokens=False).input_ids
        most, past_ends = int(body["max_tokens"]), bool(body.get("ignore_eos"))
        config = genai.GenerationConfig(max_new_tokens=most, ignore_eos=past_ends, do_sample=False)
        if not past_ends:
            config.set_eos_token_id(tokenizer.get_eos_token_id())
        said = batches.answer(prompt, config)
        message = {"role": "assistant", "content": tokenizer.decode(said)}
        read = prompt.shape[1]
        return {
            "id": f"chatcmpl-{time.time_ns():x}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": name,
            "choices": [{"index": 0, "message": message, "finish_reason": "length" if len(said) >= most else "stop"}],
            "usage": {"prompt_tokens": read, "completion_tokens": len(said), "total_tokens": read + len(said)},
        }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._reply(200, {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "openvino"}]})
            else:
                self._reply(200 if self.path == "/health" else 404, {})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            if self.path != "/v1/chat/completions" or length > CONTENT_LIMIT:
                self.close_connection = True
                self._reply(404 if length <= CONTENT_LIMIT else 413, {})
                return
            try:
                self._reply(200, complete(json.loads(self.rfile.read(length))))
            except (RefusedError, KeyError, TypeError, ValueError) as error:
                self._reply(400, {"error": {"message": f"{type(error).__name__}: {error}"}})
            except RuntimeError as error:
                self._reply(500, {"error": {"message": str(error)}})

        def _reply(self, status: int, value: Any) -> None:
            text = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None: ...

    return Handler


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file, or a folder in OpenVINO's form")
    parser.add_argument("--port", type=int, default=8003)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--users", type=int, default=64, help="most requests in a batch")
    parser.add_argument("--cache-gib", type=int, default=2, help="for keys and values")
    options = parser.parse_args()
    scheduling = genai.SchedulerConfig()
    scheduling.max_num_seqs = options.users
    scheduling.cache_size = options.cache_gib
    scheduling.enable_prefix_caching = True
    settings = {"INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY"}
    pipeline = genai.ContinuousBatchingPipeline(str(options.model), scheduling, "CPU", settings)
    server = Server(("127.0.0.1", options.port), handler(options.model.stem, pipeline))
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
