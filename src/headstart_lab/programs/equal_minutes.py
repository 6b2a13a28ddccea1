"""Kinds of heads trained for the same processor time, from nothing, on the same text: what each comes to.

    OMP_NUM_THREADS=1 python -m headstart_lab.programs.equal_minutes heads/eagle3/corpus --minutes 5 --out equal.json

The corpus is one that ``headstart train`` wrote (``--corpus``). The target's states are read from the files beside it,
or computed and kept there; that is not counted, nor is the measuring. On an accelerator (``--device cuda``) they are
computed for each batch, and time is the clock's. The learning rate follows the share of the time that is spent. Prints,
of held-out text, the accepted length of a chain of best guesses (four deep, and as deep as the head guesses) and how
often a guess at each depth is the target's favourite.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from headstart.backends.torch.device import parse_device
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.loading.model import load_model
from headstart.models.weight_loading import load_decoder
from headstart.passes.batch import FINAL_TAP
from headstart_train.budget import now
from headstart_train.computed_states import ComputedStates
from headstart_train.making import HEAD_NAMES, HeadSettings, make_objective, require_used, trunk_of
from headstart_train.objectives.objective import HeldOut, Objective
from headstart_train.optimiser import Optimiser
from headstart_train.states import Batch, StateSource, TargetStates
from headstart_train.text.corpus import Corpus
from headstart_train.text.packs import Pack
from headstart_train.text.text import Text
from headstart_train.trainer import TrainSettings, learning_rate
from headstart_train.vocabulary import choose_draft_vocabulary

HEADS = ("eagle3", "p-eagle", "dflash", "dspark", "jetspec", "medusa")
_COMMON_DEPTH = 4
_PARTS = 10_000
"""Of the time, by which the learning rate is told."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--minutes", type=float, default=5.0, help="of processor time for each")
    parser.add_argument("--heads", nargs="+", default=HEADS, metavar="HEAD[:LOSS]", help=", ".join(HEAD_NAMES))
    parser.add_argument("--batch", type=int, default=4, help="packs in a step")
    parser.add_argument("--length", type=int, default=512, help="tokens of a pack")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--held-out", type=int, default=16, help="packs that are measured")
    parser.add_argument("--states", type=Path, nargs="*", default=[], help="more directories of states to read")
    parser.add_argument("--cache-gb", type=float, default=2.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    place = parse_device(given.device)
    target = load_model(given.model, device=place)
    _, weights = load_decoder(target.checkpoint, torch.float32)
    tables = TargetTables(weights.embedding.to(place), weights.head.weight.to(place))
    text = Text([Corpus(given.corpus, json.loads((given.corpus / "corpus.json").read_text(encoding="utf-8")))])
    packs, held_out = text.packs(given.length)
    counts = text.counts(target.config.vocab_size)
    ids, coverage = choose_draft_vocabulary(counts, None, target.eos_token_ids)
    print(
        f"{target.backend.name}, {len(packs)} packs, {len(ids)} tokens ({coverage:.3f}), {given.minutes} minutes each"
    )
    settings = TrainSettings(batch=given.batch, optimiser="muon", precision="bf16", lr=given.lr)
    found: dict[str, dict[str, object]] = {}
    for asked in given.heads:
        name, _, loss = asked.partition(":")
        torch.manual_seed(0)
        trunk, wanted = trunk_of(name, HeadSettings(loss=loss or "ce"))
        require_used(trunk, wanted)
        objective = make_objective(trunk, target, weights, ids, wanted, tables, None)
        taps = objective.head.config.taps if isinstance(objective.head, EagleHead | BlockHead) else (FINAL_TAP,)
        directories = [given.corpus / f"states-{target.backend.name}-cpu", *given.states]
        states: StateSource
        if place.type == "cpu":
            states = TargetStates(target.backend, tables.head, taps, int(given.cache_gb * 2**30), "cpu", directories)
        else:
            states = ComputedStates(target.config, weights, tables.head, taps, place)
        steps = train(objective, batches(states, packs, settings), settings, 60 * given.minutes, place)
        measured = measure(objective, states, held_out[: given.held_out])
        line = found[asked] = result(objective, steps, measured)
        print(
            f"{asked}: {steps} steps, {line['parameters']:,} parameters, accepted length {line['four_deep']:.3f} "
            f"four deep, {line['whole']:.3f} whole, right {line['right']}",
            flush=True,
        )
        if given.out is not None:
            given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def batches(states: StateSource, packs: list[Pack], settings: TrainSettings) -> Iterator[Batch]:
    """Epoch after epoch, each in an order of its own, the same for all kinds of heads."""
    epoch = 0
    while True:
        order = np.random.default_rng([settings.seed, epoch]).permutation(len(packs))
        for first in range(0, len(packs) - settings.batch + 1, settings.batch):
            yield states.batch([packs[index] for index in order[first : first + settings.batch]])
        epoch += 1


def train(
    objective: Objective, text: Iterator[Batch], settings: TrainSettings, seconds: float, place: torch.device
) -> int:
    """Steps that were made."""
    optimiser = Optimiser(objective.head, settings.optimiser, settings.lr, settings.weight_decay)
    parameters = [parameter for parameter in objective.head.parameters() if parameter.requires_grad]
    spent, steps = 0.0, 0
    while spent < seconds:
        batch = next(text)
        began = clock(place)
        torch.manual_seed(steps)
        with torch.autocast(place.type, torch.bfloat16):
            loss = objective.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
        share = learning_rate(int(_PARTS * spent / seconds), _PARTS, settings.warm_up, settings.final_lr)
        optimiser.step(share)
        spent += clock(place) - began
        steps += 1
    return steps


def clock(place: torch.device) -> float:
    """Seconds of this process, or of an accelerator that is done with all it was given."""
    if place.type == "cpu":
        return time.process_time()
    return now(place)


def measure(objective: Objective, states: StateSource, held_out: list[Pack]) -> HeldOut:
    depth = torch.zeros(objective.depth, dtype=torch.int64)
    total = HeldOut(0, depth, depth)
    for pack in held_out:
        total += objective.held_out(states.batch([pack]))
    return total


def result(objective: Objective, steps: int, measured: HeldOut) -> dict[str, object]:
    common = measured.accepted[:_COMMON_DEPTH]
    return {
        "steps": steps,
        "parameters": sum(parameter.numel() for parameter in objective.head.parameters() if parameter.requires_grad),
        "four_deep": 1 + int(common.sum()) / max(measured.rows, 1),
        "whole": measured.accepted_length,
        "right": [round(share, 3) for share in measured.accuracy],
        "places": measured.rows,
    }


if __name__ == "__main__":
    main()
