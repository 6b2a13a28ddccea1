"""What drafts of one pass cost, of block heads and of masks, beside a plain pass and an EAGLE-3 draft.

    OMP_NUM_THREADS=1 python -m headstart_lab.programs.block_drafts --layers 3 --slots 9

The block heads have random weights and say the tokens that the shipped EAGLE-3 head says: DFlash's, whose guesses do
not depend on each other, and DSpark's, with a Markov factor and a confidence; of both the pass by PyTorch with compiled
products, too. The EAGLE-3 head has a random mask state for P-EAGLE. Cost alone is measured, after 200 tokens, for trees
of 31 nodes that no bound cuts short. All take turns; of each the least and the median of the turns are printed: seconds
of the processor for one thread, of the clock for several.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native.linear import native_kit
from headstart.backends.torch.block_pass import BlockPass
from headstart.drafting.base import DraftBudget
from headstart.drafting.head_files.loading import load_head
from headstart.drafting.head_trees.marginal_trees import likeliest_paths
from headstart.drafting.head_trees.trees import ConfidenceTrees
from headstart.drafting.heads.head_pass import (
    BlockHeadPass,
    CachingHeadPass,
    DraftCache,
    DraftRoot,
    DraftRows,
    Growth,
    PathBounds,
)
from headstart.drafting.heads.text_vocabulary import TextVocabulary
from headstart.drafting.methods import dflash as dflash_method
from headstart.drafting.methods import eagle as eagle_method
from headstart.drafting.methods import p_eagle as p_eagle_method
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.loading.lending import draft_context, heads_for
from headstart.loading.model import load_model
from headstart.passes.runner import ModelRunner, Span
from headstart_train.first_steps.block import block_config

KNOWN, NODES, READ = 200, 31, 3
"""Tokens before the draft, nodes of a tree, and states that a round brings."""
EVERY_PATH = PathBounds(-1e9, -1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--slots", type=int, default=9)
    parser.add_argument("--rank", type=int, default=64, help="of the Markov factor")
    parser.add_argument("--text-tokens", type=int, default=0, help="that a block head may say beyond its vocabulary")
    parser.add_argument("--sequences", type=int, default=1, help="that are drafted for, and decoded, side by side")
    parser.add_argument("--turns", type=int, default=60)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = load_model("smollm2")
    runner = ModelRunner(model.backend, 2 * KNOWN * given.sequences)
    tables = draft_context(model, runner).require_tables()()
    eagle = load_head(heads_for(model).by_kind["eagle3"].directory, model.config)
    assert isinstance(eagle, EagleHead)
    kit, ids = model.backend.kit, eagle.target_ids
    numbers = ids.numpy().astype(np.int32)
    steps = kit.run(eagle_method.PASSES, eagle, tables, "auto")
    p_eagle = EagleHead(replace(eagle.config, slots=given.slots - 1))
    p_eagle.load_state_dict(eagle.state_dict(), strict=False)
    masked = kit.run(p_eagle_method.PASSES, p_eagle, tables, "auto")
    hidden = model.config.hidden_size

    def roots_of(
        running: CachingHeadPass, read: Callable[[Tensor, DraftRows], object], taps: int, depth: int, texts: int = 0
    ) -> list[DraftRoot]:
        return [root_of(running, read, taps, depth, texts) for _ in range(given.sequences)]

    def root_of(
        running: CachingHeadPass, read: Callable[[Tensor, DraftRows], object], taps: int, depth: int, texts: int
    ) -> DraftRoot:
        """After ``KNOWN`` tokens, with ``READ`` that are new."""
        cache, tokens = running.new_cache(), np.array([5, 6, 7], np.int32)
        read(torch.randn(KNOWN, taps * hidden), DraftRows(cache, KNOWN))
        features = np.random.default_rng(0).normal(size=(READ, taps * hidden)).astype(np.float32)
        text_tokens = None
        if texts:
            vocabulary = TextVocabulary(eagle, tables, model.config.vocab_size)
            text_tokens = running.text_tokens(vocabulary, texts)
            text_tokens.read(np.flatnonzero(vocabulary.lacks)[:texts].tolist())
        return DraftRoot(cache, tokens, features, NODES, depth, text_tokens)

    def whole(growth: Growth | None, roots: list[DraftRoot]) -> Callable[[], None]:
        assert growth is not None

        def draft() -> None:
            growth.grow(roots, EVERY_PATH, None)
            for root in roots:
                root.cache.truncate(KNOWN)

        return draft

    none = np.zeros(KNOWN, np.int32)
    kept = []  # passes live as long as what grows with them
    work = {
        "a plain pass": plain_pass(runner, range(given.sequences)),
        "an EAGLE-3 draft of eight levels": whole(
            steps.growth(6, numbers),
            roots_of(steps, lambda each, rows: steps.read(none, each, [rows]), len(eagle.config.taps), 8),
        ),
        f"a P-EAGLE draft of {given.slots - 1} slots": whole(
            masked.growth(8, numbers),
            roots_of(
                masked, lambda each, rows: masked.read(none, each, [rows]), len(eagle.config.taps), given.slots - 1
            ),
        ),
    }
    config = block_config(model.config, given.slots, given.layers, 0, len(ids))
    further = {"root_speaks": True, "block_size": given.slots, "markov_rank": given.rank, "confidence": True}
    for name, changes in {"DFlash": {}, "DSpark": further}.items():
        head = BlockHead(replace(config, **changes))
        head.d2t.copy_(ids - torch.arange(len(ids)))
        if head.config.markov_rank:
            # A row shifts logits by about one.
            torch.nn.init.normal_(head.markov_head.markov_w1.weight, std=0.5)
            torch.nn.init.normal_(head.markov_head.markov_w2.weight, std=2 * given.rank**-0.5)
        running = kit.run(dflash_method.PASSES, head, tables, "auto")
        kept.append(running)

        def read(each: Tensor, rows: DraftRows, running: BlockHeadPass = running) -> None:
            running.read(each, [rows])

        taps = len(head.config.taps)
        roots = roots_of(running, read, taps, given.slots, given.text_tokens)
        work[f"a {name} draft of {given.slots} slots by {given.layers} layers"] = whole(
            running.growth(8, numbers, True), roots
        )
        if given.sequences > 1:
            continue
        products = native_kit("int4-fast")
        assert products is not None
        by_torch = BlockPass(head, tables, products)
        cache = by_torch.new_cache()
        by_torch.read(torch.randn(KNOWN, taps * hidden), [DraftRows(cache, KNOWN)])
        work[f"a {name} draft with attention by PyTorch"] = torch_draft(by_torch, cache, roots[0].features, given.slots)
    seconds: dict[str, list[float]] = defaultdict(list)
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    for _ in range(given.turns):
        for name, run in work.items():
            began = clock()
            run()
            seconds[name].append(clock() - began)
    print(model.backend.name, f"{torch.get_num_threads()} threads")
    plain = min(seconds["a plain pass"])
    for name, turns in seconds.items():
        least, middle = min(turns), float(np.median(turns))
        print(f"{name}: {1e3 * least:.2f} ms at least, {1e3 * middle:.2f} in the middle; {least / plain:.2f} of a pass")


def plain_pass(runner: ModelRunner, sequences: Sequence[int]) -> Callable[[], None]:
    for each in sequences:
        runner.cache.add(each)
        with runner.cache.reserve({each: KNOWN}):
            runner.forward([Span.chain(each, list(range(KNOWN)))])
            runner.cache.commit(each, range(KNOWN))

    def plain() -> None:
        with runner.cache.reserve(dict.fromkeys(sequences, 1)):
            runner.forward([Span.chain(each, [5], "last") for each in sequences])

    return plain


def torch_draft(running: BlockPass, cache: DraftCache, features: NDArray[np.float32], slots: int) -> Callable[[], None]:
    """As the drafter makes one without compiled growth."""

    def draft() -> None:
        running.read(torch.from_numpy(features), [DraftRows(cache, READ)])
        states, logits = running.block(np.array([7], np.int32), [cache], slots)
        if not running.chained:
            log_probs, tokens = running.best(logits.flatten(0, 1), 8)
            likeliest_paths(log_probs, tokens.astype(np.int64), NODES, -np.inf)
        else:
            before = chain = torch.tensor([7])
            trees = ConfidenceTrees(1, 8)
            for slot in range(slots):
                running.confidence(states[:, slot], chain)
                chain = running.target_ids[(logits[:, slot] + running.following(chain, states[:, slot])).argmax(-1)]
                rows = logits[:, slot] + running.following(before, states[:, slot].expand(len(before), -1))
                log_probs, places = running.best(rows, 8)
                children = np.asarray(running.target_ids.numpy()[places], dtype=np.int64)
                beams = trees.grow(log_probs[None], children[None])
                assert beams is not None
                before = torch.from_numpy(beams.tokens[0])
            trees.trees(NODES, [DraftBudget(NODES, slots)])
        cache.truncate(KNOWN)

    return draft


if __name__ == "__main__":
    main()
