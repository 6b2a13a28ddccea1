"""P-EAGLE: what its masks read and see, its tree, and what it makes of a sampled request."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from drafting_toys import ToySequence
from head_toys import head_drafter, random_eagle, random_tables, state_after

from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.errors import ConfigError
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart_train.decoder.rotary_table import RotaryTable
from headstart_train.files.heads import save_head

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5, 9]
BUDGET = DraftBudget(nodes=30, depth=9)
CHAIN = {"width": 1, "min_probability": 0.0, "text_vocabulary": 0}


def begin(drafter: Drafter, tokens: list[int], seed: int = 7, number: int = 1, **params: float) -> ToySequence:
    asked = SamplingParams(**{"temperature": 0, **params})  # type: ignore[arg-type]
    sequence = ToySequence(number, list(tokens), params=asked, noise=SequenceNoise(seed))
    drafter.begin(sequence)
    drafter.observe([RoundOutcome(sequence, 0, np.asarray(tokens[:-1], dtype=np.int32), DraftTree.empty())])
    return sequence


@torch.no_grad()
def said(head: EagleHead, tokens: list[int]) -> torch.Tensor:
    """[slot, draft vocab] after these tokens, by the module itself, in one causal run over true rows and masks."""
    config, tables = head.config, random_tables(VOCAB)
    known, masks = len(tokens) - 1, config.slots - 1
    states = [torch.cat([state_after(tokens[: i + 1], tap) for tap in config.taps]) for i in range(known)]
    features = torch.cat((torch.stack(states), head.mask_hidden[0].expand(masks, -1)))
    read = torch.tensor([*tokens[1:], *[config.mask_token_id] * masks])
    rows = known + masks
    rotate = partial(RotaryTable(config.rope, torch.float32).rotate, positions=torch.arange(rows), reach=rows)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shared = config.num_heads // config.num_kv_heads
        k, v = (each.repeat_interleave(shared, dim=1).transpose(0, 1) for each in (k, v))
        return F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True).transpose(0, 1).flatten(1)

    output = head(F.embedding(read, tables.embedding), head.fuse(features), rotate, attend)
    return head.logits(output)[-config.slots :]


def chain_of(head: EagleHead, tokens: list[int]) -> list[int]:
    return head.target_ids[said(head, tokens).argmax(-1)].tolist()  # type: ignore[no-any-return]


def head_of(**changes: object) -> EagleHead:
    return random_eagle(VOCAB, slots=4, mask_token_id=8, **changes)


@pytest.mark.parametrize("changes", [{}, {"num_layers": 2}, {"norm_output": False, "fc_norm": False}], ids=str)
def test_slots_say_the_tokens_after_the_root(changes: dict[str, object], tmp_path: Path) -> None:
    head = head_of(**changes)
    save_head(head, tmp_path)
    drafter = head_drafter("p-eagle", VOCAB, CHAIN, tmp_path)
    sequence = begin(drafter, PROMPT)
    for _ in range(4):
        tree = drafter.propose([sequence], [BUDGET])[0]
        assert tree.tokens.tolist() == chain_of(head, sequence.tokens)
        assert tree.parents.tolist() == [-1, 0, 1, 2]
        rows = np.asarray([sequence.tokens[-1], *tree.tokens.tolist()], dtype=np.int32)
        position, accepted = len(sequence.tokens) - 1, [int(token) for token in tree.tokens[:2]]
        sequence.tokens.extend([*accepted, 10])
        drafter.observe([RoundOutcome(sequence, position, rows, tree, (0, 1), (*accepted, 10))])


def test_batches_say_what_each_sequence_says_alone() -> None:
    head, drafter = head_of(), head_drafter("p-eagle", VOCAB, CHAIN)
    texts = [PROMPT, PROMPT[:3], [*PROMPT, 2, 7, 1, 8, 2, 8]]
    sequences = [begin(drafter, text, number=number) for number, text in enumerate(texts)]
    trees = drafter.propose(sequences, [BUDGET, DraftBudget(30, 2), BUDGET])
    wanted = [chain_of(head, text) for text in texts]
    assert [tree.tokens.tolist() for tree in trees] == [wanted[0], wanted[1][:2], wanted[2]]


def test_a_tree_holds_the_likeliest_paths() -> None:
    head = head_of()
    options = {"width": 3, "min_probability": 0.0, "tree_nodes": 7, "text_vocabulary": 0}
    tree = (drafter := head_drafter("p-eagle", VOCAB, options)).propose([begin(drafter, PROMPT)], [BUDGET])[0]
    laws = said(head, PROMPT).double().softmax(-1)
    best = laws.topk(3).values
    products = sorted(
        (
            float(torch.stack([best[slot, rank] for slot, rank in enumerate(path)]).prod())
            for depth in range(1, 5)
            for path in np.ndindex(*(3,) * depth)
        ),
        reverse=True,
    )[:7]
    place = {int(token): index for index, token in enumerate(head.target_ids.tolist())}
    found: list[float] = []
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        above = 1.0 if parent == ROOT else found[parent]
        found.append(above * float(laws[int(tree.depths[node]) - 1, place[token]]))
    assert found == pytest.approx(products, rel=1e-4)


def test_sampled_requests_rank_by_the_positions_own_noise() -> None:
    head, drafter, temperature = head_of(), head_drafter("p-eagle", VOCAB, CHAIN), 6.0
    chains = set()
    for seed in range(5):
        drafter.end(1)
        sequence = begin(drafter, PROMPT, seed, temperature=temperature)
        tree = drafter.propose([sequence], [BUDGET])[0]
        assert tree.draft_probs is None
        wanted = []
        for slot, row in enumerate(said(head, PROMPT).double()):
            noise = sequence.noise.position_exponentials(len(PROMPT) + slot, VOCAB, head.target_ids)
            wanted.append(int(head.target_ids[(row / temperature - noise.log()).argmax()]))
        assert tree.tokens.tolist() == wanted
        chains.add(tuple(wanted))
    assert len(chains) > 1


def test_it_may_be_stepped_but_a_head_without_masks_cannot_guess_at_once(tmp_path: Path) -> None:
    head, stepped = head_of(), random_eagle(VOCAB)
    stepped.load_state_dict({name: value for name, value in head.state_dict().items() if name != "mask_hidden"})
    save_head(stepped, tmp_path / "eagle3")
    save_head(head, tmp_path / "p-eagle")
    with pytest.raises(ConfigError, match="holds another head \\(eagle3 head\\)"):
        head_drafter("p-eagle", VOCAB, {}, tmp_path / "eagle3")
    with pytest.raises(ConfigError, match="holds another head \\(p-eagle head\\)"):
        head_drafter("eagle2", VOCAB, {}, tmp_path / "p-eagle")
    options = {"min_probability": 0.0, "tree_nodes": 20}
    drafters = [head_drafter("eagle3", VOCAB, options, tmp_path / name) for name in ("eagle3", "p-eagle")]
    trees = [drafter.propose([begin(drafter, PROMPT)], [BUDGET])[0] for drafter in drafters]
    assert len(trees[0]) == 20
    assert [tree.tokens.tolist() for tree in trees] == [trees[0].tokens.tolist()] * 2
    assert [tree.parents.tolist() for tree in trees] == [trees[0].parents.tolist()] * 2
