"""How often a model's guesses for itself in few bits hold, and what they bring: each in turns with plain decoding.

    python -m headstart_lab.programs.self_acceptance [--model smollm2] [--precision bf16] [--bits 4 3 2]
    python -m headstart_lab.programs.self_acceptance --model gemma-3-270m-q4_k_m.gguf --in-levels 3 2

``--in-levels``: weights are rounded to levels of so many bits whatever the width of their rows, which the blocks of
three and two bits need to be multiples of 256, and computed in bf16: how often such guesses hold, not how fast.
A file that holds four bits is its own four bits but for their arithmetic (an upper bound of what a model in 16 bits
would accept of itself), and loses more by three and two bits than such a model would (a lower bound).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.few_bits import exchanged, rounded_rows
from headstart.drafting.base import Drafter
from headstart.drafting.context import DraftContext
from headstart.drafting.registry import create_drafter
from headstart.errors import RequestError
from headstart.loading.model import Model, load_model
from headstart.models.gguf_types import dequantised
from headstart.models.linear_weights import LinearWeights
from headstart.models.weight_loading import load_decoder
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.prompts import choose, encode_turns, read_prompts
from headstart_lab.provenance import finished, provenance
from headstart_lab.workbench import PLAIN, Contender, Workbench

FORMAT = "headstart-self-acceptance/1"
_SUPERBLOCK = 256


def in_levels(matrix: Tensor, bits: int) -> Tensor:
    """bfloat16 [out, in] rounded to levels of so many bits; rows are filled up to whole superblocks meanwhile."""
    inputs = matrix.shape[1]
    filled = functional.pad(matrix.float(), (0, -inputs % _SUPERBLOCK))
    kind = f"Q{bits}_K"
    return torch.from_numpy(dequantised(rounded_rows(filled, kind), kind))[:, :inputs].bfloat16().contiguous()


def lend_in_levels(model: Model, bits: int | str, layers: int | None) -> NativeBackend:
    """As ``loading.own_bits.lend_itself``, but in levels of three or two bits, computed in bf16."""
    config, weights = load_decoder(model.checkpoint, torch.float32)

    def rounded(linear: LinearWeights) -> LinearWeights:
        return LinearWeights(in_levels(linear.weight, int(bits)), linear.bias)

    target = model.backend
    assert isinstance(target, NativeBackend)
    backend = NativeBackend(config, exchanged(weights, rounded), "bf16", target.threads)
    backend.take_cache_of(target)
    return backend


def contenders(model: Model, options: argparse.Namespace) -> Iterator[Contender]:
    """Plain decoding, then each precision."""
    yield Contender.parse(PLAIN)
    more = f":draft_tokens={options.draft_tokens}"
    for bits in options.bits:
        yield Contender.parse(f"self:bits={bits}{more}")
    for bits in options.in_levels:

        def create(context: DraftContext, bits: int = bits) -> Drafter:
            lent = replace(context, lend_itself=lambda bits, layers: lend_in_levels(model, bits, layers))
            return create_drafter("self", lent, bits=bits, draft_tokens=options.draft_tokens)

        yield Contender(f"in levels of {bits} bits", create)


def encoded(model: Model, per_group: int) -> list[list[int]]:
    """Prompts as a chat, or of a model without a template as they are."""
    found = []
    for prompt in choose(read_prompts(None), per_group):
        try:
            found.append(encode_turns(model, prompt.turns[:1], []))
        except RequestError:
            found.append(model.tokenizer.encode(prompt.turns[0]))
    return found


def measure(model: Model, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """By contender."""
    bench = Workbench.of_model(model, max_context=1024)
    params = SamplingParams(temperature=0, max_tokens=options.tokens, ignore_eos=True)
    engines = {each.name: bench.open(each) for each in contenders(model, options)}
    sums: dict[str, dict[str, float]] = {name: {} for name in engines}
    for number, prompt in enumerate(encoded(model, options.per_group)):
        said: list[int] | None = None
        for place in range(len(engines)):
            name = [*engines][(number + place) % len(engines)]
            sequence = bench.sequence(prompt, params)
            start = time.perf_counter()
            bench.decode(engines[name], sequence)
            stats, seconds = sequence.stats, time.perf_counter() - start - sequence.stats.prefill_seconds
            said = sequence.output if said is None else said
            assert sequence.output == said, f"{name} changed the text"
            for key, value in (
                *(("tokens", sequence.num_output - 1), ("seconds", seconds), ("rounds", stats.rounds)),
                *(("drafted", stats.drafted), ("accepted", stats.accepted)),
            ):
                sums[name][key] = sums[name].get(key, 0.0) + value
    plain = sums[PLAIN]["tokens"] / sums[PLAIN]["seconds"]
    return {
        name: {
            "tokens_per_second": each["tokens"] / each["seconds"],
            "speedup": each["tokens"] / each["seconds"] / plain,
            "tokens_a_round": each["tokens"] / each["rounds"],
            "accepted": each["accepted"] / max(each["drafted"], 1.0),
        }
        for name, each in sums.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--bits", nargs="*", default=["4"], help="4, 3, 2 or precisions, as the drafter takes them")
    parser.add_argument("--in-levels", nargs="*", type=int, default=[], choices=[2, 3])
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--per-group", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, help="also write what came out, with its provenance, to this JSON file")
    options = parser.parse_args()
    where = provenance()
    model = load_model(options.model, options.precision)
    print(model.backend.name, flush=True)
    found = measure(model, options)
    for name, each in found.items():
        print(f"{name:>36}: " + ", ".join(f"{key} {value:.3f}" for key, value in each.items()))
    if options.out:
        settings: dict[str, Any] = {name: str(value) for name, value in vars(options).items() if name != "out"}
        record = {"format": FORMAT, "provenance": finished(where), "settings": settings, "drafters": found}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
