"""A draft of a multi-token module against one plain pass of its target, taken in turns: ratios of medians.

    python -m headstart_lab.programs.native.bench_modules [--shape qwen3.5-2b] [--mix Q4_K_M] [--tokens 3] \\
        [--vocabulary 32768 0] [--threads 2] [--context 300] [--cpu-time]

Weights are random: cost does not depend on their values. A draft reads one true row and goes on from the best token, as
``--drafter mtp`` with a width of 1 does in one call of the library; before each the target's pass runs, as in decoding.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.module_pass import NativeModulePass
from headstart.backends.native.precision import PRECISIONS
from headstart.drafting.heads.head_pass import DraftRoot, DraftRows, PathBounds
from headstart.drafting.heads.tables import TargetTables
from headstart.models.checkpoint import open_checkpoint
from headstart.models.multi_token_modules import load_multi_token
from headstart.models.weight_loading import load_decoder, load_tables
from headstart_lab.programs.native.bench_pass import chain
from headstart_lab.programs.native.random_gguf import HYBRIDS, MIXES, write

_ANY = PathBounds(-1e9, -1e9)


class Drafting:
    """Drafts of a chain behind ``context`` true rows, the last of which is read each time."""

    def __init__(self, module: NativeModulePass, context: int, tokens: int) -> None:
        self._cache = module.new_cache()
        self._growth = module.growth(1, np.arange(len(module.target_ids), dtype=np.int32))
        self._features = np.random.default_rng(0).normal(size=(context, module.config.hidden_size)).astype(np.float32)
        self._tokens, self._rows = tokens, context - 1
        rows = np.zeros(self._rows, np.int32)
        module.read(rows, torch.from_numpy(self._features[:-1]), [DraftRows(self._cache, self._rows)])

    def __call__(self) -> None:
        self._cache.truncate(self._rows)
        root = DraftRoot(self._cache, np.zeros(1, np.int32), self._features[-1:], self._tokens, self._tokens)
        (tree,) = self._growth.grow([root], _ANY, None)
        assert len(tree.tokens) == self._tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3.5-2b", choices=HYBRIDS)
    parser.add_argument("--mix", default="Q4_K_M", choices=MIXES)
    parser.add_argument("--precision", default="blocks", choices=PRECISIONS)
    parser.add_argument("--tokens", type=int, default=3, help="of a draft")
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[16384, 32768, 0], help="0: all tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--file", type=Path, help="where the random file is kept")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / f"{options.shape}-{options.mix}.gguf"
        checkpoint = open_checkpoint(write(path, options.shape, options.mix, modules=1))
        config, weights = load_decoder(checkpoint, torch.bfloat16)
        target = NativeBackend(config, weights, options.precision, options.threads)
        modules = load_multi_token(checkpoint, config, torch.bfloat16)
        assert modules is not None
        tables = TargetTables(*load_tables(checkpoint, torch.bfloat16))
        blocks = (options.context + 64) // 32
        storage = target.allocate_cache(blocks, num_states=2)
        row = chain(torch.zeros(1, dtype=torch.int64), options.context, blocks, 1)
        row = replace(row, states_before=np.zeros(1, np.int32), states_after=np.ones(1, np.int32))
        for vocabulary in options.vocabulary:
            module = NativeModulePass(modules, tables, options.precision, vocabulary, threads=options.threads)
            draft = Drafting(module, options.context, options.tokens)
            times: dict[str, list[float]] = {"pass": [], "draft": []}
            for _ in range(options.repeats):
                for name, run in (("pass", lambda: target.forward(row, storage)), ("draft", draft)):
                    start = clock()
                    run()
                    times[name].append((clock() - start) * 1e3)
            medians = {name: statistics.median(values) for name, values in times.items()}
            told = {
                "shape": options.shape,
                "mix": options.mix,
                "target": target.name,
                "module": module.name,
                "tokens": options.tokens,
                "vocabulary": vocabulary or config.vocab_size,
                "module_mib": round(module.nbytes / 2**20, 1),
                "threads": options.threads,
                "context": options.context,
                "machine": platform.processor() or platform.machine(),
                **{f"{name}_ms": round(value, 3) for name, value in medians.items()},
                **{f"best_{name}_ms": round(min(values), 3) for name, values in times.items()},
                "ratio": round(medians["draft"] / medians["pass"], 3),
                "ratio_of_best": round(min(times["draft"]) / min(times["pass"]), 3),
            }
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
