"""What drafts of one pass cost, of a block head and of masks, beside a plain pass and an EAGLE-3 draft; processor time.

    OMP_NUM_THREADS=1 python benchmarks/block_drafts.py --layers 3 --slots 9

The block head has random weights and says the tokens that the shipped EAGLE-3 head says; that head has a random mask
state for P-EAGLE. Cost alone is measured, after 200 tokens, for trees of 31 nodes. All take turns; of each the least
and the median of the turns are printed.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from headstart.drafting.head_drafters.marginal_trees import likeliest_paths
from headstart.heads.block import BlockHead, block_config
from headstart.heads.eagle import EagleHead
from headstart.heads.head_pass import DraftRoot, DraftRows, PathBounds
from headstart.heads.loading import load_head
from headstart.heads.shipped import SHIPPED
from headstart.lending import draft_context
from headstart.loading import load_model
from headstart.runner import ModelRunner, Span

KNOWN, NODES, READ = 200, 31, 3
"""Tokens before the draft, nodes of a tree, and states that a round brings."""
EVERY_PATH = PathBounds(-1e9, -1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--slots", type=int, default=9)
    parser.add_argument("--turns", type=int, default=60)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = load_model("smollm2")
    runner = ModelRunner(model.backend, 2 * KNOWN)
    tables = draft_context(model, runner).require_tables()()
    eagle = load_head(SHIPPED / "smollm2-135m-eagle3", model.config)
    assert isinstance(eagle, EagleHead)
    kit, ids = model.backend.kit, eagle.target_ids
    head = BlockHead(block_config(model.config, given.slots, given.layers, 0, len(ids)))
    head.d2t.copy_(ids - torch.arange(len(ids)))
    blocks, steps = kit.block_pass(head, tables, "auto"), kit.head_pass(eagle, tables, "auto")
    growth = steps.growth(6, ids.numpy().astype(np.int32))
    assert growth is not None
    slots = given.slots - 1
    p_eagle = EagleHead(replace(eagle.config, slots=slots))
    p_eagle.load_state_dict(eagle.state_dict(), strict=False)
    masked = kit.masked_pass(p_eagle, tables, "auto")
    at_once = masked.growth(8, ids.numpy().astype(np.int32))
    assert at_once is not None
    hidden = model.config.hidden_size
    states, few = torch.randn(KNOWN, len(head.config.taps) * hidden), torch.randn(READ, len(head.config.taps) * hidden)
    features = np.random.default_rng(0).normal(size=(READ, len(eagle.config.taps) * hidden)).astype(np.float32)
    block_cache, eagle_cache, masked_cache = blocks.new_cache(), steps.new_cache(), masked.new_cache()
    blocks.read(states, [DraftRows(block_cache, KNOWN)])
    eagle_states = torch.randn(KNOWN, len(eagle.config.taps) * hidden)
    steps.read(np.zeros(KNOWN, np.int32), eagle_states, [DraftRows(eagle_cache, KNOWN)])
    masked.read(np.zeros(KNOWN, np.int32), eagle_states, [DraftRows(masked_cache, KNOWN)])
    runner.cache.add(1)
    with runner.cache.reserve({1: KNOWN}):
        runner.forward([Span.chain(1, list(range(KNOWN)))])
        runner.cache.commit(1, range(KNOWN))

    def plain() -> None:
        with runner.cache.reserve({1: 1}):
            runner.forward([Span.chain(1, [5], "last")])

    def eagle_draft() -> None:
        growth.grow([DraftRoot(eagle_cache, np.array([5, 6, 7], np.int32), features, NODES, 8)], EVERY_PATH, None)
        eagle_cache.truncate(KNOWN)

    def masked_draft() -> None:
        root = DraftRoot(masked_cache, np.array([5, 6, 7], np.int32), features, NODES, slots)
        at_once.grow([root], EVERY_PATH, None)
        masked_cache.truncate(KNOWN)

    def read() -> None:
        blocks.read(few, [DraftRows(block_cache, READ)])

    def block() -> None:
        _, logits = blocks.block(np.array([7], np.int32), [block_cache], given.slots)
        log_probs, tokens = blocks.best(logits.flatten(0, 1), 8)
        likeliest_paths(log_probs, tokens.astype(np.int64), NODES, -np.inf)

    seconds: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, work: Callable[[], None]) -> None:
        began = time.thread_time()
        work()
        seconds[name].append(time.thread_time() - began)

    for _ in range(given.turns):
        timed("a plain pass", plain)
        timed("an EAGLE-3 draft of eight levels", eagle_draft)
        timed(f"a P-EAGLE draft of {slots} slots", masked_draft)
        timed("reading three states", read)
        timed(f"a block of {given.slots} guesses by {given.layers} layers", block)
        block_cache.truncate(KNOWN)
    print(model.backend.name)
    for name, turns in seconds.items():
        print(f"{name}: {1e3 * min(turns):.2f} ms at least, {1e3 * float(np.median(turns)):.2f} in the middle")


if __name__ == "__main__":
    main()
