"""A GGUF's own blocks beside llama.cpp: one file of random weights, the same work in turns.

    python -m headstart_lab.programs.native.bench_file [--shape llama-3.2-1b] [--mix Q4_K_M] \\
        [--precision auto] [--out FILE.json]
    python -m headstart_lab.programs.native.bench_file --mix Q4_K_M --peer none --precision blocks int4 bf16
    python -m headstart_lab.programs.native.bench_file --precision auto bf16 --rows 2 3 4 5 8 16 32 --products

Measured are a plain token after a context, passes of some rows beside one of one row, and a prompt; of llama.cpp, the
one compiled for this processor (``headstart_lab.programs.peers.environments llama-cpp``), a plain token and the
prompt. With ``--products``, too, what PyTorch takes for the products alone of the layers with such a prompt, in bf16
(oneDNN's): the last line measures all that is asked of a machine with a matrix unit. Ratios are medians over repeats in
which each has its turn. With ``--rates`` llama.cpp's passes of some rows are timed, too, and both are compared as if
guesses held that often and cost nothing, each at its best number of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain as concatenated
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.backends.native.backend import NativeBackend
from headstart.common.enumerations import Precision
from headstart.common.processor import hides_tiles
from headstart.loading.model import create_backend, weights_dtype
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from headstart.passes.batch import PassBatch
from headstart_lab.programs.native.bench_pass import chain
from headstart_lab.programs.native.random_gguf import HYBRIDS, MIXES, SHAPES, write
from headstart_lab.programs.peers.environments import PEERS, Peer
from headstart_lab.programs.peers.sitting import Worker
from headstart_lab.programs.recorded_guesses import with_time_left
from headstart_lab.provenance import finished, provenance

FORMAT = "headstart-file/1"
GOALS = {
    "plain / llama.cpp": 1.4,
    "prompt / llama.cpp": 1.5,
    "8 rows / 1 row, AVX-512": 1.4,
    "8 rows / 1 row, AVX2": 1.7,
    "kept / file": 1.02,
}
"""At least, at least, then at most."""
UNIT_GOALS = {
    "plain / llama.cpp": 1.9,
    "prompt / llama.cpp": 7.0,
    "8 rows / 1 row": 1.15,
    "32 rows / 1 row": 1.6,
    "kept / file": 1.02,
    "prompt / products": 1.2,
}
"""With a matrix unit, ``auto`` of Llama-3.2-1B's shape; the last one of bf16: how much faster than the products."""


class Own:
    """Passes of one backend at one place."""

    def __init__(self, path: Path, precision: Precision, context: int, prompt: int) -> None:
        start = time.perf_counter()
        config, weights = load_decoder(open_checkpoint(path), weights_dtype(precision))
        backend = create_backend(config, weights, precision)
        assert isinstance(backend, NativeBackend)
        self.load_seconds = time.perf_counter() - start
        self.backend = backend
        self._shapes = [tuple(each.matrix.shape) for each in weights.linears if each is not weights.head]
        self._context = context
        blocks = max(context + 64, prompt) // 32 + 1
        self._blocks = blocks
        self._storage = backend.allocate_cache(blocks, num_states=64 if config.keeps_states else 0)
        self._tokens = torch.randint(300, config.vocab_size, (max(prompt, context),))
        backend.forward(self._chain(context, 0, 0)[0], self._storage)

    def rows(self, count: int, passes: int) -> float:
        """Seconds of a pass of so many rows that all want their logits."""
        return self._seconds(self._chain(count, self._context, count), passes)

    def prompt(self, length: int) -> float:
        """Seconds until the first token is known."""
        return self._seconds(self._chain(length, 0, 1), 1)

    def products(self, length: int) -> float:
        """Seconds that PyTorch takes for the products of the layers with as many rows, in bf16."""
        tensors = {shape: torch.randn(shape).bfloat16() for shape in set(self._shapes)}
        rows = {inputs: torch.randn(length, inputs).bfloat16() for _, inputs in tensors}
        start = time.perf_counter()
        for shape in self._shapes:
            torch.nn.functional.linear(rows[shape[1]], tensors[shape])
        return time.perf_counter() - start

    def _chain(self, count: int, cached: int, wanted: int) -> list[PassBatch]:
        """Passes in turn, of a text whose state after the context is in slot 0: as where guesses are verified, each
        goes on from the state after the middle row of the one before."""
        batch = chain(self._tokens[:count], cached, self._blocks, wanted)
        if not self.backend.config.keeps_states:
            return [batch]
        if not cached:
            after = np.full(count, -1, np.int32)
            after[-1] = 0 if count == self._context else 63
            return [replace(batch, states_before=np.array([-1], np.int32), states_after=after)]
        slots = np.arange(1, 2 * count + 1, dtype=np.int32).reshape(2, count)
        middles = slots[:, count // 2]
        return [
            replace(batch, states_before=before, states_after=after)
            for before, after in ((np.zeros(1, np.int32), slots[0]), (middles[:1], slots[1]), (middles[1:], slots[0]))
        ]

    def _seconds(self, batches: list[PassBatch], passes: int) -> float:
        start = time.perf_counter()
        for batch in islice(concatenated(batches, cycle(batches[1:] or batches)), passes):
            self.backend.forward(batch, self._storage)
        return (time.perf_counter() - start) / passes


def peer_rates(worker: Worker, context: int, prompt: int, tokens: int) -> tuple[float, float]:
    """Seconds a plain token after ``context`` tokens, and of a prompt."""
    generator = np.random.default_rng(1)
    said = worker.decode("plain", generator.integers(300, 30000, context).tolist(), tokens)
    plain = (said["seconds"] - said["first_seconds"]) / (tokens - 1)
    said = worker.decode("plain", generator.integers(300, 30000, prompt).tolist(), 1)
    return plain, float(said["first_seconds"])


def peer_pass(worker: Worker, context: int, rows: int, passes: int) -> float:
    """Seconds of a pass of so many rows that all want their logits, after ``context`` tokens."""
    prompt = np.random.default_rng(1).integers(300, 30000, context).tolist()
    said = worker.decode(f"{rows} rows", prompt, passes)
    return float(said["seconds"] - said["first_seconds"]) / passes


def verifying(guesses: int, modes: Sequence[str] | None = None) -> list[str]:
    """Passes that verify one guess, two, ... ``modes``: what a peer's worker offers.

    Raises:
        SystemExit: it lacks one of them.
    """
    passes = [f"{2 + place} rows" for place in range(guesses)]
    for place, label in enumerate(passes if modes is not None else ()):
        if label not in (modes or ()):
            sys.exit(f"Error: --rates has {guesses} numbers, and llama.cpp is timed for {place} at most; give fewer.")
    return passes


def pace(passes: list[float], rates: list[float]) -> float:
    """Tokens per second at the best number of guesses.

    Args:
        passes: [guesses] seconds.
        rates: [guess] how often it holds with all before it.
    """
    tokens = [1 + sum(rates[:guesses]) for guesses in range(len(passes))]
    return max(each / seconds for each, seconds in zip(tokens, passes, strict=True))


def measure(options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """All cases, in turns."""
    own = {}
    for name in options.precision:
        own[name] = Own(path, Precision(name), options.context, options.prompt)
        print(f"{name}: {own[name].backend.name}, loaded in {own[name].load_seconds:.1f} s", flush=True)
    peer = PEERS["llama-cpp"]
    counts = {f"{count} rows": count for count in options.rows}
    measured = ("plain", *counts, "prompt")
    times: dict[str, dict[str, list[float]]] = {name: {each: [] for each in measured} for name in own}
    products: list[float] = []
    verified = verifying(len(options.rates))
    times["llama.cpp"] = {each: [] for each in ("plain", "prompt", *verified)}
    with ExitStack() as held:
        worker = None
        if options.peer == "llama-cpp":
            if not peer.installed:
                sys.exit(
                    "Error: llama.cpp is not there; run python -m headstart_lab.programs.peers.environments llama-cpp."
                )
            worker = Worker(
                Peer(peer.name, peer.requirements, peer.build, worker="llama_cpp_plain_worker.py"),
                path,
                Path(held.enter_context(tempfile.TemporaryDirectory())),
                torch.get_num_threads(),
                2 * max(options.context + options.tokens, options.prompt),
            )
            held.enter_context(worker)
            verified = verifying(len(options.rates), worker.modes)
            peer_rates(worker, 8, 8, 2)  # so that its file has been read
        turns: list[Callable[[], None]] = []
        if worker is not None:
            turns.append(partial(_peers_turn, worker, options, verified, times["llama.cpp"]))
        turns += [partial(_own_turn, each, options, counts, times[name]) for name, each in own.items()]
        if options.products:
            turns.append(lambda: products.append(next(iter(own.values())).products(options.prompt)))
        for turn in with_time_left(turns * options.repeats, "turns"):
            turn()
    size = path.stat().st_size
    cases = []
    for name, each in own.items():
        case: dict[str, Any] = {
            "precision": name,
            "backend": each.backend.name,
            "load_seconds": round(each.load_seconds, 2),
            "kept_bytes": each.backend.nbytes,
            "file_bytes": size,
            "plain_ms": [round(1e3 * t, 2) for t in times[name]["plain"]],
            "rows_ms": {label: [round(1e3 * t, 2) for t in times[name][label]] for label in counts},
            "prompt_ms": [round(1e3 * t, 1) for t in times[name]["prompt"]],
            "kept / file": round(each.backend.nbytes / size, 3),
            **{f"{label} / 1 row": _ratio(times[name][label], times[name]["plain"]) for label in counts},
        }
        if products:
            case["prompt / products"] = _ratio(products, times[name]["prompt"])
            if hides_tiles():
                case["products limited to"] = "AVX-512, since the hypervisor hides the tiles' size"
        if times["llama.cpp"]["plain"]:
            case["plain / llama.cpp"] = _ratio(times["llama.cpp"]["plain"], times[name]["plain"])
            case["prompt / llama.cpp"] = _ratio(times["llama.cpp"]["prompt"], times[name]["prompt"])
            if verified:
                case["at these rates / llama.cpp"] = _ratio(
                    _paces(times[name], verified, options.rates), _paces(times["llama.cpp"], verified, options.rates)
                )
        cases.append(case)
    peers = {f"{name}_ms": [round(1e3 * t, 2) for t in taken] for name, taken in times["llama.cpp"].items()}
    return {"cases": cases, "llama.cpp": peers, "products_ms": [round(1e3 * t, 1) for t in products]}


def _peers_turn(
    worker: Worker, options: argparse.Namespace, verified: list[str], times: dict[str, list[float]]
) -> None:
    plain, prompt = peer_rates(worker, options.context, options.prompt, options.tokens)
    times["plain"].append(plain)
    times["prompt"].append(prompt)
    for place, label in enumerate(verified):
        times[label].append(peer_pass(worker, options.context, 2 + place, options.tokens // 2))


def _own_turn(own: Own, options: argparse.Namespace, counts: dict[str, int], times: dict[str, list[float]]) -> None:
    times["plain"].append(own.rows(1, options.tokens))
    for label, count in counts.items():
        times[label].append(own.rows(count, options.tokens // 2))
    times["prompt"].append(own.prompt(options.prompt))


def _paces(times: dict[str, list[float]], verified: list[str], rates: list[float]) -> list[float]:
    by_repeat = zip(times["plain"], *(times[label] for label in verified), strict=True)
    return [pace(list(passes), rates) for passes in by_repeat]


def _ratio(above: list[float], below: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(above, below, strict=True)), 3)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-3.2-1b", choices=[*SHAPES, *HYBRIDS])
    parser.add_argument("--mix", default="Q4_K_M", choices=MIXES)
    parser.add_argument("--precision", nargs="+", default=["auto"], choices=[each.value for each in Precision])
    parser.add_argument("--peer", default="llama-cpp", choices=["llama-cpp", "none"])
    parser.add_argument("--rows", type=int, nargs="+", default=[8])
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=32, help="plain tokens a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[], help="how often the first, the first two, ... guesses hold"
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the file is made, once")
    parser.add_argument("--products", action="store_true", help="also PyTorch's products of the layers with the prompt")
    parser.add_argument("--out", type=Path, help="also write what came out, with its provenance, to this JSON file")
    options = parser.parse_args(arguments)
    options.rows = sorted({*options.rows, *range(2, 2 + len(options.rates))})

    where = provenance()
    path = options.folder / f"random-{options.shape}-{options.mix}.gguf"
    if not path.exists():
        print(f"Writing {path} ...", file=sys.stderr, flush=True)
    write(path, options.shape, options.mix)
    result = measure(options, path)
    for case in result["cases"]:
        print(json.dumps(case, indent=1))
    print(json.dumps(result["llama.cpp"]))
    print(json.dumps({"goals": GOALS, "with a matrix unit": UNIT_GOALS}))
    if options.out:
        settings = {name: str(value) for name, value in vars(options).items() if name != "out"}
        record = {"format": FORMAT, "provenance": finished(where), "settings": settings, **result}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
