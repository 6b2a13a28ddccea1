"""Run by SGLang's environment: its own code registers, resolves and builds the algorithm, and asks it for trees.

    python sglang_trial.py MODEL_DIRECTORY

Prints JSON. SGLang's kernels for processors are on no package index, and its image packages need a GPU's PyTorch: they
are replaced by names that do nothing. So the passes are missing here; a target of a few lines says what is accepted, by
the links that SGLang derives from the mask.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

ABSENT = ("torchvision", "torchaudio", "sgl_kernel")
ROWS = 8
PROMPT = [3, 9, 4, 1, 5, 9, 2, 6]


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a mock for every module of the packages that are not there."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        mock = MagicMock(name=spec.name)
        mock.__path__, mock.__version__ = [], "0"
        return mock

    def exec_module(self, module: ModuleType) -> None:
        pass


def resolved(model: str, algorithm: str) -> tuple[Any, dict[str, Any]]:
    from sglang.srt.server_args import ServerArgs

    args = ServerArgs(
        model_path=model, device="cpu", attention_backend="torch_native", disable_cuda_graph=True, random_seed=0,
        speculative_algorithm=algorithm, speculative_num_draft_tokens=ROWS,
    )  # fmt: skip
    args.resolve_once()
    return args, {name: repr(value) for name, value in args.resolved_dict().items()}


def target(tokens: list[int]) -> int:
    return tokens[-5] if len(tokens) % 11 else (tokens[-1] * 7 + len(tokens)) % 64


def main(model: str) -> dict[str, Any]:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    args, ours = resolved(model, "HEADSTART")
    _, theirs = resolved(model, "NGRAM")

    from sglang.srt.runtime_context import get_context
    from sglang.srt.speculative import ngram_worker
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    get_context().set_server_args(args)
    worker_class = SpeculativeAlgorithm.from_string("headstart").create_worker(args)
    runner = SimpleNamespace(model_config=SimpleNamespace(vocab_size=64), max_running_requests=4)
    target_worker = SimpleNamespace(model_runner=runner, tokenizer=None, get_memory_pool=lambda: (None, None))
    worker = worker_class(args, 0, 0, target_worker)
    worker.alloc_memory_pool()

    requests = [
        SimpleNamespace(rid=name, origin_input_ids_unpadded=[*first, *PROMPT], output_ids=[])
        for name, first in (("a", []), ("b", [7]), ("c", [7, 8]))
    ]
    for request in requests:
        request.output_ids.append(target(request.origin_input_ids_unpadded))
    accepted = {request.rid: [] for request in requests}
    for step in range(40):
        batch = SimpleNamespace(
            reqs=requests[: 2 + step % 2], spec_info=None, has_grammar=False, grammar_needs_sync=lambda: True
        )
        tokens, mask = worker._prepare_draft_tokens(batch)
        children, siblings = ngram_worker._derive_tree_links(mask, len(batch.reqs), ROWS)
        rows = tokens.reshape(len(batch.reqs), ROWS)
        for place, request in enumerate(batch.reqs):
            text = [*request.origin_input_ids_unpadded, *request.output_ids]
            assert rows[place, 0] == text[-1]
            new, row = [], 0
            while row >= 0:
                token = target([*text, *new])
                new.append(token)
                row = int(children[place, row])
                while row >= 0 and rows[place, row] != token:
                    row = int(siblings[place, row])
            request.output_ids.extend(new)
            accepted[request.rid].append(len(new) - 1)
        worker._update_ngram_corpus(batch)
        departed = {request.rid for request in requests} - {request.rid for request in batch.reqs}
        worker.ngram_corpus.erase_match_state(list(departed))
    worker.clear_cache_pool()
    return {
        "algorithm": repr(SpeculativeAlgorithm.from_string("headstart")),
        "base": worker_class.__mro__[1].__name__,
        "differences": {name: [theirs[name], ours[name]] for name in ours if ours[name] != theirs[name]},
        "texts": {request.rid: [*request.origin_input_ids_unpadded, *request.output_ids] for request in requests},
        "accepted": accepted,
        "left": len(worker.ngram_corpus._followed),
    }


if __name__ == "__main__":
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    sys.meta_path.insert(0, Absent())
    print(json.dumps(main(sys.argv[1])))
