"""How long prompts of models that keep states take on PyTorch: scanned in pieces against row by row, in turns.

    python -m headstart_lab.programs.prompts_of_states
    python -m headstart_lab.programs.prompts_of_states --kinds qwen3-next --rows 511,2047 --turns 7
    python -m headstart_lab.programs.prompts_of_states --device cuda --layers 8

Random models of four layers, as wide as --hidden says, with heads as large as those of Qwen3-Next, Granite 4 H and
Falcon-Mamba, in fp32. A prompt is read in passes of 512 rows, as the engine reads it. Needs transformers, and no model.
Times are medians of the turns; the ratio is the median of the turns' own. Operations are those that compute something
in one reading: what an accelerator is asked for.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, BambaConfig, FalconMambaConfig, PretrainedConfig, Qwen3NextConfig

from headstart.backends.torch import levels
from headstart.backends.torch.backend import TorchBackend
from headstart.engine.schedule import Limits
from headstart.models.checkpoint import open_checkpoint
from headstart.models.layers.recurrence import PIECE
from headstart.models.weight_loading import load_decoder
from headstart.passes.runner import ModelRunner, Span

VOCAB = 512


def config_of(kind: str, hidden: int, layers: int) -> PretrainedConfig:
    """Layers of one kind, the last of which attends where the kind has such layers."""
    sizes = {"vocab_size": VOCAB, "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": 2 * hidden}
    sizes |= {"max_position_embeddings": 8192, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "mamba":
        return FalconMambaConfig(**sizes | {"intermediate_size": 2 * hidden}, state_size=16)
    heads = {"num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 256}
    if kind == "mamba2":
        state = {"mamba_n_heads": hidden // 32, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1}
        return BambaConfig(**sizes, **heads, **state, attn_layer_indices=[layers - 1])
    state = {"linear_num_key_heads": hidden // 128, "linear_num_value_heads": hidden // 64}
    types = ["linear_attention"] * (layers - 1) + ["full_attention"]
    return Qwen3NextConfig(
        **sizes,
        **heads,
        **state,
        head_dim=64,
        layer_types=types,
        num_experts=4,
        num_experts_per_tok=1,
        mlp_only_layers=list(range(layers)),
    )


KINDS = ("qwen3-next", "mamba2", "mamba")


def make_backend(kind: str, hidden: int, layers: int, device: str) -> TorchBackend:
    """A random model."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(kind, hidden, layers))
    with TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        return TorchBackend(*load_decoder(open_checkpoint(Path(directory)), torch.float32), device=device)


def read(runner: ModelRunner, tokens: np.ndarray) -> float:
    """Seconds until a prompt is read."""
    runner.cache.add(0)
    start = time.perf_counter()
    for first in range(0, len(tokens), Limits.max_rows):
        rows = tokens[first : first + Limits.max_rows]
        with runner.cache.reserve({0: len(rows)}, final={0}):
            runner.forward([Span.chain(0, rows.tolist(), "none")])
            runner.cache.commit(0, range(len(rows)))
    taken = time.perf_counter() - start
    runner.cache.remove(0)
    return taken


class CountOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what computes: an operation whose results are no views of what it was given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += int(not func.is_view)
        return func(*args, **kwargs or {})


def operations(runner: ModelRunner, tokens: np.ndarray) -> int:
    """Of reading a prompt."""
    with CountOperations() as counted:
        read(runner, tokens)
    return int(counted.count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument(
        "--rows", default="511,2047", help="tokens of the prompts: an engine leaves the last to the round"
    )
    parser.add_argument("--hidden", type=int, default=1024, help="a multiple of 256")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5, help="that count; one more comes before them")
    parser.add_argument("--device", default="cpu")
    wanted = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, {wanted.device}")
    shortest = {"scanned": levels.SHORTEST_PIECE, "row by row": PIECE + 1}
    draw = np.random.default_rng(0)
    for kind in wanted.kinds.split(","):
        backend = make_backend(kind, wanted.hidden, wanted.layers, wanted.device)
        for count in map(int, wanted.rows.split(",")):
            runner = ModelRunner(backend, count + 32, num_states=64)
            tokens = draw.integers(3, VOCAB, count)
            times: dict[str, list[float]] = {name: [] for name in shortest}
            counts: dict[str, int] = {}
            for name, levels.SHORTEST_PIECE in shortest.items():
                counts[name] = operations(runner, tokens)
            for _ in range(wanted.turns + 1):
                for name, levels.SHORTEST_PIECE in shortest.items():
                    times[name].append(read(runner, tokens))
            levels.SHORTEST_PIECE = shortest["scanned"]
            ratios = [slow / fast for fast, slow in zip(*(each[1:] for each in times.values()), strict=True)]
            shown = ", ".join(
                f"{name} {median(each[1:]) * 1e3:.0f} ms ({counts[name]:,} operations)" for name, each in times.items()
            )
            print(f"{kind}, {count} rows: {shown}, ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
