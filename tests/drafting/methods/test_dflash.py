"""DFlash: which row of a block says which token, what the block sees, and what it makes of a sampled request."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from drafting_toys import ToySequence
from head_toys import head_drafter, random_block, random_tables, state_after

from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome
from headstart.drafting.head_trees.head_drafter import HeadDrafter
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart_train.decoder.rotary_table import RotaryTable
from headstart_train.files.heads import save_head

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5, 9]
BUDGET = DraftBudget(nodes=30, depth=9)


def begin(drafter: Drafter, tokens: list[int], **params: float) -> ToySequence:
    sequence = ToySequence(1, list(tokens), params=SamplingParams(**{"temperature": 0, **params}))  # type: ignore[arg-type]
    drafter.begin(sequence)
    drafter.observe([RoundOutcome(sequence, 0, np.asarray(tokens[:-1], dtype=np.int32), DraftTree.empty())])
    return sequence


@torch.no_grad()
def said(head: BlockHead, tokens: list[int]) -> torch.Tensor:
    """[slot, draft vocab] logits of the block after these tokens, by the module itself."""
    return saying(head, tokens)[1]


@torch.no_grad()
def saying(head: BlockHead, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """States [slot, hidden] that say the block after these tokens, and their logits [slot, draft vocab]."""
    config, tables = head.config, random_tables(VOCAB)
    known = len(tokens) - 1
    states = [torch.cat([state_after(tokens[: i + 1], tap) for tap in config.taps]) for i in range(known)]
    context = head.context(torch.stack(states))
    rotary = RotaryTable(config.rope, torch.float32)
    reach = known + config.block_size
    block = torch.tensor([tokens[-1]] + [config.mask_token_id] * (config.block_size - 1))

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        at = partial(rotary.rotate, positions=torch.arange(known), reach=reach)
        keys, values = head.context_heads(layer, context, at)
        k, v = torch.cat((keys, k)), torch.cat((values, v))
        shared = config.num_heads // config.num_kv_heads
        k, v = (each.repeat_interleave(shared, dim=1).transpose(0, 1) for each in (k, v))
        far = torch.arange(known, reach)[:, None] - torch.arange(reach)
        window = config.windows[layer] if config.windows else 0
        mask = far < (window or reach)
        if config.causal or (window and config.causal_windows):
            mask &= far >= 0
        if config.sinks:
            # A key of zeros, whose score is the sink's, and whose value is nothing.
            k, v = (torch.cat((torch.zeros_like(each[:, :1]), each), dim=1) for each in (k, v))
            scores = torch.zeros(len(k), len(q), k.shape[1]).masked_fill(~F.pad(mask, (1, 0), value=True), -torch.inf)
            scores[:, :, 0] = head.layers[layer].self_attn.attention_sink_bias[:, None]
            return F.scaled_dot_product_attention(q.transpose(0, 1), k, v, scores).transpose(0, 1).flatten(1)
        return F.scaled_dot_product_attention(q.transpose(0, 1), k, v, mask).transpose(0, 1).flatten(1)

    at = partial(rotary.rotate, positions=torch.arange(known, reach), reach=reach)
    states = head(F.embedding(block, tables.embedding), at, attend)[config.speaking]
    return states, head.logits(states, tables.head)


@torch.no_grad()
def chained(head: BlockHead, tokens: list[int]) -> list[int]:
    """The greedy chain, each guess after the one before it."""
    guesses = [tokens[-1]]
    for row in said(head, tokens):
        added = head.markov_head.markov_w2(head.said_before(torch.tensor(guesses[-1])))
        guesses.append(int(head.target_ids[(row + added).argmax()]))
    return guesses[1:]


def chain_of(head: BlockHead, tokens: list[int]) -> list[int]:
    return head.target_ids[said(head, tokens).argmax(-1)].tolist()  # type: ignore[no-any-return]


CHAIN = {"width": 1, "min_probability": 0.0, "text_vocabulary": 0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"causal": True},
        {"root_speaks": True},
        {"attention_bias": True, "own_output": True},
        {"windows": (3, 0)},
        {"windows": (0, 2), "causal_windows": True},
        {"conv_taps": 2, "conv_group": 8},
        {"sinks": True, "windows": (3, 0)},
    ],
)
def test_slots_say_the_tokens_after_the_root(changes: dict[str, object], tmp_path: Path) -> None:
    head = random_block(VOCAB, **changes)
    save_head(head, tmp_path)
    drafter = head_drafter("dflash", VOCAB, CHAIN, tmp_path)
    sequence = begin(drafter, PROMPT)
    tree = drafter.propose([sequence], [BUDGET])[0]
    assert tree.tokens.tolist() == chain_of(head, PROMPT)
    assert tree.parents.tolist() == list(range(-1, head.config.slots - 1))
    assert len(tree) == (5 if changes == {"root_speaks": True} else 4)


def test_a_fresh_block_reads_what_was_accepted_and_nothing_of_the_block_before() -> None:
    head, drafter = random_block(VOCAB), head_drafter("dflash", VOCAB, CHAIN)
    sequence = begin(drafter, PROMPT)
    for _ in range(5):
        tree = drafter.propose([sequence], [BUDGET])[0]
        assert tree.tokens.tolist() == chain_of(head, sequence.tokens)
        rows = np.asarray([sequence.tokens[-1], *tree.tokens.tolist()], dtype=np.int32)
        position, accepted = len(sequence.tokens) - 1, [int(token) for token in tree.tokens[:2]]
        sequence.tokens.extend([*accepted, 10])
        drafter.observe([RoundOutcome(sequence, position, rows, tree, (0, 1), (*accepted, 10))])


def test_batches_say_what_each_sequence_says_alone() -> None:
    head, drafter = random_block(VOCAB), head_drafter("dflash", VOCAB, CHAIN)
    texts = [PROMPT, PROMPT[:3], [*PROMPT, 2, 7, 1, 8, 2, 8]]
    sequences = []
    for number, text in enumerate(texts):
        sequence = ToySequence(number, list(text), params=SamplingParams(temperature=0))
        drafter.begin(sequence)
        chunk = np.asarray(text[:-1], dtype=np.int32)
        drafter.observe([RoundOutcome(sequence, 0, chunk, DraftTree.empty())])
        sequences.append(sequence)
    trees = drafter.propose(sequences, [BUDGET, DraftBudget(30, 2), BUDGET])
    wanted = [chain_of(head, text) for text in texts]
    assert [tree.tokens.tolist() for tree in trees] == [wanted[0], wanted[1][:2], wanted[2]]


def test_a_tree_holds_the_likeliest_paths() -> None:
    head = random_block(VOCAB)
    drafter = head_drafter("dflash", VOCAB, {"width": 3, "min_probability": 0.0, "tree_nodes": 7, "text_vocabulary": 0})
    tree = drafter.propose([begin(drafter, PROMPT)], [BUDGET])[0]
    laws = said(head, PROMPT).double().softmax(-1)
    best = laws.topk(3)
    products = sorted(
        (
            float(torch.tensor([best.values[slot, rank] for slot, rank in enumerate(path)]).prod())
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
    """Point masses: what the target would say if its law were the head's."""
    head, drafter = random_block(VOCAB), head_drafter("dflash", VOCAB, CHAIN)
    temperature = 6.0
    params = SamplingParams(temperature=temperature)
    chains = set()
    for seed in range(6):
        drafter.end(1)
        sequence = ToySequence(1, list(PROMPT), params=params, noise=SequenceNoise(seed))
        drafter.begin(sequence)
        drafter.observe([RoundOutcome(sequence, 0, np.asarray(PROMPT[:-1], dtype=np.int32), DraftTree.empty())])
        tree = drafter.propose([sequence], [BUDGET])[0]
        assert tree.draft_probs is None
        logits, wanted = said(head, PROMPT).double(), []
        for slot, row in enumerate(logits):
            noise = sequence.noise.position_exponentials(len(PROMPT) + slot, VOCAB, head.target_ids)
            wanted.append(int(head.target_ids[(row / temperature - noise.log()).argmax()]))
        assert tree.tokens.tolist() == wanted
        chains.add(tuple(wanted))
    assert len(chains) > 1


def test_tokens_of_the_text_that_the_vocabulary_lacks_may_be_said() -> None:
    """10 and 6 are of the text alone; their rows are the target's."""
    text = [3, 10, 6, 10, 6, 10]
    options = {"width": 8, "min_probability": 0.0, "tree_nodes": 60}
    with_text, without = (head_drafter("dflash", VOCAB, {**options, "text_vocabulary": most}) for most in (512, 0))
    wide = replace(BUDGET, nodes=60)
    trees = [drafter.propose([begin(drafter, text)], [wide])[0] for drafter in (with_text, without)]
    assert {6, 10} & set(trees[0].tokens.tolist())
    assert not {6, 10} & set(trees[1].tokens.tolist())


def markov_head() -> BlockHead:
    head = random_block(VOCAB, markov_rank=3)
    with torch.no_grad():
        head.markov_head.markov_w2.weight.mul_(8)
    return head


def test_a_markov_factor_lets_a_guess_follow_the_one_before_it(tmp_path: Path) -> None:
    head = markov_head()
    save_head(head, tmp_path)
    drafter = head_drafter("dflash", VOCAB, CHAIN, tmp_path)
    differs = 0
    for prompt in (PROMPT, PROMPT[:4], [2, 10], [1, 6]):
        # 10 and 6 are none of the head's tokens: nothing is known of what follows them.
        drafter.end(1)
        tree = drafter.propose([begin(drafter, prompt)], [BUDGET])[0]
        assert tree.tokens.tolist() == chained(head, prompt)
        differs += chained(head, prompt) != chain_of(head, prompt)
    assert differs


SECOND = {"conv_taps": 2, "conv_group": 4, "selector_rank": 3, "selector_top": 4}


def second_head(**changes: object) -> BlockHead:
    return random_block(VOCAB, reduced=False, **{**SECOND, **changes})


@torch.no_grad()
def selected(head: BlockHead, tokens: list[int]) -> list[int]:
    """DFlash 2's greedy path: each guess the best of a slot's candidates after the one before it."""
    selector, guesses = head.candidate_selector, [tokens[-1]]
    for state, row in zip(*saying(head, tokens), strict=True):
        after = selector.predecessor_codebook[guesses[-1]] * selector.hidden_projection(state)
        best = row.topk(head.config.selector_top).indices
        scores = [float(row[token] + after @ selector.successor_codebook[token]) for token in best]
        guesses.append(int(best[int(np.argmax(scores))]))
    return guesses[1:]


def test_a_selector_chooses_a_path_among_the_candidates(tmp_path: Path) -> None:
    head = second_head()
    save_head(head, tmp_path)
    drafter, plain = head_drafter("dflash", VOCAB, CHAIN, tmp_path), 0
    for prompt in (PROMPT, PROMPT[:4], [2, 10], [1, 6]):
        drafter.end(1)
        tree = drafter.propose([begin(drafter, prompt)], [BUDGET])[0]
        assert tree.tokens.tolist() == selected(head, prompt)
        plain += selected(head, prompt) == chain_of(head, prompt)
    assert plain < 4


@torch.no_grad()
def test_convolutions_stay_within_the_block() -> None:
    """By taps and channels, one number at a time."""
    conv = second_head(conv_taps=3).layers[0].attention_conv
    x, size = torch.randn(10, 16, generator=torch.Generator().manual_seed(1)), 5
    weights = conv.kernel_projection(x).view(10, 2, 3, 4)
    before, finish = conv.around(x, size)
    for side, made in enumerate((before, finish(x))):
        for row in range(10):
            for channel in range(16):
                taps = range(min(3, row % size + 1))
                kernel = [conv.base_kernel[side, tap, channel] + weights[row, side, tap, channel // 4] for tap in taps]
                wanted = sum(each * x[row - tap, channel] for tap, each in zip(taps, kernel, strict=True))
                assert float(made[row, channel]) == pytest.approx(float(wanted), abs=1e-5)


def confident_head(**changes: object) -> BlockHead:
    return random_block(VOCAB, confidence=True, **changes)


@torch.no_grad()
def sureness(head: BlockHead, tokens: list[int], guesses: list[int]) -> list[float]:
    """[slot] how likely the chain of guesses is accepted down to each of them, by the module itself."""
    config, states = head.config, saying(head, tokens)[0]
    before = torch.tensor([tokens[-1], *guesses[:-1]])
    known = head.said_before(before) if config.markov_rank else None
    return head.confidence(states, known).sigmoid().cumprod(0).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("changes", [{}, {"markov_rank": 3, "confidence_reads_token": True}], ids=str)
def test_a_draft_ends_where_the_head_is_no_longer_sure(changes: dict[str, object], tmp_path: Path) -> None:
    head = confident_head(**changes)
    save_head(head, tmp_path)
    guesses = chained(head, PROMPT) if head.config.markov_rank else chain_of(head, PROMPT)
    sure = sureness(head, PROMPT, guesses)
    assert sure == sorted(sure, reverse=True)
    for depth in range(1, 5):
        above, below = sure[depth - 1], sure[depth] if depth < 4 else 0.0
        options = {"width": 12, "tree_nodes": 200, "text_vocabulary": 0, "min_probability": (above + below) / 2}
        for confidence in (True, False):
            drafter = head_drafter("dflash", VOCAB, {**options, "confidence": confidence}, tmp_path)
            sequence = begin(drafter, PROMPT)
            shorten, allowed = drafter.drafter.growth._shorten, [DraftBudget(200, 9)]  # type: ignore[attr-defined]
            if shorten is not None:
                allowed = shorten([sequence], *_block_of(drafter, sequence), allowed)
            assert [budget.depth for budget in allowed] == [depth if confidence else 9]
    drafter = head_drafter("dflash", VOCAB, {**CHAIN, "min_probability": 0.999}, tmp_path)
    assert len(drafter.propose([begin(drafter, PROMPT)], [BUDGET])[0]) == 0


def _block_of(drafter: Drafter, sequence: ToySequence) -> tuple[torch.Tensor, torch.Tensor]:
    inner: HeadDrafter = drafter.drafter  # type: ignore[attr-defined]
    reading, growth = inner.reader.readings[sequence.id], inner.growth
    said: tuple[torch.Tensor, torch.Tensor] = growth._say([(sequence, reading)], 4)  # type: ignore[attr-defined]
    return said


@torch.no_grad()
def test_then_children_are_the_best_tokens_after_their_parent(tmp_path: Path) -> None:
    head = markov_head()
    save_head(head, tmp_path)
    options = {"width": 4, "min_probability": 0.0, "tree_nodes": 60, "text_vocabulary": 0}
    drafter = head_drafter("dflash", VOCAB, options, tmp_path)
    tree = drafter.propose([begin(drafter, PROMPT)], [replace(BUDGET, nodes=60)])[0]
    rows, families = said(head, PROMPT), 0
    for parent in [ROOT, *range(len(tree))]:
        children = [int(tree.tokens[node]) for node in np.flatnonzero(tree.parents == parent)]
        depth, token = (0, PROMPT[-1]) if parent == ROOT else (int(tree.depths[parent]), int(tree.tokens[parent]))
        if children and depth < len(rows):
            after = rows[depth] + head.markov_head.markov_w2(head.said_before(torch.tensor(token)))
            assert set(children) == set(head.target_ids[after.topk(len(children)).indices].tolist())
            families += len(children) > 1
    assert families > 3
