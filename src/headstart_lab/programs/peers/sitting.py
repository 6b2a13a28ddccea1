"""One sitting: Headstart and its peers decode the same prompts, one right after the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from headstart.common.enumerations import Precision
from headstart.engine.engine import Engine
from headstart.engine.outputs import SequenceStats
from headstart.loading.model import Model
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.prompts import BenchPrompt, encode_turns
from headstart_lab.bench.run import Run
from headstart_lab.programs.peers.environments import CACHE, WORKERS, Peer
from headstart_lab.workbench import PLAIN, Workbench, contenders

_QUIET = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
"""No network, no progress bars."""
WARM_UP, WARM_UP_PROMPT = 8, (1, 2, 1, 2)

Answer = tuple[Sequence[int], SequenceStats]
Decode = Callable[[Sequence[int], int], Answer]
"""(prompt, tokens) -> so many token ids, decoded past any end; counts and times."""


class PeerFailed(RuntimeError):
    """A peer cannot go on; the sitting can."""


class Worker:
    """A peer's process, stopped while others decode: many libraries' threads go on looking for work for a while.

    Raises:
        PeerFailed: it does not come up.
    """

    def __init__(self, peer: Peer, model: Path, work: Path, threads: int, max_context: int) -> None:
        command = [str(peer.python), str(WORKERS / peer.worker), "--model", str(model), "--work", str(work)]
        command += ["--threads", str(threads), "--max-context", str(max_context)]
        self.peer = peer
        # In a session of its own, so that Ctrl-C ends the sitting in order.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **_QUIET},
        )
        try:
            hello = self._read()
        except PeerFailed:
            self.close()
            raise
        self.modes: list[str] = hello["modes"]
        self.versions: dict[str, str] = hello["versions"]
        self.weights: str = hello["weights"]
        self._stop()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._go_on()
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def decode(self, mode: str, tokens: Sequence[int], count: int) -> dict[str, Any]:
        """One request.

        Raises:
            PeerFailed: with what the peer has to say.
        """
        assert self._process.stdin is not None
        self._go_on()
        print(json.dumps({"mode": mode, "tokens": list(tokens), "count": count}), file=self._process.stdin, flush=True)
        reply = self._read()
        self._stop()
        if "error" in reply:
            raise PeerFailed(reply["error"])
        if len(reply["tokens"]) != count:
            raise PeerFailed(f"gave {len(reply['tokens'])} tokens where {count} were asked for")
        return reply

    def _stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGSTOP)
            # Until it has happened, or the process has ended; its status is left to Popen.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _go_on(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(f"its process ended with status {self._process.wait()}; see above")
        reply: dict[str, Any] = json.loads(line)
        return reply


@dataclass
class Sitting:
    """What came out."""

    runs: list[Run] = field(default_factory=list)
    weights: dict[str, str] = field(default_factory=dict)
    """Contender -> what it computes with."""
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Peer, mode or prompt -> why."""
    reference: str = ""
    """The contender that says how many tokens an answer has: plain decoding in the first precision."""

    def drop(self, name: str, reason: object) -> None:
        """Leave a contender out, its earlier runs as well."""
        print(f"{name} is left out: {reason}", file=sys.stderr)
        self.left_out[name] = str(reason)
        self.runs = [run for run in self.runs if run.contender != name]


def sit(
    models: Sequence[Model],
    drafters: str,
    peers: Sequence[Peer],
    prompts: Sequence[BenchPrompt],
    *,
    max_tokens: int,
    repeats: int,
    threads: int,
    max_context: int,
) -> Sitting:
    """Decode every prompt with plain decoding and each drafter in each model's precision, and with every peer.

    A peer that cannot be installed, does not come up or fails is left out, and the sitting says why. Ctrl-C (SIGINT)
    ends it early: prompts that everybody has decoded count.
    """
    sitting = Sitting()
    work = CACHE / "work" / models[0].checkpoint.digest()[:12]
    work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        others: dict[str, Decode] = {}
        for peer in peers:
            try:
                peer.install()
                worker = stack.enter_context(Worker(peer, models[0].checkpoint.path, work, threads, max_context))
            except (subprocess.CalledProcessError, PeerFailed) as error:
                sitting.drop(peer.name, error)
                continue
            sitting.versions[peer.name] = worker.versions
            for mode in worker.modes:
                others[f"{peer.name} {mode}"] = peer_decoder(worker, mode)
                sitting.weights[f"{peer.name} {mode}"] = worker.weights
        benches = [Workbench.of_model(model, max_context=max_context) for model in models]
        for repeat in range(repeats):
            # Drafters are fresh in each repeat: one that remembers requests must not have seen the answer before.
            own = dict(own_decoders(models, benches, drafters))
            sitting.weights.update({name: name.split()[1] for name in own})
            sitting.reference = next(iter(own))
            with early_end() as ended:
                for runs in measure(sitting, benches[0], models[0], own, others, prompts, max_tokens, repeat, ended):
                    sitting.runs += runs
            if ended.is_set():
                sitting.left_out["prompts not reached"] = "the sitting was ended early"
                break
    return sitting


@contextmanager
def early_end() -> Iterator[Event]:
    """An event that SIGINT sets meanwhile, as often as it comes: ``timeout`` sends it twice."""
    ended = Event()
    before = signal.signal(signal.SIGINT, lambda *_: ended.set())
    try:
        yield ended
    finally:
        signal.signal(signal.SIGINT, before)


def own_decoders(models: Sequence[Model], benches: Sequence[Workbench], drafters: str) -> Iterator[tuple[str, Decode]]:
    """Headstart's contenders: "headstart PRECISION DRAFTER", plain decoding of the first model first."""
    for model, bench in zip(models, benches, strict=True):
        # The backend's name ends with it, also where "auto" was asked for.
        precision = next(each.value for each in Precision if model.backend.name.endswith(f"-{each}"))
        for contender in contenders(drafters):
            yield f"headstart {precision} {contender.name}", own_decoder(bench, bench.open(contender))


def own_decoder(bench: Workbench, engine: Engine) -> Decode:
    """Headstart with one drafter."""

    def decode(tokens: Sequence[int], count: int) -> Answer:
        sequence = bench.sequence(tokens, SamplingParams(temperature=0, max_tokens=count, ignore_eos=True))
        bench.decode(engine, sequence)
        return sequence.output, sequence.stats

    return decode


def peer_decoder(worker: Worker, mode: str) -> Decode:
    """One mode of a peer. Its first token comes with the prompt and counts as decoded: 1 / count in its favour."""

    def decode(tokens: Sequence[int], count: int) -> Answer:
        reply = worker.decode(mode, tokens, count)
        stats = SequenceStats(
            prompt_tokens=len(tokens),
            tokens=len(reply["tokens"]),
            seconds=reply["seconds"],
            prefill_seconds=reply["first_seconds"] or 0.0,
        )
        return reply["tokens"], stats

    return decode


def measure(
    sitting: Sitting,
    bench: Workbench,
    model: Model,
    own: dict[str, Decode],
    peers: dict[str, Decode],
    prompts: Sequence[BenchPrompt],
    max_tokens: int,
    repeat: int,
    ended: Event,
) -> Iterator[list[Run]]:
    """All contenders, their order rotating, on one prompt after the other. Peers that fail leave ``peers``."""
    all_of_them = own | peers
    for name, decode in all_of_them.items():
        _attempt(sitting, peers, name, decode, WARM_UP_PROMPT, WARM_UP)
    for place, prompt in enumerate(prompts):
        tokens = encode_turns(model, prompt.turns[:1], [])
        if not bench.fits(tokens, max_tokens):
            sitting.left_out[f"prompt {prompt.id}"] = f"{len(tokens)} tokens are too many"
            continue
        count = answer_length(bench, tokens, max_tokens)
        names, runs = [*own, *peers], []
        first = (place + repeat * len(prompts)) % len(names)
        for name in names[first:] + names[:first]:
            if ended.is_set():
                return
            answer = _attempt(sitting, peers, name, all_of_them[name], tokens, count)
            if answer is not None:
                output, stats = answer
                runs.append(Run(name, prompt.id, prompt.group, 0, repeat, tuple(output), (), stats, must_agree=False))
        yield runs
        print(f"repeat {repeat + 1}, prompt {place + 1} of {len(prompts)}: {count} tokens", file=sys.stderr)


def answer_length(bench: Workbench, tokens: Sequence[int], max_tokens: int) -> int:
    """How many tokens the reference says before it ends; everybody decodes as many. Not timed."""
    sequence = bench.sequence(tokens, SamplingParams(temperature=0, max_tokens=max_tokens))
    bench.decode(bench.open(contenders(PLAIN)[0]), sequence)
    return len(sequence.output)


def _attempt(
    sitting: Sitting, peers: dict[str, Decode], name: str, decode: Decode, tokens: Sequence[int], count: int
) -> Answer | None:
    try:
        return decode(tokens, count)
    except PeerFailed as error:
        del peers[name]
        sitting.drop(name, error)
        return None
